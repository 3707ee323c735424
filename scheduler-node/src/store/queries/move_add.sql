-- Adds moves, all of them or none.
-- $1 the shards; $2 and $3 beside each its source and its target; $4 who asks for them.
-- Returns the targets that do not serve, or NULL; with one of these nothing is added. A shard that moves already is a
-- unique violation (23505), and nothing is added either.
-- Guard: the statement locks the rows of the targets in database_standing. It waits for a drain of one of them, and a
-- drain waits for it and then finds its moves.
WITH asked AS MATERIALIZED (
    SELECT shard, source, target FROM unnest($1::int[], $2::text[], $3::text[]) AS a (shard, source, target)
), target AS (
    INSERT INTO duetime.database_standing AS d (name, standing)
    SELECT t.target, 'serving' FROM (SELECT DISTINCT a.target FROM asked AS a ORDER BY a.target) AS t
        ON CONFLICT (name) DO UPDATE SET standing = d.standing
    RETURNING d.name, d.standing
), closed AS MATERIALIZED (
    SELECT array_agg(name ORDER BY name) AS names FROM target WHERE standing <> 'serving'
), added AS (
    INSERT INTO duetime.move (shard, source, target, requested_by)
    SELECT a.shard, a.source, a.target, $4::text FROM asked AS a CROSS JOIN closed AS c WHERE c.names IS NULL ORDER BY a.shard
)
SELECT c.names AS closed FROM closed AS c
