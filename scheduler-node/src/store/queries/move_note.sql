-- Notes how far a move is. The fence rows decide; this is for display, and says at which page a copy goes on.
-- $1 shard; $2 step; $3 the page (NULL: none yet); $4 rows that there are to copy, by an estimate; $5 rows and $6 bytes
-- copied; $7 the node; $8 why the move does not get on (NULL: it does); $9 for how many ms claims stopped at the cut
-- (NULL: the cut is still to come); $10 when the move was requested.
-- Guard: no cut begins once the move is called off, and none that has begun can be called off (move_call_off.sql). A
-- note of a move that has ended is not for the next move of its shard: that one would count as copied. Then nothing is
-- noted.
UPDATE duetime.move AS m
   SET step = CASE WHEN m.cut_ended_at IS NULL THEN $2 ELSE 'cleaning' END, page = $3::jsonb, rows_total = coalesce($4, m.rows_total), rows_copied = $5, bytes_copied = $6, node = $7, problem = $8,
       started_at = coalesce(m.started_at, clock_timestamp()), updated_at = clock_timestamp(),
       cut_ended_at = CASE WHEN $2 = 'cleaning' THEN coalesce(m.cut_ended_at, clock_timestamp()) ELSE m.cut_ended_at END,
       cut_began_at = CASE WHEN $2 = 'cleaning' THEN coalesce(m.cut_began_at, clock_timestamp() - $9::bigint * interval '1 ms') ELSE m.cut_began_at END
 WHERE m.shard = $1 AND m.requested_at = $10 AND ($2 <> 'cutting' OR m.called_off_at IS NULL)
