-- Creates the schema, the shards, and the two tables of tasks: `task` for the unfinished ones, `archive` for the
-- finished ones.
-- Locks: none that another session waits for; everything here is new.

CREATE SCHEMA IF NOT EXISTS duetime;

-- The shards of this database, in one row. `duetime migrate` writes it once, and every node compares it at its start.
CREATE TABLE duetime.meta (
    single          boolean PRIMARY KEY DEFAULT true CHECK (single),
    shard_count     integer NOT NULL CHECK (shard_count BETWEEN 1 AND 65535),
    first_shard     integer NOT NULL,
    last_shard      integer NOT NULL,
    -- Rises with every change of a queue, so that nodes notice a change with a single small read.
    queue_revision  bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Rises with every token that is made or revoked, for the same reason.
    token_revision  bigint NOT NULL DEFAULT 0,
    -- The cluster whose tasks are here. All databases of a cluster have the same id.
    cluster_id      uuid NOT NULL,
    -- The oldest schema version whose nodes work with this schema. A migration that takes something away raises it.
    serves          bigint NOT NULL DEFAULT 10,
    CHECK (first_shard BETWEEN 0 AND last_shard AND last_shard < shard_count)
);

-- The fence: the actual owner of a shard. A claim locks its row FOR SHARE, an acquire updates it.
CREATE TABLE duetime.shard (
    id           integer PRIMARY KEY,
    epoch        bigint NOT NULL DEFAULT 0,
    owner        text,
    incarnation  uuid,
    acquired_at  timestamptz
);

CREATE TYPE duetime.task_state AS ENUM (
    'waiting', 'scheduled', 'ready', 'dispatching', 'delivered', 'running',
    'succeeded', 'dead', 'cancelled', 'superseded', 'expired'
);

