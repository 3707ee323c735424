-- The newest task with this key: of those that are not finished if there is one, else of those that are still kept.
-- $1 queue, $2 partition key (NULL: none), $3 key. Returns its id.
SELECT newest.id
  FROM (SELECT t.id, t.version, t.created_at, true AS live
          FROM duetime.task AS t
         WHERE t.queue = $1 AND t.key = $3 AND coalesce(t.partition_key, '') = coalesce($2::text, '')
        UNION ALL
        SELECT a.id, a.version, a.created_at, false
          FROM duetime.archive AS a
         WHERE a.queue = $1 AND a.key = $3 AND a.partition_key IS NOT DISTINCT FROM $2::text) AS newest
 ORDER BY newest.live DESC, newest.version DESC, newest.created_at DESC
 LIMIT 1
