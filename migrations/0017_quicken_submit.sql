-- Makes duetime.submit quicker, and the ids of submissions ascend within a millisecond, so that nodes apply those of
-- one transaction in their order.
-- Many submissions share one notification: a transaction that notifies holds a lock of the whole server while it
-- commits, so submissions that each notify commit one after the other. 0021_check_submits.sql calls notify_inbox.
-- The functions that duetime.submit calls are in PL/pgSQL, which keeps their plans for the session. PostgreSQL plans a
-- function in SQL anew in each transaction. They set no search path of their own: that of `duetime.submit` is in force.
-- Locks: none that another session waits for; a new sequence and functions.

-- When `duetime.submit` last notified the nodes, in ms since 1970. It is a sequence, because others see its value at
-- once, whatever becomes of the transaction that sets it.
CREATE SEQUENCE duetime.inbox_notified_ms;

-- Notifies the nodes of rows in the inbox, unless another transaction did so within the last 20 ms. A node that finds
-- rows looks again 40 ms later, so it finds those that were committed meanwhile; and it glances at each inbox twice a
-- second. A value in the future is of a clock that was set back, and does not count.
-- A notification goes out at the commit. So a transaction renews the value once, which `duetime.notified` notes: a long
-- one that renewed it again and again would silence all others until its end.
-- Returns whether it notified, so that a caller can assign the answer: PL/pgSQL evaluates an expression that has no
-- subquery itself, and runs the executor for PERFORM.
CREATE FUNCTION duetime.notify_inbox() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    -- A function, and no subquery, for the same reason. NULL before the first notification.
    v_notified_ms bigint := pg_sequence_last_value('duetime.inbox_notified_ms');
    v_now_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    IF (v_notified_ms BETWEEN v_now_ms - 19 AND v_now_ms) IS NOT TRUE
       AND current_setting('duetime.notified', true) IS DISTINCT FROM 'yes' THEN
        PERFORM set_config('duetime.notified', 'yes', true);
        PERFORM setval('duetime.inbox_notified_ms', v_now_ms);
        PERFORM pg_notify('duetime_inbox', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Stood in 0009_create_submit.sql, which describes it. An application may have `standard_conforming_strings` off, and
-- E'' means the same then.
CREATE OR REPLACE FUNCTION duetime.shard_of(p_queue text, p_single boolean, p_partition_key text, p_key text, p_shard_count integer)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_hash bytea := sha256(CASE
        WHEN p_single THEN convert_to(p_queue, 'UTF8')
        WHEN p_partition_key IS NOT NULL THEN convert_to(p_partition_key, 'UTF8')
        WHEN p_key IS NOT NULL THEN convert_to(p_queue, 'UTF8') || E'\\x00'::bytea || convert_to(p_key, 'UTF8')
    END);
BEGIN
    RETURN (((('x' || encode(substring(v_hash FROM 1 FOR 4), 'hex'))::bit(32)::bigint % p_shard_count) * (4294967296 % p_shard_count)
             + ('x' || encode(substring(v_hash FROM 5 FOR 4), 'hex'))::bit(32)::bigint) % p_shard_count)::integer;
END
$$;

-- Stood in 0009_create_submit.sql, which describes it. The first 8 bytes are the millisecond, the version, and the part
-- of the millisecond in 4096ths (RFC 9562, 6.2, method 3). A submission takes longer than a microsecond, so a session
-- mints no two ids with the same ones.
CREATE OR REPLACE FUNCTION duetime.mint(p_at timestamptz, p_shard integer)
RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_us bigint := extract(epoch FROM p_at) * 1000000;
BEGIN
    RETURN encode(set_byte(set_byte(
               overlay(uuid_send(gen_random_uuid())
                       PLACING int8send((v_us / 1000) << 16 | 28672 | (v_us % 1000) * 4096 / 1000) FROM 1 FOR 8),
               14, p_shard >> 8), 15, p_shard & 255), 'hex')::uuid;
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
