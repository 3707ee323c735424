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

-- A named kind of task with its policy. Only the first database keeps queues; nodes hold a copy.
CREATE TABLE duetime.queue (
    name        text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9._-]{1,128}$'),
    policy      jsonb NOT NULL,
    paused      boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
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
    CHECK (state < 'succeeded'),
    CHECK (state NOT IN ('dispatching', 'delivered', 'running') OR (attempt > 0 AND claim_epoch IS NOT NULL)),
    CHECK (attempt >= attempts_base)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The one index of the heap: the next event of each row, shard by shard. Rows that are `ready` wait for room, not for
-- a moment, and stay out of it. So a stuck queue with a million of them costs the other queues nothing.
CREATE INDEX task_wake ON duetime.task (shard, wake_at) WHERE state <> 'ready';

-- Tasks that wait for room, in the order in which they start.
CREATE INDEX task_ready ON duetime.task (queue, priority, wake_at, shard) WHERE state = 'ready';

-- Tasks that expire if no owner claims them before.
CREATE INDEX task_expiry ON duetime.task (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'ready');

-- Lists of a queue by due time, the earliest or the latest first.
CREATE INDEX task_queue_due ON duetime.task (queue, due_at, id);

-- Look-ups by business key and by partition key.
CREATE INDEX task_key ON duetime.task (queue, key) WHERE key IS NOT NULL;
CREATE INDEX task_partition ON duetime.task (partition_key) WHERE partition_key IS NOT NULL;

-- Every finished task, in one partition for each day on which rows may be dropped. A partition is dropped when its
-- day has passed; no row is ever deleted to make room.
CREATE TABLE duetime.archive (
    LIKE duetime.task INCLUDING DEFAULTS,
    finished_at  timestamptz NOT NULL,
    -- The consumer's last report, byte for byte (jsonb would refuse some valid JSON).
    result       text,
    status_code  bigint,
    status_msg   text,
    drop_on      date NOT NULL,
    CHECK (state >= 'succeeded'),
    PRIMARY KEY (drop_on, id)
) PARTITION BY RANGE (drop_on);

CREATE INDEX archive_queue_due ON duetime.archive (queue, due_at, id);
-- The few tasks that a person looks for among the many that succeeded.
CREATE INDEX archive_unsuccessful ON duetime.archive (queue, due_at, id) WHERE state <> 'succeeded';
CREATE INDEX archive_key ON duetime.archive (queue, key) WHERE key IS NOT NULL;

-- Messages to Duetime that could not be read: kept for a person, never requeued.
CREATE TABLE duetime.quarantine (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source       text NOT NULL,
    reason       text NOT NULL,
    message_id   text,
    headers      jsonb,
    body         bytea,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
