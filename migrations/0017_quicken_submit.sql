-- Makes duetime.submit quicker.
-- Many submissions share one notification: a transaction that notifies holds a lock of the whole server while it
-- commits, so submissions that each notify commit one after the other.
-- The functions that it calls are in PL/pgSQL, which keeps their plans for the session. PostgreSQL plans a function in
-- SQL anew in each transaction. They set no search path of their own: that of `duetime.submit` is in force.
-- Locks: none that another session waits for; a new sequence and functions.

-- When `duetime.submit` last notified the nodes, in ms since 1970. It is a sequence, because others see its value at
-- once, whatever becomes of the transaction that sets it.
CREATE SEQUENCE duetime.inbox_notified_ms;

-- Notifies the nodes of rows in the inbox, unless another submission did so within the last 20 ms. A node that finds
-- rows looks again 40 ms later, so it finds those that were committed meanwhile; and it glances at each inbox twice a
-- second. A value in the future is of a clock that was set back, and does not count.
CREATE FUNCTION duetime.notify_inbox() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    IF (SELECT s.last_value NOT BETWEEN v_now_ms - 19 AND v_now_ms FROM duetime.inbox_notified_ms AS s) THEN
        PERFORM setval('duetime.inbox_notified_ms', v_now_ms);
        PERFORM pg_notify('duetime_inbox', '');
    END IF;
END
$$;

-- The next two stood in 0009_create_submit.sql, which describes them.

CREATE OR REPLACE FUNCTION duetime.shard_of(p_queue text, p_single boolean, p_partition_key text, p_key text, p_shard_count integer)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_hash bytea := sha256(CASE
        WHEN p_single THEN convert_to(p_queue, 'UTF8')
        WHEN p_partition_key IS NOT NULL THEN convert_to(p_partition_key, 'UTF8')
        WHEN p_key IS NOT NULL THEN convert_to(p_queue, 'UTF8') || '\x00'::bytea || convert_to(p_key, 'UTF8')
    END);
BEGIN
    RETURN (((('x' || encode(substring(v_hash FROM 1 FOR 4), 'hex'))::bit(32)::bigint % p_shard_count) * (4294967296 % p_shard_count)
             + ('x' || encode(substring(v_hash FROM 5 FOR 4), 'hex'))::bit(32)::bigint) % p_shard_count)::integer;
END
$$;

CREATE OR REPLACE FUNCTION duetime.mint(p_at timestamptz, p_shard integer)
RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_bytes bytea := uuid_send(gen_random_uuid());
BEGIN
    RETURN encode(set_byte(set_byte(set_byte(
               overlay(v_bytes PLACING substring(int8send(floor(extract(epoch FROM p_at) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
               6, get_byte(v_bytes, 6) & 15 | 112), 14, p_shard >> 8), 15, p_shard & 255), 'hex')::uuid;
END
$$;

-- Stood in 0014_place_submits.sql, which describes it. It reads one row of the primary key in the plan that PostgreSQL
-- keeps for the session, also where the table is so small that a full scan seems cheaper.
CREATE OR REPLACE FUNCTION duetime.has_shard(p_shard integer) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM (SELECT s.id, s.status FROM duetime.shard AS s WHERE s.id >= p_shard ORDER BY s.id LIMIT 1) AS next
         WHERE next.id = p_shard AND next.status IN ('here', 'leaving'));
END
$$;

ALTER FUNCTION duetime.any_shard RESET search_path;
ALTER FUNCTION duetime.submit_check RESET search_path;

-- Stood in 0014_place_submits.sql; 0009_create_submit.sql describes it. It notifies by notify_inbox.
-- Most submissions have no options and no key. One expression finds nothing wrong with them, where submit_check would
-- look for the wrong field, and they take any shard.
CREATE OR REPLACE FUNCTION duetime.submit(
    queue text, payload jsonb, due_at timestamptz DEFAULT now(), key text DEFAULT NULL, options jsonb DEFAULT '{}')
RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    v_shard_count integer;
    v_is_single boolean;
    v_shard integer;
    v_id uuid;
    v_now timestamptz := clock_timestamp();
BEGIN
    IF (submit.options = '{}' AND submit.key IS NULL AND submit.queue ~ '^[A-Za-z0-9._-]{1,128}$'
        AND submit.due_at < '9999-12-31 23:59:59+00' AND octet_length(submit.payload::text) <= 1048576) IS NOT TRUE
    THEN
        PERFORM duetime.submit_check(submit.queue, submit.payload, submit.due_at, submit.key, submit.options);
    END IF;
    SELECT m.shard_count,
           EXISTS (SELECT FROM duetime.queue AS q WHERE q.name = submit.queue AND q.policy ->> 'placement' = 'single')
      INTO STRICT v_shard_count, v_is_single
      FROM duetime.meta AS m;
    IF v_is_single OR submit.key IS NOT NULL OR submit.options ? 'partition_key' THEN
        v_shard := duetime.shard_of(
            submit.queue, v_is_single, submit.options ->> 'partition_key', submit.key, v_shard_count);
    END IF;
    v_shard := coalesce(v_shard, duetime.any_shard(v_shard_count));
    v_id := duetime.mint(v_now, v_shard);
    INSERT INTO duetime.inbox (id, shard, request, submitted_at)
    VALUES (v_id, v_shard, submit.options || jsonb_build_object(
                'queue', submit.queue, 'payload', submit.payload, 'key', submit.key,
                -- A due time in the past means now.
                'due_at', to_char(greatest(submit.due_at, v_now) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), v_now);
    PERFORM duetime.notify_inbox();
    RETURN v_id;
END
$$;
