-- Lets ANALYZE read 3,000 rows of a busy table instead of 30,000. The tables below change so much that autovacuum
-- analyzes them each minute. With PostgreSQL's default that takes a second of a processor, mostly to sort the texts of
-- each column, and for that second everything else waits. The nodes' statements have plans that do not depend on
-- single values, so they need no more than the number of rows and a rough number of different queues.
-- Locks: SHARE UPDATE EXCLUSIVE on duetime.task, duetime.audit and each partition of the archive. It waits for no
-- reader or writer and none waits for it. A running autovacuum of such a table ends for it after `deadlock_timeout`
-- (1 s), hence the longer wait.
SET LOCAL lock_timeout = '5s';

-- Sets the statistics target of every column of a table, and of every expression in its indexes. ANALYZE reads 300 rows
-- for each unit of the largest target.
CREATE FUNCTION duetime.spare_analyze(p_table regclass) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_target CONSTANT integer := 10;
    v_command text;
BEGIN
    FOR v_command IN
        SELECT format('ALTER TABLE %s %s', p_table,
                      string_agg(format('ALTER COLUMN %I SET STATISTICS %s', a.attname, v_target), ', '))
          FROM pg_attribute AS a
         WHERE a.attrelid = p_table AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', i.indexrelid::regclass, a.attnum, v_target)
          FROM pg_index AS i
          JOIN pg_attribute AS a ON a.attrelid = i.indexrelid AND i.indkey[a.attnum - 1] = 0
         WHERE i.indrelid = p_table
    LOOP
        EXECUTE v_command;
    END LOOP;
END
$$;

SELECT duetime.spare_analyze(to_be_spared)
  FROM unnest(ARRAY['duetime.task', 'duetime.audit']::regclass[] || ARRAY(
           SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass)) AS busy (to_be_spared);
