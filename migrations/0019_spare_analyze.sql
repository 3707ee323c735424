-- Lets ANALYZE read 3,000 rows of a busy table instead of 30,000. The tables below change so much that autovacuum
-- analyzes them each minute. With PostgreSQL's default that takes a second of a processor, mostly to sort the texts of
-- each column, and for that second everything else waits. The nodes' statements have plans that do not depend on
-- single values, so they need no more than the number of rows and a rough number of different queues.
-- Lets VACUUM leave the free pages at the end of the tables through which rows pass. To cut them off it takes ACCESS
-- EXCLUSIVE, on a standby too. All claims and submissions stop meanwhile, and the next burst adds the pages again.
-- Locks: SHARE UPDATE EXCLUSIVE on duetime.task, duetime.audit, duetime.inbox, duetime.move_change and each partition
-- of the archive. It waits for no reader or writer and none waits for it. A running autovacuum of such a table ends for
-- it after `deadlock_timeout` (1 s). Any other vacuum does not, and may take hours: the migration leaves such a table
-- to the nodes.

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

-- Has VACUUM keep the length of a table, and of the one of its large values. `VACUUM (TRUNCATE)` cuts it all the same.
CREATE FUNCTION duetime.keep_length(p_table regclass) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s SET (vacuum_truncate = off, toast.vacuum_truncate = off)', p_table);
END
$$;

-- Spares the busy tables that are not spared yet. An operator's own setting stays. Leaves out a table that another
-- transaction holds locked, and ends at the second one, so that a call takes some seconds at most. The nodes call it
-- again every few minutes.
-- Returns the number of tables that it has spared.
CREATE FUNCTION duetime.spare_busy_tables() RETURNS integer LANGUAGE plpgsql VOLATILE SET lock_timeout = '1500ms' AS $$
DECLARE
    v_table regclass;
    v_reads_much boolean;
    v_is_cut boolean;
    v_spared integer := 0;
    v_locked integer := 0;
BEGIN
    -- `is_passage`: rows go from it as fast as they come.
    FOR v_table, v_reads_much, v_is_cut IN
        SELECT found.*
          FROM (SELECT busy.oid::regclass,
                       busy.is_analyzed AND EXISTS (SELECT FROM pg_attribute AS a
                                                     WHERE a.attrelid = busy.oid AND a.attnum > 0 AND NOT a.attisdropped
                                                       AND coalesce(a.attstattarget, -1) = -1) AS reads_much,
                       busy.is_passage AND NOT EXISTS (SELECT FROM pg_class AS c, unnest(c.reloptions) AS o (setting)
                                                       WHERE c.oid = busy.oid AND o.setting LIKE 'vacuum_truncate=%') AS is_cut
                  FROM (VALUES ('duetime.task'::regclass::oid, true, true),
                               ('duetime.audit'::regclass, true, false),
                               ('duetime.inbox'::regclass, false, true),
                               ('duetime.move_change'::regclass, false, true)
                         UNION ALL
                        SELECT inhrelid, true, false FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass
                       ) AS busy (oid, is_analyzed, is_passage)) AS found
         WHERE found.reads_much OR found.is_cut
    LOOP
        BEGIN
            IF v_reads_much THEN
                PERFORM duetime.spare_analyze(v_table);
            END IF;
            IF v_is_cut THEN
                PERFORM duetime.keep_length(v_table);
            END IF;
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
