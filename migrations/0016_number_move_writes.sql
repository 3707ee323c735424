-- Numbers what a move writes in both databases, so that what comes late does nothing, and lets a target receive a shard
-- only as its mover has seen it. The forms of 0012_gate_shards.sql knew no more than an epoch. A move that was called
-- off and begun anew under the same epoch then accepted a held-up write of the former one: a cancelled task came back,
-- the shard lost its place, or the cut came before the copy was complete. A former owner could begin its move long
-- after the shard had come, and left again. Nodes of 0.2.0 go on calling those forms.
-- Two functions tell what rows take on their way, so that a page of them is bounded.
-- Locks: none that another session waits for; functions only.
--
-- An epoch has one owner, and that owner numbers its writes in ascending order. A fence row keeps the last one: its
-- epoch in `move_epoch`, its number in `move_write`. In the target that is the epoch in the source. In the source it is
-- the row's own epoch, or a lower one while its owner has written nothing yet: whatever opens or acquires a shard
-- raises the epoch above `move_epoch`. So a number counts beside its own epoch only. Another epoch says nothing about
-- it, and the guards of the epochs decide. A write that is sent again has a new number, above those that its sender has
-- read in both rows. So no number holds a move up, also where a loss has brought an epoch twice.

-- About how many bytes a JSON value or an array has as text. Nothing is read for it but the row: to measure what is
-- compressed, PostgreSQL decompresses it, and some hundred long histories take longer than a statement may. A value
-- that is compressed counts 16 times its stored size, but no more than 250,000 bytes, which 100 attempts with long
-- errors have. If twice its stored size is more, it counts that. So what repeats itself may be ten times as long, and
-- 16 times where lz4 compresses it.
CREATE FUNCTION duetime.packed_bytes(p_value anyelement) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN pg_column_compression(p_value) IS NULL THEN coalesce(pg_column_size(p_value), 0)
                ELSE greatest(2 * pg_column_size(p_value), least(16 * pg_column_size(p_value), 250000)) END::bigint
$$;

-- About how many bytes a row takes on its way to another database. The length of a long text is known without a look at
-- its parts.
CREATE FUNCTION duetime.row_bytes(
    p_payload bytea, p_result text, p_status_msg text, p_headers jsonb, p_envelope jsonb, p_history jsonb,
    p_depends_on text[], p_depends_met text[])
RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT 500 + octet_length(p_payload) + coalesce(octet_length(p_result), 0) + coalesce(octet_length(p_status_msg), 0)
         + duetime.packed_bytes(p_headers) + duetime.packed_bytes(p_envelope) + duetime.packed_bytes(p_history)
         + duetime.packed_bytes(p_depends_on) + duetime.packed_bytes(p_depends_met)
$$;

-- Begins the move of a shard in its target. `p_epoch` is the epoch of the caller in the source. `p_write` is the number
-- of the caller's last write: that one and those before it do nothing from here on.
--
-- The target must be as the caller has seen it: without a row (NULL), or `gone` with these three numbers. Before and
-- after that look the caller has seen the source open under p_epoch, and it was open in between: a close raises the
-- epoch. So the target was no source of a cut at the look. To become one it must open, which raises its epoch. A move
-- that begins there and is called off changes the other two numbers. Nothing here depends on which of the two
-- databases has the higher epoch: a restore may have turned that round, and so may nodes of 0.2.0.
--
-- Executed late, it may leave an `arriving` row without rows of tasks, while another move has taken the shard to a
-- third database. The next move to this database goes on there. Beside the `gone` row of the former source it looks
-- like a cut, and it must not open: the mover first looks for its shard in the databases that it has read.
CREATE FUNCTION duetime.move_arrive(
    p_shard integer, p_epoch bigint, p_write bigint,
    p_seen_epoch bigint, p_seen_move_epoch bigint, p_seen_move_write bigint)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    -- A row that was seen may have gone since: a node of 0.2.0 deletes that of a move which was called off.
    INSERT INTO duetime.shard AS s (id, status, move_epoch, move_write)
    SELECT p_shard, 'arriving', p_epoch, p_write
     WHERE p_seen_epoch IS NULL OR EXISTS (SELECT FROM duetime.shard AS e WHERE e.id = p_shard)
        ON CONFLICT (id) DO UPDATE SET status = 'arriving', move_epoch = p_epoch, move_write = p_write
     WHERE s.status = 'gone' AND s.epoch = p_seen_epoch AND s.move_epoch = p_seen_move_epoch AND s.move_write = p_seen_move_write;
    RETURN FOUND;
END
$$;

