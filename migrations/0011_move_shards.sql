-- Makes the place of a shard a fact of its fence row, so that a shard can move to another database while its tasks
-- fire. Makes the tables of the moves.
-- Locks: ACCESS EXCLUSIVE on `shard` and on `meta` for a moment (columns with constant defaults, no rewrite, a check of
-- one row for each shard); claims and acquires wait for it. Everything else is new.

-- `here`: the tasks of the shard are in this database. `leaving`: they are, and another database receives a copy.
-- `gone`: they are in another database, or are on their way through the last part of a move; what is left here is
-- about to be deleted. `arriving`: this database receives a copy. At most one database says `here` or `leaving`.
CREATE TYPE duetime.shard_status AS ENUM ('here', 'leaving', 'gone', 'arriving');

ALTER TABLE duetime.shard
    ADD COLUMN status duetime.shard_status NOT NULL DEFAULT 'here',
    -- The epoch, in the source, of the owner that fills an arriving shard. A former owner writes no more into it.
    ADD COLUMN move_epoch bigint NOT NULL DEFAULT 0;

-- A database that was added to a cluster begins without shards.
ALTER TABLE duetime.meta ALTER COLUMN first_shard DROP NOT NULL, ALTER COLUMN last_shard DROP NOT NULL;

-- Rises with every change of a shard's status here, so that nodes notice it with a single small read. It is a table of
-- its own: a change of a queue locks `meta` and then waits for `shard`, a change of a status locks them the other way.
CREATE TABLE duetime.shard_map (
    single    boolean PRIMARY KEY DEFAULT true CHECK (single),
    revision  bigint NOT NULL DEFAULT 0
);
INSERT INTO duetime.shard_map DEFAULT VALUES;

CREATE FUNCTION duetime.shard_map_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE duetime.shard_map SET revision = revision + 1;
    RETURN NULL;
END
$$;

-- An acquire does not name the status, so it does not count here.
CREATE TRIGGER shard_map_changed AFTER INSERT OR DELETE OR UPDATE OF status ON duetime.shard
    FOR EACH STATEMENT EXECUTE FUNCTION duetime.shard_map_changed();

-- The moves that were asked for and have not ended. Only the first database keeps them. The fence rows decide where a
-- shard is; a row here says where it is to go, and how far its move is.
CREATE TABLE duetime.move (
    shard          integer PRIMARY KEY,
    source         text NOT NULL,
    target         text NOT NULL CHECK (target <> source),
    step           text NOT NULL DEFAULT 'planned' CHECK (step IN ('planned', 'copying', 'cutting', 'cleaning')),
    -- Set by a caller that calls the move off. It has no effect from the cut on.
    called_off_at  timestamptz,
    requested_by   text NOT NULL,
    requested_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at     timestamptz,
    -- Begins when the owner stops claiming, ends when the target claims.
    cut_began_at   timestamptz,
    cut_ended_at   timestamptz,
    -- The page at which the copy goes on after a crash.
    page           jsonb,
    -- An estimate, made when the copy begins.
    rows_total     bigint,
    rows_copied    bigint NOT NULL DEFAULT 0,
    bytes_copied   bigint NOT NULL DEFAULT 0,
    -- The node that works on the move, and why it does not get on, if it does not.
    node           text,
    problem        text,
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

-- The moves that have ended, the newest for display.
CREATE TABLE duetime.move_ended (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard         integer NOT NULL,
    source        text NOT NULL,
    target        text NOT NULL,
    outcome       text NOT NULL CHECK (outcome IN ('moved', 'called_off')),
    requested_by  text NOT NULL,
    requested_at  timestamptz NOT NULL,
    started_at    timestamptz,
    cut_ms        bigint,
    rows_copied   bigint NOT NULL,
    bytes_copied  bigint NOT NULL,
    ended_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The part of each database in the cluster; one without a row serves. A draining one receives no shards and loses those
-- that it has, a removed one takes part in nothing. Only the first database keeps this. A request for a move locks the
-- row of its target, so no move to a database is added once its drain is written.
CREATE TABLE duetime.database_standing (
    name      text PRIMARY KEY,
    standing  text NOT NULL CHECK (standing IN ('serving', 'draining', 'removed')),
    since     timestamptz NOT NULL DEFAULT clock_timestamp()
);
