-- Makes a submission that replaces a task begin anew. It has a budget of its own, so the late success of an attempt
-- with the former content does not end it. It leaves its place in the order of its lane for that of its new due time:
-- no attempt of it is in flight, and it may be due, or stop waiting for others, only much later.
-- A task that waits for others is checked six hours later at the latest, however late it is due. The check after a
-- success may have been lost with its node, and the success may be dropped after a day. The check comes at a random
-- moment of the three hours before that, so that those of a burst do not come together.
-- Only a task that is to be written is checked for a circle: the tasks before it may be thousands. One that takes the
-- place of a waiting task is checked from the names alone that this one does not wait for. The others close no circle:
-- whatever adds one of these edges holds the lock of the partition, as the caller does.
-- A success that it has noted stays noted where nothing else is known of that name by now, as after a day. A dead task
-- is kept for longer than that, so one that is all that is known may be older than the success.
-- A task whose expiry has passed does not hold its key: a submission that finds it moves it to the archive first.
-- What a move left behind of a shard, or copies of one that arrives, counts nowhere. Yet no second row can have its key
-- and version. A submission that needs them is answered `busy` until the move has deleted that row.
-- Behind a submission that is answered `busy`, later ones of its batch with its key are busy too.
-- The row of a replaced task does not tell by which submission: it keeps its id, may be replaced again, and may end. So
-- a replacement leaves its answer in duetime.received, under the id of its submission. The note moves with the shard of
-- that id, and nodes delete old ones. If the submission is sent again, the note is its answer, and nothing is written.
-- Where nothing is sent again, as for rows of an inbox, `p_after` is NULL and no note is left. '-infinity' stands for a
-- first sending that leaves one. Nodes of 0.2.0 have NULL there in a first sending, so it leaves none; their second
-- ones, which are few, leave one. They delete no such note: after a rollback all stay until newer nodes run again.
-- Replacements may be thousands a second, so the table is vacuumed as the other tables are that are emptied as they
-- fill.
-- Locks: none that another session waits for. The function's move to the archive locks the task's row, as that of a
-- superseded task does; a sweep of expired tasks passes over the row meanwhile. The settings take SHARE UPDATE
-- EXCLUSIVE on duetime.received. It waits for no reader or writer and none waits for it. A running autovacuum of the
-- table ends for it after `deadlock_timeout` (1 s).

-- It stood in 0014_place_submits.sql. `attempts_base` and `in_order` of a replaced task are new, and so are the notes
-- of a replacement and of a busy key, the move of an expired task, `v_wake_at`, `v_met` and `v_rest`. A batch comes in
-- the order of its keys, so one note of a busy key is enough. The insert came last; it comes before the end of older
-- versions now, so that a busy submission ends none.