-- Every task that is not finished.
CREATE TABLE duetime.task (
    id                uuid PRIMARY KEY,
    shard             integer NOT NULL,
    queue             text NOT NULL,
    state             duetime.task_state NOT NULL,
    -- The next moment at which a node must act on this row: due time, retry time, delivery deadline, rescue.
    wake_at           timestamptz NOT NULL,
    -- When this attempt is (or was) due.
    due_at            timestamptz NOT NULL,
    expires_at        timestamptz,
    priority          smallint NOT NULL DEFAULT 3 CHECK (priority BETWEEN 1 AND 5),
    -- Counts claims and never goes back. attempts_base is the attempt at which the present budget of max_attempts
    -- began.
    attempt           integer NOT NULL DEFAULT 0,
    attempts_base     integer NOT NULL DEFAULT 0,
    max_attempts      integer,
    timeout_ms        bigint,
    retry             jsonb,
    payload           bytea NOT NULL,
    content_type      text NOT NULL,
    headers           jsonb,
    key               text,
    partition_key     text,
    version           bigint NOT NULL DEFAULT 0,
    -- The epoch of the last claim or rescue. redeliveries counts how often this attempt was published again in place.
    claim_epoch       bigint,
    claimed_at        timestamptz,
    redeliveries      integer NOT NULL DEFAULT 0,
    delivered_at      timestamptz,
    progress          smallint,
    worker            text,
    -- Failed attempts so far: [{"attempt","claimed_at","ended_at","reason","error"}].
    history           jsonb,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- `in_order`: set once by a start in the order of the queue. `counted`: set once by a start that counts towards
    -- the queue's limit. Rows of other queues do not get into the two indexes on these columns.
    in_order          boolean,
    counted           boolean,
    -- The envelope of a message that only waits here and then goes on: exchange, routing key and every property.
    -- NULL: the queue decides where the task goes.
    envelope          jsonb,
    -- The tasks of the same partition that must have succeeded before this one starts: `<queue> <key>` each (a queue's
    -- name has no blank). A node checks them while the task is `waiting`, and `wake_at` is then the time of the next
    -- check.
    depends_on        text[],
    -- A caller sets it while the task is claimed: the consumer learns of it with its next sign of life. From then on a
    -- failure of that attempt ends the task as cancelled; its success still counts.
    stopping          boolean NOT NULL DEFAULT false,
    -- A check of the task moves names that have succeeded here from depends_on. A task of such a name may be dropped
    -- after its time; its success counts.
    depends_met       text[],
    CHECK (state < 'succeeded'),
    CHECK (state NOT IN ('dispatching', 'delivered', 'running') OR (attempt > 0 AND claim_epoch IS NOT NULL)),
    CHECK (attempt >= attempts_base)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The one index of the heap: the next event of each row, shard by shard. Rows that are `ready` wait for room, not for
-- a moment, and stay out of it. So a stuck queue with a million of them costs the other queues nothing.
CREATE INDEX task_wake ON duetime.task (shard, wake_at) WHERE state <> 'ready';

-- Tasks that expire if no owner claims them before.
CREATE INDEX task_expiry ON duetime.task (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'ready');

-- Lists of a queue by due time, the earliest or the latest first.
CREATE INDEX task_queue_due ON duetime.task (queue, due_at, id);

-- Tasks with a business key: at most one unfinished task for each queue, partition key, key and version.
CREATE UNIQUE INDEX task_key_version
    ON duetime.task (queue, key, coalesce(partition_key, ''), version) WHERE key IS NOT NULL;

-- Tasks that wait for room: by queue, priority and shard, then by lane, each lane in the order in which its tasks
-- start. A lane is the tasks of one partition key; those without one are `-`. A pick hops from lane to lane, so that
-- they take turns.
CREATE INDEX task_ready
    ON duetime.task (queue, priority, shard, (coalesce('=' || partition_key, '-') COLLATE "C"), due_at, id)
    WHERE state = 'ready';

-- The head of an ordered lane, started or not; and all tasks of a partition key.
CREATE INDEX task_partition ON duetime.task (partition_key, queue, due_at, id) WHERE partition_key IS NOT NULL;

-- One task at a time: in an ordered queue, no second task of a partition key starts before the first has finished.
CREATE UNIQUE INDEX task_in_order ON duetime.task (partition_key, queue) WHERE in_order AND partition_key IS NOT NULL;

-- Tasks in flight that count towards a limit.
CREATE INDEX task_counted ON duetime.task (queue) WHERE counted AND state IN ('dispatching', 'delivered', 'running');

-- The dependents of a key. The index has no pending list: a task that succeeded must find its dependents at once.
CREATE INDEX task_depends ON duetime.task USING gin (depends_on) WITH (fastupdate = off) WHERE state = 'waiting';

-- Every finished task, in one partition for each day on which rows may be dropped. A partition is dropped when its
-- day has passed; no row is ever deleted to make room. The columns up to created_at, and the envelope, are those of
-- duetime.task.
CREATE TABLE duetime.archive (
    id             uuid NOT NULL,
    shard          integer NOT NULL,
    queue          text NOT NULL,
    state          duetime.task_state NOT NULL,
    wake_at        timestamptz NOT NULL,
    due_at         timestamptz NOT NULL,
    expires_at     timestamptz,
    priority       smallint NOT NULL DEFAULT 3,
    attempt        integer NOT NULL DEFAULT 0,
    attempts_base  integer NOT NULL DEFAULT 0,
    max_attempts   integer,
    timeout_ms     bigint,
    retry          jsonb,
    payload        bytea NOT NULL,
    content_type   text NOT NULL,
    headers        jsonb,
    key            text,
    partition_key  text,
    version        bigint NOT NULL DEFAULT 0,
    claim_epoch    bigint,
    claimed_at     timestamptz,
    redeliveries   integer NOT NULL DEFAULT 0,
    delivered_at   timestamptz,
    progress       smallint,
    worker         text,
    history        jsonb,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz NOT NULL,
    -- The consumer's last report, byte for byte (jsonb would refuse some valid JSON).
    result         text,
    status_code    bigint,
    status_msg     text,
    drop_on        date NOT NULL,
    envelope       jsonb,
    CHECK (state >= 'succeeded'),
    PRIMARY KEY (drop_on, id)
) PARTITION BY RANGE (drop_on);

CREATE INDEX archive_queue_due ON duetime.archive (queue, due_at, id);
-- The few tasks that a person looks for among the many that succeeded.
CREATE INDEX archive_unsuccessful ON duetime.archive (queue, due_at, id) WHERE state <> 'succeeded';

-- Look-ups by business key: one probe of each partition finds the newest task, however often the key was used.
CREATE INDEX archive_key_version
    ON duetime.archive (queue, key, coalesce(partition_key, ''), version, created_at) WHERE key IS NOT NULL;

-- The finished tasks of a key that ended last; the tasks that hold the key (see key_finished) are apart from the
-- others.
CREATE INDEX archive_key_finished
    ON duetime.archive (queue, key, coalesce(partition_key, ''), (state IN ('succeeded', 'dead')), finished_at)
    WHERE key IS NOT NULL;
