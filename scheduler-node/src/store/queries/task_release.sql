-- Checks tasks that wait for others. A task whose dependencies have all succeeded becomes `scheduled`, due at its own
-- due time and not before now. Any other task whose `wake_at` has passed gets a new one. A task that is due later
-- wakes when it is due, and six hours from now at the latest, for a success may be dropped after a day. It wakes at a
-- random moment of the three hours before that, so that those of a burst do not come together. One that is due
-- wakes later the longer it waits (half of that time, a second to a quarter of an hour).
-- Guard: still `waiting`, and not written since the snapshot, in which the tasks of its names are read. The writer of
-- a success and the writer of a waiting task both run this after their commit. One of the two sees the other, or skips
-- the row because the first locks it or has just written it; then it asks for that row again.
-- If a node dies in between, the check happens at `wake_at`.
-- The statement skips a row that another transaction locks, so an application's open transaction delays its own task
-- and no other.
-- Of a task in $1 it checks every name. Of a dependent of a success it checks that name, and the others only up to the
-- first that has not succeeded: the success of each of them is checked in its own turn.
-- Finds the dependents of a success by its name. Each partition may use the same names, so where more than 200 tasks
-- wait for that name, and fewer in the success's partition, it reads those of the partition. It counts to 10,000.
-- Looks up the standing of such a name once in each partition, however many tasks wait for it: a look-up probes each
-- partition of the archive. The comparison with `true` keeps the names in one hash table for all tasks.
-- Checks the first $6 dependents after $5, by their ids, for a statement has five seconds. The caller asks for more.
-- $1 ids; $2 names and $3 partition keys (pairwise) of tasks that succeeded, whose dependents are checked too;
-- $4 shards whose dependents are left out, because their place is another database; $5 the id after which dependents
-- are checked; $6 the limit of dependents that are checked; $7 the shards of those that succeeded, where their
-- dependents are too. A shard of these that has moved to another database fails the statement (DT001): what is left
-- here of a success would let no task go.
-- Returns the tasks that are scheduled now, the tasks that it skipped (`held`), and the last of $6 dependents
-- (`is_page_end`).
WITH common AS MATERIALIZED (
    SELECT n.name, few.tasks
      FROM (SELECT DISTINCT unnest($2::text[]) AS name) AS n
     CROSS JOIN LATERAL (
           SELECT count(*) AS tasks
             FROM (SELECT
                     FROM duetime.task AS t
                    WHERE t.depends_on @> ARRAY[n.name] AND t.state = 'waiting'
                    LIMIT 10001) AS waiting) AS few
     WHERE few.tasks > 200
), done AS MATERIALIZED (
    SELECT d.name, d.partition_key, coalesce(few.tasks < c.tasks, false) AS by_partition
      FROM unnest($2::text[], $3::text[]) AS d (name, partition_key)
      LEFT JOIN common AS c ON c.name = d.name AND d.partition_key IS NOT NULL
      LEFT JOIN LATERAL (
           SELECT count(*) AS tasks
             FROM (SELECT
                     FROM duetime.task AS t
                    WHERE c.tasks > 0 AND t.partition_key = d.partition_key AND t.state = 'waiting'
                    LIMIT 10001) AS waiting) AS few ON true
     WHERE (SELECT duetime.require_place($7::int[]))
), waits_for AS MATERIALIZED (
    SELECT t.id, t.seen
      FROM done AS d
     CROSS JOIN LATERAL (
           SELECT t.id, t.xmin::text AS seen, t.depends_on, t.shard
             FROM duetime.task AS t
            WHERE d.by_partition AND t.partition_key = d.partition_key AND t.state = 'waiting'
           OFFSET 0) AS t                                          -- keeps the index of names out of it
     WHERE t.depends_on @> ARRAY[d.name] AND t.shard <> ALL($4::int[])
    UNION
    SELECT t.id, t.xmin::text
      FROM done AS d
      JOIN duetime.task AS t
        ON t.depends_on @> ARRAY[d.name] AND t.state = 'waiting' AND t.partition_key IS NOT DISTINCT FROM d.partition_key
       AND t.shard <> ALL($4::int[])
     WHERE NOT d.by_partition
), dependent AS MATERIALIZED (                                     -- apart, so that the order chooses no index above
    SELECT id, seen FROM waits_for WHERE id > $5::uuid ORDER BY id LIMIT $6::bigint
), candidate AS MATERIALIZED (
    SELECT t.id, t.xmin::text AS seen FROM unnest($1::uuid[]) AS asked (id) JOIN duetime.task AS t ON t.id = asked.id
    UNION
    SELECT id, seen FROM dependent
), succeeded AS MATERIALIZED (
    SELECT needed.name, coalesce(needed.partition_key, '') AS partition_key
      FROM (SELECT DISTINCT d.name, t.partition_key
              FROM candidate
              JOIN duetime.task AS t USING (id)
             CROSS JOIN unnest(t.depends_on) AS d (name)
             WHERE t.state = 'waiting' AND (cardinality($1::uuid[]) > 0 OR d.name = ANY($2::text[]))
            OFFSET 0) AS needed                                       -- looks a name up once, not once for each task
     WHERE duetime.standing_of(needed.name, needed.partition_key) = 'succeeded'
), looked AS MATERIALIZED (
    SELECT t.id, t.depends_on, ARRAY(
           SELECT name
             FROM unnest(t.depends_on) WITH ORDINALITY AS d (name, place)
            WHERE ((name, coalesce(t.partition_key, '')) IN (SELECT s.name, s.partition_key FROM succeeded AS s)) = true
            ORDER BY place) AS met,
           cardinality($1::uuid[]) = 0 AND NOT EXISTS (               -- a look has asked for all names above
           SELECT
             FROM unnest(t.depends_on) AS d (name)
            WHERE CASE WHEN name = ANY($2::text[])
                       THEN (name, coalesce(t.partition_key, '')) NOT IN (SELECT s.name, s.partition_key FROM succeeded AS s)
                       ELSE duetime.standing_of(name, t.partition_key) IS DISTINCT FROM 'succeeded' END) AS all_met
      FROM candidate AS c
      JOIN duetime.task AS t ON t.id = c.id
     WHERE t.state = 'waiting' AND t.xmin::text = c.seen
     ORDER BY t.id
       FOR UPDATE OF t SKIP LOCKED
), judged AS (
    SELECT l.id, rest.names AS rest, cardinality(rest.names) = 0 AS free,
           ARRAY(SELECT name FROM unnest(l.depends_on) WITH ORDINALITY AS d (name, place) WHERE name <> ALL(rest.names) ORDER BY place) AS met
      FROM looked AS l
     CROSS JOIN LATERAL (
           SELECT ARRAY(SELECT name FROM unnest(l.depends_on) WITH ORDINALITY AS d (name, place)
                         WHERE NOT l.all_met AND name <> ALL(l.met) ORDER BY place) AS names) AS rest
), moved AS (
    UPDATE duetime.task AS t
       SET state = CASE WHEN l.free THEN 'scheduled' ELSE t.state END,
           due_at = CASE WHEN l.free THEN greatest(t.due_at, clock_timestamp()) ELSE t.due_at END,
           depends_on = l.rest, depends_met = coalesce(t.depends_met, '{}') || l.met,
           wake_at = CASE WHEN l.free THEN greatest(t.due_at, clock_timestamp())
                          WHEN t.wake_at > clock_timestamp() THEN least(t.wake_at, clock_timestamp() + (0.5 + random() / 2) * interval '6 hours')
                          WHEN t.due_at > clock_timestamp() THEN least(t.due_at, clock_timestamp() + (0.5 + random() / 2) * interval '6 hours')
                          ELSE clock_timestamp() + least(greatest((clock_timestamp() - t.due_at) / 2, interval '1 s'), interval '15 min') END
      FROM judged AS l
     WHERE t.id = l.id AND t.state = 'waiting' AND (l.free OR l.met <> '{}' OR t.wake_at <= clock_timestamp())
    RETURNING t.id, t.queue, t.due_at, t.state
)
SELECT id, queue, due_at, false AS held, false AS is_page_end FROM moved WHERE state = 'scheduled'
 UNION ALL
SELECT page.id, NULL, NULL, false, true FROM (SELECT id FROM dependent ORDER BY id LIMIT 1 OFFSET $6::bigint - 1) AS page
 UNION ALL
SELECT t.id, t.queue, t.due_at, true, false
  FROM candidate AS c
  JOIN duetime.task AS t ON t.id = c.id
 WHERE (SELECT count(*) FROM looked) < (SELECT count(*) FROM candidate)          -- only if a row was skipped
   AND c.id NOT IN (SELECT l.id FROM looked AS l)
   AND t.state = 'waiting'