CREATE OR REPLACE FUNCTION duetime.task_put(
    p_id uuid, p_shard integer, p_queue text, p_due_at timestamptz, p_now boolean, p_priority smallint, p_payload bytea,
    p_content_type text, p_headers jsonb, p_partition_key text, p_max_attempts integer, p_timeout_ms bigint, p_retry jsonb,
    p_expires_at timestamptz, p_key text, p_version bigint, p_on_duplicate text, p_window interval, p_keep_ms bigint,
    p_depends_on text[], p_after timestamptz DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (
    outcome text, id uuid, state duetime.task_state, due_at timestamptz, created_at timestamptz, version bigint, superseded bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- A queue's name has no blank, so a blank keeps the three parts apart. Without a key the id takes its place.
    v_name text := p_queue || ' ' || coalesce(length(p_partition_key), 0) || ' ' || coalesce(p_partition_key, '') || coalesce(p_key, p_id::text);
    v_found record;
    v_other record;
    v_due_at timestamptz;
    v_wake_at timestamptz;
    v_superseded bigint := 0;
    v_met text[];
    v_rest text[];
    v_loop text;
    v_state duetime.task_state := CASE WHEN p_depends_on IS NULL THEN 'scheduled' ELSE 'waiting' END;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(v_name, 0));
    IF statement_timestamp() <= p_after OR clock_timestamp() > p_until THEN
        PERFORM duetime.out_of_time();
    END IF;
    -- An earlier sending may have replaced a task. The lock has waited for its end.
    IF p_after > '-infinity' THEN
        RETURN QUERY
        SELECT a.outcome, a.id, a.state::duetime.task_state, a.due_at, a.created_at, a.version, a.superseded
          FROM jsonb_to_record(duetime.receive_answer(p_id))
            AS a (outcome text, id uuid, state text, due_at timestamptz, created_at timestamptz, version bigint, superseded bigint)
         WHERE a.outcome IS NOT NULL;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    -- The lock that made an earlier submission wait may have ended since; this one must not overtake it.
    IF current_setting('duetime.busy_key', true) = v_name THEN
        RETURN QUERY SELECT 'busy'::text, p_id, v_state, p_due_at, clock_timestamp(), p_version, 0::bigint;
        RETURN;
    END IF;
    LOOP
        v_due_at := CASE WHEN p_now THEN clock_timestamp() ELSE p_due_at END;
        v_wake_at := CASE WHEN p_depends_on IS NULL THEN v_due_at ELSE least(v_due_at, clock_timestamp() + (0.5 + random() / 2) * interval '6 hours') END;
        SELECT * INTO v_found
          FROM (SELECT t.id, t.state, t.due_at, t.created_at, t.version, true AS live,
                       t.state IN ('waiting', 'scheduled', 'ready') AND t.expires_at <= clock_timestamp() AS expired
                  FROM duetime.task AS t
                 WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
                UNION ALL
                SELECT f.id, f.state, f.due_at, f.created_at, f.version, false, false
                  FROM duetime.key_finished(
                       p_queue, p_partition_key, p_key, p_id, p_on_duplicate = 'version', clock_timestamp() - p_window) AS f
                 WHERE p_key IS NOT NULL
                UNION ALL
                SELECT s.id, s.state, s.due_at, s.created_at, s.version, true, false
                  FROM duetime.task_sent(p_id) AS s
                 WHERE p_key IS NULL) AS newest
         ORDER BY newest.id = p_id DESC, newest.version DESC, newest.live DESC, newest.created_at DESC
         LIMIT 1;
        -- A task whose expiry has passed is never claimed any more, and the sweep has not taken it yet.
        IF FOUND AND v_found.expired AND v_found.id <> p_id THEN
            IF NOT duetime.task_lock(ARRAY[v_found.id]) THEN
                PERFORM set_config('duetime.busy_key', v_name, true);
                RETURN QUERY SELECT 'busy'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
                RETURN;
            END IF;
            WITH late AS (
                DELETE FROM duetime.task AS t
                 WHERE t.id = v_found.id AND t.state IN ('waiting', 'scheduled', 'ready') AND t.expires_at <= clock_timestamp()
                RETURNING t.*
            )
            INSERT INTO duetime.archive (
                id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms,
                retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries,
                delivered_at, progress, worker, history, created_at, finished_at, drop_on)
            SELECT id, shard, queue, 'expired', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts,
                   timeout_ms, retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at,
                   redeliveries, delivered_at, progress, worker, history, created_at, clock_timestamp(),
                   ((clock_timestamp() + p_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
              FROM late
                ON CONFLICT (drop_on, id) DO NOTHING;
            CONTINUE;
        END IF;
        IF NOT FOUND OR (p_on_duplicate = 'version' AND v_found.id <> p_id AND p_version > v_found.version) THEN
            EXIT;
        END IF;
        outcome := CASE
            WHEN v_found.id = p_id THEN 'created'                       -- sent again, and the first sending went in
            WHEN p_on_duplicate = 'keep' THEN 'existing'
            WHEN p_on_duplicate = 'reject' THEN 'refused'
            WHEN p_on_duplicate = 'replace' AND v_found.state > 'ready' THEN 'refused'
            WHEN p_on_duplicate = 'version' AND p_version < v_found.version THEN 'stale'
            WHEN v_found.state IN ('dispatching', 'delivered', 'running', 'succeeded') THEN 'existing'
            WHEN v_found.live THEN 'replaced'
        END;
        EXIT WHEN outcome IS NULL;                                      -- that version failed: make a new task
        -- The requested version may be that of an older task in flight, or of a row that is not here.
        IF outcome = 'replaced' AND p_version <> v_found.version THEN
            SELECT t.id, t.state, t.due_at, t.created_at, t.version, true AS live, duetime.is_here(t.shard) AS is_here INTO v_other
              FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '')
               AND t.version = p_version;
            IF FOUND AND v_other.is_here THEN
                v_found := v_other;
                outcome := 'refused';
            ELSIF FOUND THEN
                PERFORM duetime.require_place(ARRAY[p_shard]);          -- else its own shard has just been closed
                PERFORM set_config('duetime.busy_key', v_name, true);
                outcome := 'busy';
            END IF;
        END IF;
        IF outcome = 'replaced' AND p_depends_on IS NOT NULL THEN
            outcome := coalesce(duetime.depends_on_itself(p_queue, p_partition_key, p_key, ARRAY(
                SELECT unnest(p_depends_on)
                EXCEPT
                SELECT unnest(t.depends_on) FROM duetime.task AS t WHERE t.id = v_found.id AND t.state = 'waiting')), outcome);
        END IF;
        IF outcome = 'replaced' AND NOT duetime.task_lock(ARRAY[v_found.id]) THEN
            PERFORM set_config('duetime.busy_key', v_name, true);
            outcome := 'busy';
        END IF;
        IF outcome = 'replaced' THEN
            IF p_depends_on IS NOT NULL THEN
                v_met := ARRAY(
                    SELECT d.name
                      FROM duetime.task AS t
                     CROSS JOIN LATERAL unnest(t.depends_met) AS d (name)
                     WHERE t.id = v_found.id AND d.name = ANY(p_depends_on)
                       AND coalesce(duetime.standing_of(d.name, p_partition_key), 'dead') = 'dead');
                v_rest := ARRAY(
                    SELECT d.name FROM unnest(p_depends_on) WITH ORDINALITY AS d (name, place)
                     WHERE d.name <> ALL(v_met) ORDER BY d.place);
            END IF;
            UPDATE duetime.task AS t
               SET state = v_state, depends_on = v_rest, depends_met = v_met, wake_at = v_wake_at, due_at = v_due_at,
                   priority = p_priority, payload = p_payload, content_type = p_content_type, headers = p_headers,
                   max_attempts = p_max_attempts, timeout_ms = p_timeout_ms, retry = p_retry, expires_at = p_expires_at,
                   version = p_version, attempts_base = t.attempt, in_order = NULL
             WHERE t.id = v_found.id AND t.state IN ('waiting', 'scheduled', 'ready')
            RETURNING t.state INTO v_found.state;
            CONTINUE WHEN NOT FOUND;                                    -- claimed or cancelled meanwhile
            v_found.due_at := v_due_at;
            v_found.version := p_version;
            IF p_after IS NOT NULL THEN
                INSERT INTO duetime.received (id, source, answer)
                VALUES (p_id, '(replaced)', to_jsonb(v_found) || '{"outcome": "replaced", "superseded": 0}')
                    ON CONFLICT (id) DO NOTHING;                        -- it may be twice in its batch
            END IF;
        END IF;
        RETURN QUERY SELECT outcome, v_found.id, v_found.state, v_found.due_at, v_found.created_at, v_found.version, 0::bigint;
        RETURN;
    END LOOP;

    v_loop := CASE WHEN p_depends_on IS NOT NULL THEN duetime.depends_on_itself(p_queue, p_partition_key, p_key, p_depends_on) END;
    IF v_loop IS NOT NULL THEN
        RETURN QUERY SELECT v_loop, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
        RETURN;
    END IF;

    -- A newer version: unclaimed older ones are superseded, and one in flight gets no further attempt.
    IF p_on_duplicate = 'version' THEN
        IF NOT duetime.task_lock(ARRAY(
            SELECT t.id
              FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
               AND t.version < p_version)) THEN
            PERFORM set_config('duetime.busy_key', v_name, true);
            RETURN QUERY SELECT 'busy'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
            RETURN;
        END IF;
    END IF;

    INSERT INTO duetime.task (
        id, shard, queue, state, wake_at, due_at, priority, payload, content_type, headers, partition_key, max_attempts,
        timeout_ms, retry, expires_at, key, version, depends_on)
    VALUES (p_id, p_shard, p_queue, v_state, v_wake_at, v_due_at, p_priority, p_payload, p_content_type, p_headers,
            p_partition_key, p_max_attempts, p_timeout_ms, p_retry, p_expires_at, p_key, p_version, p_depends_on)
        ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN                                                   -- a row that is not here has the key
        PERFORM duetime.require_place(ARRAY[p_shard]);                  -- or that row: its own shard has just been closed
        PERFORM set_config('duetime.busy_key', v_name, true);
        RETURN QUERY SELECT 'busy'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, 0::bigint;
        RETURN;
    END IF;

    IF p_on_duplicate = 'version' THEN
        WITH gone AS (
            DELETE FROM duetime.task AS t
             WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
               AND t.version < p_version AND t.state IN ('waiting', 'scheduled', 'ready')
            RETURNING t.*
        ), kept AS (
            INSERT INTO duetime.archive (
                id, shard, queue, state, wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts, timeout_ms,
                retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at, redeliveries,
                delivered_at, progress, worker, history, created_at, finished_at, drop_on)
            SELECT id, shard, queue, 'superseded', wake_at, due_at, expires_at, priority, attempt, attempts_base, max_attempts,
                   timeout_ms, retry, payload, content_type, headers, key, partition_key, version, claim_epoch, claimed_at,
                   redeliveries, delivered_at, progress, worker, history, created_at, clock_timestamp(),
                   ((clock_timestamp() + p_keep_ms * interval '1 ms') AT TIME ZONE 'UTC')::date + 1
              FROM gone
                ON CONFLICT (drop_on, id) DO NOTHING
            RETURNING 1
        )
        SELECT count(*) INTO v_superseded FROM kept;
        UPDATE duetime.task AS t
           SET max_attempts = greatest(1, t.attempt - t.attempts_base)
         WHERE t.queue = p_queue AND t.key = p_key AND coalesce(t.partition_key, '') = coalesce(p_partition_key, '') AND duetime.is_here(t.shard)
           AND t.version < p_version;
    END IF;
    RETURN QUERY SELECT 'created'::text, p_id, v_state, v_due_at, clock_timestamp(), p_version, v_superseded;
END
$$;

-- Long enough for an autovacuum to end for it.
SET LOCAL lock_timeout = '1500ms';
ALTER TABLE duetime.received SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
