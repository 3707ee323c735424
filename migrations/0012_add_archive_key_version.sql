-- Locks: SHARE on the archive's partitions while the index is built: tasks that finish wait, reads go on. The
-- migration reads each partition once.

-- Look-ups by business key: one probe of each partition finds the newest task, however often the key was used. The
-- index replaces archive_key.
CREATE INDEX archive_key_version ON duetime.archive (queue, key, coalesce(partition_key, ''), version, created_at) WHERE key IS NOT NULL;
DROP INDEX duetime.archive_key;
