-- Whether the gate guards, in some table, a shard that `gate_guard` with `p_only` takes out of it. Takes no lock.
SELECT EXISTS (
       SELECT FROM duetime.gate AS g
        WHERE NOT g.shards <@ (SELECT coalesce(range_agg(int4range(s.id, s.id, '[]')), '{}') FROM duetime.shard AS s WHERE s.status <> 'here'))
       AS is_left
