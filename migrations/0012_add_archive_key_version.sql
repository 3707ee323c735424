-- Locks: SHARE on the archive's partitions while the index is built: tasks that finish wait, reads go on. Each partition is read once.

-- Look-ups by business key: the newest with one probe of each partition, however often the key was used. It is in place of archive_key.
CREATE INDEX archive_key_version ON duetime.archive (queue, key, coalesce(partition_key, ''), version, created_at) WHERE key IS NOT NULL;
DROP INDEX duetime.archive_key;
