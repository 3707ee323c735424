-- Lets a move say which writes into its target came before it. The form of 0012_gate_shards.sql counted them from 0
-- again. A move that was called off and begun anew under the same epoch then accepted a held-up write of the former
-- one, and a cancelled task came back. Nodes of 0.2.0 go on calling that form.
-- Locks: none that another session waits for; a new function only.

-- Begins the move of a shard in its target, or takes one over that another owner of the source has begun: after this no
-- earlier owner can write. `p_epoch` is the epoch of the caller in the source. `p_write` is the number of the caller's
-- last write: that one and those before it do nothing from here on.
CREATE FUNCTION duetime.move_arrive(p_shard integer, p_epoch bigint, p_write bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    IF NOT duetime.gate_guards(p_shard) THEN
        RETURN false;
    END IF;
    -- All nodes read the map again after a change of a status, so the other statements run only if there is one.
    UPDATE duetime.shard AS s SET move_write = greatest(s.move_write, p_write)
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch;
    IF FOUND THEN
        RETURN true;
    END IF;
    UPDATE duetime.meta AS m SET serves = 11 WHERE m.serves < 11;
    INSERT INTO duetime.shard AS s (id, status, move_epoch, move_write) VALUES (p_shard, 'arriving', p_epoch, p_write)
        ON CONFLICT (id) DO UPDATE SET status = 'arriving', move_epoch = p_epoch, move_write = p_write
     WHERE s.status = 'gone';
    UPDATE duetime.shard AS s SET move_epoch = p_epoch, move_write = p_write
     WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch < p_epoch;
    RETURN EXISTS (SELECT FROM duetime.shard AS s WHERE s.id = p_shard AND s.status = 'arriving' AND s.move_epoch = p_epoch);
END
$$;
