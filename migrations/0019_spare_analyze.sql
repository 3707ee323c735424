-- Lets ANALYZE read 3,000 rows of a busy table instead of 30,000. The tables below change so much that autovacuum
-- analyzes them each minute. With PostgreSQL's default that takes a second of a processor, mostly to sort the texts of
-- each column, and for that second everything else waits. The nodes' statements have plans that do not depend on
-- single values, so they need no more than the number of rows and a rough number of different queues.
-- Locks: SHARE UPDATE EXCLUSIVE on duetime.task, duetime.audit and each partition of the archive. It waits for no
-- reader or writer and none waits for it. A running autovacuum of such a table ends for it after `deadlock_timeout`
-- (1 s). Any other vacuum does not, and may take hours: the migration leaves such a table to the nodes.

-- Sets the statistics target of every column of a table, and of every expression in its indexes. ANALYZE reads 300 rows
-- for each unit of the largest target. A node may drop the table meanwhile. Its name comes from the rows of the same
-- snapshot, so that the function fails with `undefined_table` then: the name of a regclass would be a number.
CREATE FUNCTION duetime.spare_analyze(p_table regclass) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_target CONSTANT integer := 10;
    v_command text;
BEGIN
    FOR v_command IN
        SELECT format('ALTER TABLE %I.%I %s', n.nspname, c.relname,
                      string_agg(format('ALTER COLUMN %I SET STATISTICS %s', a.attname, v_target), ', '))
          FROM pg_class AS c
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.oid = p_table
         GROUP BY n.nspname, c.relname
        UNION ALL
        SELECT format('ALTER INDEX %I.%I ALTER COLUMN %s SET STATISTICS %s', n.nspname, c.relname, a.attnum, v_target)
          FROM pg_index AS i
          JOIN pg_class AS c ON c.oid = i.indexrelid
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
          JOIN pg_attribute AS a ON a.attrelid = i.indexrelid AND i.indkey[a.attnum - 1] = 0
         WHERE i.indrelid = p_table
    LOOP
        EXECUTE v_command;
    END LOOP;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = format('there is no table %s', p_table);
    END IF;
END
$$;

-- Spares the busy tables that are not spared yet. Leaves out a table that another transaction holds locked, and ends at
-- the second one, so that a call takes some seconds at most. The nodes call it again every few minutes.
-- Returns the number of tables that it has spared.
CREATE FUNCTION duetime.spare_busy_tables() RETURNS integer LANGUAGE plpgsql VOLATILE SET lock_timeout = '1500ms' AS $$
DECLARE
    v_table regclass;
    v_spared integer := 0;
    v_locked integer := 0;
BEGIN
    FOR v_table IN
        SELECT busy.oid::regclass
          FROM (SELECT unnest(ARRAY['duetime.task', 'duetime.audit']::regclass[])::oid AS oid
                UNION ALL
                SELECT inhrelid FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass) AS busy
         WHERE EXISTS (SELECT FROM pg_attribute AS a
                        WHERE a.attrelid = busy.oid AND a.attnum > 0 AND NOT a.attisdropped
                          AND coalesce(a.attstattarget, -1) = -1)
    LOOP
        BEGIN
            PERFORM duetime.spare_analyze(v_table);
            v_spared := v_spared + 1;
        EXCEPTION WHEN lock_not_available OR undefined_table THEN
            v_locked := v_locked + 1;
            EXIT WHEN v_locked = 2;
        END;
    END LOOP;
    RETURN v_spared;
END
$$;

SELECT duetime.spare_busy_tables();
