-- Makes what the move of a shard needs in its source and in its target: the gate that guards the rows of a shard that
-- moves, the notes of what changes during the copy, and the functions that write into both databases.
-- Locks: none that another session waits for, but a moment of ACCESS EXCLUSIVE on `shard` for a column with a constant
-- default. The gate itself is made when the first shard moves.

-- Counts the writes of the owner that fills an arriving shard. A write that was held up and comes late does nothing.
ALTER TABLE duetime.shard ADD COLUMN move_write bigint NOT NULL DEFAULT 0;

-- The shards whose rows the gate guards in each table. A shard is in here before its status leaves `here`, and before
-- its first copied row arrives.
CREATE TABLE duetime.gate (
    guarded  text PRIMARY KEY CHECK (guarded IN ('task', 'archive', 'received')),
    shards   int4multirange NOT NULL DEFAULT '{}'
);
INSERT INTO duetime.gate (guarded) VALUES ('task'), ('archive'), ('received');

-- Rows of a leaving shard that were written since the copy began. Each write notes its row again: a note that the mover
-- has read says nothing of a write after that.
CREATE TABLE duetime.move_change (
    shard    integer NOT NULL,
    number   bigint GENERATED ALWAYS AS IDENTITY,
    -- The table of the row: `task`, `archive` or `received`.
    guarded  text NOT NULL,
    id       uuid NOT NULL,
    -- Of a row of the archive: its partition.
    drop_on  date,
    PRIMARY KEY (shard, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The shard that a task's id names, in the format of common/src/ids.rs.
CREATE FUNCTION duetime.shard_in(p_id uuid) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT get_byte(uuid_send(p_id), 14) * 256 + get_byte(uuid_send(p_id), 15)
$$;

-- Lets a write of a guarded row pass, notes it, or refuses it, by the status of its shard. It locks the fence FOR
-- SHARE, so a change of the status waits for this writer, and a writer that waited sees the new status. A transaction
-- that takes its snapshot only once fails with a serialization failure there.
-- A note of an arrival may be deleted anywhere: that happens long after it could matter.
-- The argument is the table that the trigger guards; a partition has another name. The functions of a move set
-- `duetime.mover` while they write, and check the status by themselves. (A SET clause of a function would need a
-- superuser.)
CREATE FUNCTION duetime.gate_pass() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_row record;
    v_shard integer;
    v_drop_on date;
    v_status duetime.shard_status;
BEGIN
    IF current_setting('duetime.mover', true) = 'on' THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        v_row := OLD;
    ELSE
        v_row := NEW;
    END IF;
    IF TG_ARGV[0] = 'received' THEN
        v_shard := duetime.shard_in(v_row.id);
    ELSE
        v_shard := v_row.shard;
    END IF;
    IF TG_ARGV[0] = 'archive' THEN
        v_drop_on := v_row.drop_on;
    END IF;
    SELECT s.status INTO v_status FROM duetime.shard AS s WHERE s.id = v_shard FOR SHARE;
    IF v_status = 'leaving' THEN
        INSERT INTO duetime.move_change (shard, guarded, id, drop_on) VALUES (v_shard, TG_ARGV[0], v_row.id, v_drop_on);
    ELSIF v_status IS DISTINCT FROM 'here' AND NOT (TG_OP = 'DELETE' AND TG_ARGV[0] = 'received') THEN
        RAISE EXCEPTION 'shard % has moved to another database', v_shard USING ERRCODE = 'DT001';
    END IF;
    RETURN NULL;
END
$$;

-- Has the gate guard these shards in one table: those besides the ones that it guards already, or, if `p_only`, those
-- and whatever is not simply `here`. Returns whether the gate had to be made anew.
--
-- That waits for every transaction that has written into the table, and writers wait for it meanwhile, so it gives up
-- soon. A vacuum would make it give up each time: PostgreSQL ends one that a session waits for, but only after
-- `deadlock_timeout` (1 s). So the function first waits for a lock that conflicts with a vacuum and with no writer.
CREATE FUNCTION duetime.gate_guard(p_guarded text, p_shards integer[], p_only boolean) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '3s' AS $$
DECLARE
    v_asked int4multirange := (SELECT coalesce(range_agg(int4range(s, s, '[]')), '{}') FROM unnest(p_shards) AS s);
    v_before int4multirange;
    v_after int4multirange;
    v_shard text;
BEGIN
    SELECT g.shards INTO STRICT v_before FROM duetime.gate AS g WHERE g.guarded = p_guarded;
    IF NOT p_only AND v_asked <@ v_before THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE duetime.%I IN SHARE UPDATE EXCLUSIVE MODE', p_guarded);
    PERFORM set_config('lock_timeout', '100ms', true);
    EXECUTE format('LOCK TABLE duetime.%I IN SHARE ROW EXCLUSIVE MODE', p_guarded);
    -- A shard that begins to move reads this row FOR SHARE. Its status is seen below, or it sees the new row.
    SELECT g.shards INTO v_before FROM duetime.gate AS g WHERE g.guarded = p_guarded FOR UPDATE;
    IF p_only THEN
        v_after := v_asked + (SELECT coalesce(range_agg(int4range(s.id, s.id, '[]')), '{}') FROM duetime.shard AS s WHERE s.status <> 'here');
    ELSE
        v_after := v_before + v_asked;
    END IF;
    IF v_after = v_before THEN
        RETURN false;
    END IF;
    UPDATE duetime.gate SET shards = v_after WHERE guarded = p_guarded;
    v_shard := CASE WHEN p_guarded = 'received' THEN 'duetime.shard_in(%s.id)' ELSE '%s.shard' END;
    EXECUTE format('CREATE OR REPLACE TRIGGER gate_in AFTER INSERT OR UPDATE ON duetime.%I FOR EACH ROW
                    WHEN (' || format(v_shard, 'NEW') || ' <@ %L::int4multirange) EXECUTE FUNCTION duetime.gate_pass(%L)',
                   p_guarded, v_after, p_guarded);
    EXECUTE format('CREATE OR REPLACE TRIGGER gate_out AFTER DELETE ON duetime.%I FOR EACH ROW
                    WHEN (' || format(v_shard, 'OLD') || ' <@ %L::int4multirange) EXECUTE FUNCTION duetime.gate_pass(%L)',
                   p_guarded, v_after, p_guarded);
    RETURN true;
END
$$;

-- Whether the gate guards a shard in every table. No shard can drop out of the gate before the caller has ended.
CREATE FUNCTION duetime.gate_guards(p_shard integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM duetime.gate AS g WHERE p_shard <@ g.shards ORDER BY g.guarded FOR SHARE;
    RETURN (SELECT bool_and(p_shard <@ g.shards) FROM duetime.gate AS g);
END
$$;

-- Begins the move of a shard in its source: from here on the gate notes what changes. The caller owns the shard under
-- `p_epoch`. Also true if the shard is leaving already.
CREATE FUNCTION duetime.move_leave(p_shard integer, p_epoch bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    -- Nodes of the first release know no map of the shards. A change of a queue locks `meta` before `shard`, too.
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    UPDATE duetime.shard AS s SET status = 'leaving' WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'here';
    RETURN EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'leaving');
END
$$;

-- Begins the move of a shard in its target, or takes one over that another owner of the source has begun: after this no
-- earlier owner can write. `p_epoch` is the epoch of the caller in the source.
CREATE FUNCTION duetime.move_arrive(p_shard integer, p_epoch bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    -- All nodes read the map again after a change of a status, so the statements below run only if there is one.
    IF EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch) THEN
        RETURN true;
    END IF;
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    INSERT INTO duetime.shard AS s (id, status, move_epoch) VALUES (p_shard, 'arriving', p_epoch)
        ON CONFLICT (id) DO UPDATE SET status = 'arriving', move_epoch = p_epoch, move_write = 0
     WHERE s.status = 'gone';
    UPDATE duetime.shard AS s SET move_epoch = p_epoch, move_write = 0
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch < p_epoch;
    RETURN EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch);
END
$$;

-- Writes a page of the copy, or the rows of a round, into an arriving shard: deletes the named rows, then inserts those
-- that the source has. False: the shard does not arrive any more, a newer owner fills it, or this write comes late.
--
-- A page may hold a task whose key an older page gave to a task that has ended since. A later round tells so; until
-- then the older row gives way.
CREATE FUNCTION duetime.move_write(
    p_shard integer, p_epoch bigint, p_write bigint,
    p_task_ids uuid[], p_tasks text, p_days date[], p_archive_ids uuid[], p_archived text, p_received_ids uuid[], p_received text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_tasks duetime.task[] := p_tasks::duetime.task[];
    v_archived duetime.archive[] := p_archived::duetime.archive[];
    v_received duetime.received[] := p_received::duetime.received[];
BEGIN
    UPDATE duetime.shard AS s SET move_write = p_write
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch AND s.move_write < p_write;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM set_config('duetime.mover', 'on', true);
    DELETE FROM duetime.task AS t WHERE t.id = ANY(p_task_ids) AND t.shard = p_shard;
    DELETE FROM duetime.task AS t
     USING unnest(v_tasks) AS n
     WHERE n.key IS NOT NULL AND t.key IS NOT NULL AND t.shard = p_shard AND t.queue = n.queue AND t.key = n.key
       AND coalesce(t.partition_key, '') = coalesce(n.partition_key, '') AND t.version = n.version;
    DELETE FROM duetime.task AS t
     USING unnest(v_tasks) AS n
     WHERE n.in_order AND n.partition_key IS NOT NULL AND t.in_order AND t.shard = p_shard
       AND t.partition_key = n.partition_key AND t.queue = n.queue;
    INSERT INTO duetime.task SELECT n.* FROM unnest(v_tasks) AS n WHERE n.shard = p_shard;
    IF p_archive_ids <> '{}' THEN
        DELETE FROM duetime.archive AS a
         USING unnest(p_days, p_archive_ids) AS n (drop_on, id)
         WHERE a.drop_on = n.drop_on AND a.id = n.id AND a.shard = p_shard;
        INSERT INTO duetime.archive SELECT n.* FROM unnest(v_archived) AS n WHERE n.shard = p_shard;
    END IF;
    IF p_received_ids <> '{}' THEN
        DELETE FROM duetime.received AS r WHERE r.id = ANY(p_received_ids);
        INSERT INTO duetime.received SELECT n.* FROM unnest(v_received) AS n;
    END IF;
    PERFORM set_config('duetime.mover', '', true);
    RETURN true;
END
$$;

-- Ends all writes to a shard in its source, for the last part of its move: no claim of the caller's epoch commits after
-- this, and the gate refuses every other writer. It waits for the writers in flight, but gives up soon, because the
-- tasks of the shard wait meanwhile. Returns the new epoch, or NULL: the caller does not own the shard any more.
CREATE FUNCTION duetime.move_close(p_shard integer, p_epoch bigint) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
DECLARE
    v_epoch bigint;
BEGIN
    UPDATE duetime.shard AS s SET status = 'gone', epoch = s.epoch + 1
     WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'leaving'
    RETURNING s.epoch INTO v_epoch;
    RETURN v_epoch;
END
$$;

-- Does the same in turn with the statements that lock a fence: overlapping ones can renew a row's shared lock for ever.
CREATE FUNCTION duetime.move_close_in_turn(p_shard integer, p_epoch bigint) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN duetime.move_close(p_shard, p_epoch);
END
$$;

-- Ends the move of a shard that was called off, in its source.
CREATE FUNCTION duetime.move_return(p_shard integer, p_epoch bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    UPDATE duetime.shard AS s SET status = 'here' WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'leaving';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM duetime.move_change AS c WHERE c.shard = p_shard;
    RETURN true;
END
$$;

-- Deletes rows that a shard left behind. Only in the very gap that the move made: a shard that has come back, or that
-- goes through the last part of a later move, keeps its rows. Returns whether the rows may be deleted.
CREATE FUNCTION duetime.move_sweep(
    p_shard integer, p_epoch bigint, p_task_ids uuid[], p_days date[], p_archive_ids uuid[], p_received_ids uuid[])
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'gone' AND s.epoch = p_epoch FOR SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM set_config('duetime.mover', 'on', true);
    DELETE FROM duetime.task AS t WHERE t.id = ANY(p_task_ids) AND t.shard = p_shard;
    IF p_archive_ids <> '{}' THEN
        DELETE FROM duetime.archive AS a
         USING unnest(p_days, p_archive_ids) AS n (drop_on, id)
         WHERE a.drop_on = n.drop_on AND a.id = n.id AND a.shard = p_shard;
    END IF;
    IF p_received_ids <> '{}' THEN
        DELETE FROM duetime.received AS r WHERE r.id = ANY(p_received_ids);
    END IF;
    PERFORM set_config('duetime.mover', '', true);
    RETURN true;
END
$$;