-- Takes over a copy that an owner of the source has begun: after this no earlier owner writes or opens there. `p_epoch`
-- and `p_write` as in move_arrive. Only of a shard that arrives: one that is `gone` may have been here, and may be the
-- source of another move by now. Also true if the caller fills it already.
CREATE FUNCTION duetime.move_fill(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    UPDATE duetime.shard AS s
       SET move_epoch = p_epoch, move_write = CASE WHEN s.move_epoch = p_epoch THEN greatest(s.move_write, p_write) ELSE p_write END
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch <= p_epoch;
    RETURN FOUND;
END
$$;

-- Stood in 0012_gate_shards.sql, which describes it. Nodes of 0.2.0 call it, and tell neither a number nor what they
-- have seen. So a shard that is gone must not have been here, or on its way, under a later epoch than the caller's: the
-- next owner of the source fills it under a higher one, and an open raises that once more. Where a restore has turned
-- the order of the epochs round, or nodes of both versions have moved the shard, the move waits for an owner of a later
-- version. That is an error: after a false, 0.2.0 would try again at once and without end, and have all nodes read the
-- map each time. After an error it waits, and shows why.
CREATE OR REPLACE FUNCTION duetime.move_arrive(p_shard integer, p_epoch bigint) RETURNS boolean
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
     WHERE s.status = 'gone' AND s.epoch <= p_epoch AND s.move_epoch <= p_epoch;
    UPDATE duetime.shard AS s SET move_epoch = p_epoch, move_write = 0
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch < p_epoch;
    IF EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'gone') THEN
        RAISE EXCEPTION 'shard % was here under a later epoch than %: only a node of a later version moves it here', p_shard, p_epoch
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch);
END
$$;

-- Begins the move of a shard in its source: from here on the gate notes what changes. The caller owns the shard under
-- `p_epoch`. Also true if the shard is leaving already. After a later write of the caller, as the return of a move that
-- was called off, it does nothing: a shard that leaves without a move would note its changes for ever.
CREATE FUNCTION duetime.move_leave(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    -- Nodes of the first release know no map of the shards. A change of a queue locks `meta` before `shard`, too.
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    UPDATE duetime.shard AS s SET status = 'leaving', move_epoch = p_epoch, move_write = p_write
     WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'here' AND (s.move_epoch <> p_epoch OR s.move_write < p_write);
    RETURN EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'leaving');
END
$$;

-- Does the same in turn with the statements that lock a fence: overlapping ones can renew a row's shared lock for ever.
-- What else there is to wait for comes before the table's lock, because nothing fires while that is held. One open
-- transaction of an application that wrote a task of any guarded shard makes each try fail, after 75 ms.
CREATE FUNCTION duetime.move_leave_in_turn(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN duetime.move_leave(p_shard, p_epoch, p_write);
END
$$;

-- Ends all writes to a shard in its source, for the last part of its move: no claim of the caller's epoch commits after
-- this, and the gate refuses every other writer. It waits for the writers in flight, but gives up soon, because the
-- tasks of the shard wait meanwhile. Returns the new epoch, or NULL: the caller does not own the shard any more, or a
-- later write of it came before. The next move of the same owner may have copied little by now, and would cut.
CREATE FUNCTION duetime.move_close(p_shard integer, p_epoch bigint, p_write bigint) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
DECLARE
    v_epoch bigint;
BEGIN
    UPDATE duetime.shard AS s SET status = 'gone', epoch = s.epoch + 1, move_epoch = p_epoch, move_write = p_write
     WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status = 'leaving' AND (s.move_epoch <> p_epoch OR s.move_write < p_write)
    RETURNING s.epoch INTO v_epoch;
    RETURN v_epoch;
END
$$;

-- Does the same in turn, as move_leave_in_turn does.
CREATE FUNCTION duetime.move_close_in_turn(p_shard integer, p_epoch bigint, p_write bigint) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    RETURN duetime.move_close(p_shard, p_epoch, p_write);
END
$$;

-- Ends the move of a shard that was called off, in its source. Also of one that has not left: a leave that comes late
-- does nothing from here on. Returns false, and forgets no note, if the caller does not own the shard any more, or if a
-- later write of it came before, as the leave of its next move.
CREATE FUNCTION duetime.move_return(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    UPDATE duetime.shard AS s SET status = 'here', move_epoch = p_epoch, move_write = p_write
     WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status IN ('here', 'leaving')
       AND (s.move_epoch <> p_epoch OR s.move_write < p_write);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM duetime.move_change AS c WHERE c.shard = p_shard;
    RETURN true;
END
$$;

-- Does the same in turn, as move_leave_in_turn does, but for the notes of changes: nothing fires while the table is
-- locked, and to delete many notes takes long. Notes that stay do no harm. The clean-up of the target deletes them
-- (clean_target in copy.rs), or the next move takes each for a change and copies its row as it is then.
CREATE FUNCTION duetime.move_return_in_turn(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '75ms' AS $$
BEGIN
    LOCK TABLE duetime.shard IN EXCLUSIVE MODE;
    UPDATE duetime.shard AS s SET status = 'here', move_epoch = p_epoch, move_write = p_write
     WHERE s.id = p_shard AND s.epoch = p_epoch AND s.status IN ('here', 'leaving')
       AND (s.move_epoch <> p_epoch OR s.move_write < p_write);
    RETURN FOUND;
END
$$;
