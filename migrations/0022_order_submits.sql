-- Makes the ids of submissions in SQL ascend within a millisecond, so that nodes apply those of one transaction in
-- their order.
-- Locks: none that another session waits for; a function.

-- Stood in 0017_quicken_submit.sql; 0009_create_submit.sql describes it. The first 8 bytes are the millisecond, the
-- version, and the part of the millisecond in 4096ths (RFC 9562, 6.2, method 3). A submission takes longer than a
-- microsecond, so a session mints no two ids with the same ones.
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
