//! The preloader on a real database, pass by pass, without nudges.

use common::{
    ids::{ShardId, TaskId},
    task::NewTask,
    time::UnixMicros,
};

use super::super::*;
use crate::{
    desk::tests::{Counter, fresh},
    store::{
        submit::Sending,
        tests::{
            changed,
            fixture::{self, TestDatabase},
            new_task, node,
        },
    },
    working_set::{failures::tests::Log, owned_shards::OwnedShards},
};

const SHARD: ShardId = ShardId::new(0);

const HORIZON: Duration = Duration::from_secs(600);

/// Far more passes than a repair needs, at the interval below.
const PASSES: usize = 200;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A repair every few milliseconds, and no later full read, which would hide that repairs find nothing.
const REACH: ReadIntervals = ReadIntervals {
    horizon: HORIZON,
    repair_every: Duration::from_millis(5),
    repair_at_least_every: Duration::from_millis(20),
    full_every: Duration::from_secs(3_600),
    look_back: Duration::from_secs(10),
};

struct Reads {
    preloader: Preloader,
    test: TestDatabase,
    _counter: Counter,
}

impl Reads {
    /// A preloader that owns shard 0 and has not read it yet.
    async fn new() -> Self {
        Self::of(&[SHARD]).await
    }

    async fn of(shards: &[ShardId]) -> Self {
        Self::with_heap(shards, 1_000).await
    }

    async fn with_heap(shards: &[ShardId], heap_entries: usize) -> Self {
        let (counter, test) = fresh().await;
        let owned_shards = Arc::new(OwnedShards::new(heap_entries));
        let database = NodeDatabase { owned_shards, ..counter.databases.all()[0].clone() };
        let taken = test.database.shard_acquire(shards, &node("a")).await.unwrap();
        database.owned_shards.adopt(&taken);
        let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
        let mut preloader = Preloader::new(database, HORIZON, heap_entries, metrics);
        (preloader.reach, preloader.horizon) = (REACH, Horizon::new(REACH));
        Self { preloader, test, _counter: counter }
    }

    /// Writes a task without a nudge, as a node does whose nudge is lost.
    async fn write(&self, id: TaskId, due_at: UnixMicros) {
        let task: NewTask = changed(new_task(id), |task| (task.due_now, task.due_at) = (false, due_at));
        self.test.database.task_submit(&[task], Sending::First).await.unwrap();
    }

    /// Writes overdue tasks, each a millisecond after the one before, to shards in turn.
    async fn write_overdue(&self, shards: usize, tasks: usize) {
        let overdue = format!(
            "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
             SELECT (substr(md5(g::text), 1, 28) || lpad(to_hex(g % {shards}), 4, '0'))::uuid, g % {shards}, 'orders', 'scheduled',
                    due, due, '{{}}', 'application/json'
               FROM generate_series(1, {tasks}) AS g, LATERAL (SELECT now() - interval '1 h' + g * interval '1 ms' AS due) AS moment"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(overdue)).execute(&self.test.pool).await.unwrap();
    }

    async fn in_a_second(&self) -> UnixMicros {
        fixture::now(&self.test.pool).await.plus(Duration::from_secs(1))
    }

    fn overdue(&self) -> Duration {
        let name = self.preloader.database.name().as_str();
        Duration::from_secs_f64(self.preloader.metrics.overdue_s.with_label_values(&[name]).get())
    }

    /// Makes pass after pass until the gauge of overdue tasks fits.
    async fn overdue_until(&mut self, fits: impl Fn(Duration) -> bool) {
        let deadline = clock::instant() + LONG;
        while !fits(self.overdue()) {
            assert!(clock::instant() < deadline, "overdue by {:?}", self.overdue());
            self.preloader.pass().await;
            tokio::time::sleep(REACH.repair_every).await;
        }
    }

    /// Gives tasks a state that only a later version knows, or takes it from them again.
    async fn set_state(&self, state: &str, whose: &str) {
        let of_later_version = "ALTER TYPE duetime.task_state ADD VALUE IF NOT EXISTS 'frozen' BEFORE 'succeeded'";
        sqlx::raw_sql(of_later_version).execute(&self.test.pool).await.unwrap();
        let change = format!("UPDATE duetime.task SET state = '{state}' WHERE {whose}");
        let changed = sqlx::raw_sql(sqlx::AssertSqlSafe(change)).execute(&self.test.pool).await.unwrap();
        assert_eq!(changed.rows_affected(), 1);
    }

    /// Makes a read take two seconds for each of its tasks: two are read in the time of a statement, three are not.
    async fn slow_down(&self) {
        // A condition of two parts costs more than those that choose the tasks, so PostgreSQL asks it last.
        let slow = "ALTER TABLE duetime.task RENAME TO stored_task;
                    CREATE VIEW duetime.task AS
                    SELECT * FROM duetime.stored_task WHERE shard < 0 OR pg_sleep(2) IS NOT NULL";
        sqlx::raw_sql(slow).execute(&self.test.pool).await.unwrap();
    }

    /// Makes pass after pass until the heap has so many keys.
    async fn heap_until_it_has(&mut self, keys: usize) {
        let deadline = clock::instant() + LONG;
        while self.preloader.database.owned_shards.heap_len() != keys {
            assert!(clock::instant() < deadline, "it has {}", self.preloader.database.owned_shards.heap_len());
            self.preloader.pass().await;
            tokio::time::sleep(REACH.repair_every).await;
        }
    }

    /// Makes pass after pass until the heap has so many keys. Returns whether it has.
    async fn finds(&mut self, keys: usize) -> bool {
        for _ in 0..PASSES {
            let rest = self.preloader.activate().await.unwrap();
            if self.preloader.database.owned_shards.heap_len() == keys {
                return true;
            }
            tokio::time::sleep(rest.min(REACH.repair_at_least_every)).await;
        }
        false
    }
}

#[tokio::test]
async fn a_task_whose_nudge_was_lost_is_found_by_a_later_pass() {
    let mut reads = Reads::new().await;
    assert!(reads.finds(0).await, "the first read is done");
    reads.write(fixture::fresh_id_of(SHARD), reads.in_a_second().await).await;
    assert!(reads.finds(1).await, "no pass finds the task");
}

#[tokio::test]
async fn a_task_that_commits_after_newer_ones_were_read_is_found() {
    let mut reads = Reads::new().await;
    let (older, newer) = (fixture::fresh_id_of(SHARD), fixture::fresh_id_of(SHARD));
    assert!(older < newer, "ids grow with time");
    reads.write(newer, reads.in_a_second().await).await;
    assert!(reads.finds(1).await, "the newer task is read");
    reads.write(older, reads.in_a_second().await).await;
    assert!(reads.finds(2).await, "no pass finds the older task");
}

/// A shard with very many overdue tasks, or with very many dead rows that an old transaction keeps, takes longer than a
/// statement may.
#[tokio::test]
async fn a_shard_that_cannot_be_read_in_time_delays_no_other_shard() {
    let slow = ShardId::new(1);
    let shards: Vec<ShardId> = (0..32).map(ShardId::new).collect();
    let mut reads = Reads::of(&shards).await;
    let now = fixture::now(&reads.test.pool).await;
    reads.write(fixture::fresh_id_of(slow), now.minus(Duration::from_secs(3_600))).await;
    reads.write(fixture::fresh_id_of(slow), now.plus(Duration::from_secs(60))).await;
    for shard in shards.iter().filter(|shard| **shard != slow) {
        reads.write(fixture::fresh_id_of(*shard), now.minus(Duration::from_secs(3_600))).await;
    }
    let long = "ALTER TABLE duetime.task RENAME TO stored_task;
                CREATE VIEW duetime.task AS
                SELECT * FROM duetime.stored_task
                 WHERE shard <> 1 OR due_at > now() - interval '30 min' OR pg_sleep(6) IS NOT NULL";
    sqlx::raw_sql(long).execute(&reads.test.pool).await.unwrap();
    assert!(reads.finds(shards.len()).await, "all but the overdue task of the slow shard are read");
}

/// As on a slow machine, where no joint read ends in time either.
#[tokio::test]
async fn what_comes_due_in_a_shard_whose_single_read_takes_too_long_is_found_without_joint_reads() {
    let slow = ShardId::new(1);
    let mut reads = Reads::of(&[SHARD, slow]).await;
    let now = fixture::now(&reads.test.pool).await;
    reads.write(fixture::fresh_id_of(SHARD), now.plus(Duration::from_secs(60))).await;
    reads.write(fixture::fresh_id_of(slow), now.plus(Duration::from_secs(60))).await;
    reads.write(fixture::fresh_id_of(slow), now.minus(Duration::from_secs(3_600))).await;
    let long = "ALTER TABLE duetime.task RENAME TO stored_task;
                CREATE VIEW duetime.task AS
                SELECT * FROM duetime.stored_task
                 WHERE shard <> 1 OR due_at > now() - interval '30 min' OR pg_sleep(6) IS NOT NULL";
    sqlx::raw_sql(long).execute(&reads.test.pool).await.unwrap();
    reads.preloader.unread.add(&[SHARD, slow]);
    while reads.preloader.unread.ask_again_at() == UnixMicros::FIRST {
        reads.preloader.read_unread(now).await.unwrap();
    }
    let heap_len = reads.preloader.database.owned_shards.heap_len();
    assert_eq!(heap_len, 2, "all but the overdue task of the slow shard are read");
}

const THREE: [ShardId; 3] = [ShardId::new(0), ShardId::new(1), ShardId::new(2)];

/// As after a burst on a slow machine, where even what came due lately takes longer than a statement may.
#[tokio::test]
async fn adopted_shards_that_cannot_be_read_together_in_time_are_read_one_by_one() {
    let mut reads = Reads::of(&THREE).await;
    // Within `LATELY`, and before the moment to which repairs look back, so that none of them runs out of time.
    let due_at = fixture::now(&reads.test.pool).await.minus(LATELY / 2);
    for shard in THREE {
        reads.write(fixture::fresh_id_of(shard), due_at).await;
    }
    reads.slow_down().await;
    assert!(reads.finds(THREE.len()).await, "they are read only together");
}

#[tokio::test]
async fn shards_are_read_one_by_one_for_as_long_as_joint_reads_have_run_out_of_time() {
    let mut reads = Reads::of(&THREE).await;
    let now = fixture::now(&reads.test.pool).await;
    for shard in THREE {
        reads.write(fixture::fresh_id_of(shard), now.minus(LATELY / 2)).await;
    }
    reads.slow_down().await;
    reads.preloader.take_over().await.unwrap();
    reads.preloader.read_unread(now).await.unwrap();
    let heap_len = reads.preloader.database.owned_shards.heap_len();
    assert_eq!(heap_len, THREE.len(), "the reads of one pass do not come to all of them");
}

#[tokio::test]
async fn shards_that_were_read_one_by_one_count_as_unread_since_the_next_full_read_and_no_longer() {
    let mut reads = Reads::of(&THREE).await;
    let later = fixture::now(&reads.test.pool).await.plus(HORIZON / 2);
    for shard in THREE {
        reads.write(fixture::fresh_id_of(shard), later).await;
    }
    reads.slow_down().await;
    let before = fixture::now(&reads.test.pool).await;
    // As the first full read leaves them, whose joint reads run out of time.
    reads.preloader.unread.add(&THREE);
    reads.preloader.unread.note_unread_since(&THREE, before);
    while reads.preloader.unread.ask_again_at() == UnixMicros::FIRST {
        reads.preloader.read_unread(before).await.unwrap();
    }
    let now = fixture::now(&reads.test.pool).await;
    reads.preloader.read_all(&THREE, later, now).await.unwrap();
    assert_eq!(reads.preloader.unread.overdue(now), Duration::ZERO, "each was read since the first full read");
}

#[tokio::test]
async fn nudged_shards_that_cannot_be_read_together_in_time_are_read_one_by_one() {
    let mut reads = Reads::of(&THREE).await;
    assert!(reads.finds(0).await, "the first read is done");
    // No repair looks so far ahead.
    let due_at = fixture::now(&reads.test.pool).await.plus(HORIZON / 2);
    for shard in THREE {
        reads.write(fixture::fresh_id_of(shard), due_at).await;
    }
    reads.slow_down().await;
    reads.preloader.database.owned_shards.nudge(THREE);
    assert!(reads.finds(THREE.len()).await, "the nudge is lost");
}

#[tokio::test]
async fn what_came_due_while_its_shard_had_no_owner_is_read_with_the_takeover() {
    let mut reads = Reads::new().await;
    let hour_ago = fixture::now(&reads.test.pool).await.minus(Duration::from_secs(3_600));
    reads.write(fixture::fresh_id_of(SHARD), hour_ago).await;
    reads.preloader.activate().await.unwrap();
    assert_eq!(reads.preloader.database.owned_shards.heap_len(), 1, "the overdue task is not read");
}

/// The overdue tasks of many shards, or more of one than are read at once.
#[tokio::test]
async fn what_comes_due_now_is_read_while_overdue_tasks_leave_no_room_to_read_ahead() {
    let many: Vec<ShardId> = (0..32).map(ShardId::new).collect();
    let short = Duration::from_secs(2);
    for (shards, tasks, heap_entries, horizon) in
        [(many.as_slice(), 640, 1_000, short), (&many[..1], 8_000, 10_000, HORIZON)]
    {
        let mut reads = Reads::with_heap(shards, heap_entries).await;
        let second = Duration::from_secs(1);
        let reach = ReadIntervals { horizon, repair_every: second, repair_at_least_every: second, ..REACH };
        (reads.preloader.reach, reads.preloader.horizon) = (reach, Horizon::new(reach));
        reads.write_overdue(shards.len(), tasks).await;
        let mut due_at = fixture::now(&reads.test.pool).await.plus(short * 2);
        reads.write(fixture::fresh_id_of(SHARD), due_at).await;
        let owned_shards = Arc::clone(&reads.preloader.database.owned_shards);
        let deadline = clock::instant() + LONG;
        while !owned_shards.claims_until(due_at, heap_entries).contains(&due_at) {
            assert!(clock::instant() < deadline, "the task is not read");
            let now = fixture::now(&reads.test.pool).await;
            if now > due_at.plus(short) {
                // The machine stood still while the task came due, and no read goes back so far.
                due_at = now.plus(short * 2);
                reads.write(fixture::fresh_id_of(SHARD), due_at).await;
            }
            reads.preloader.activate().await.unwrap();
            tokio::time::sleep(REACH.repair_at_least_every).await;
        }
        assert!(!reads.preloader.has_room());
    }
}

/// As after an outage, on storage that is cold.
#[tokio::test]
async fn shards_that_are_read_on_slowly_leave_the_rest_of_a_pass_to_other_reads() {
    let shards: Vec<ShardId> = (0..6).map(ShardId::new).collect();
    let mut reads = Reads::with_heap(&shards, 100_000).await;
    reads.write_overdue(6, 15_000).await;
    reads.preloader.take_over().await.unwrap();
    let slow = "ALTER TABLE duetime.task RENAME TO stored_task;
                CREATE VIEW duetime.task AS
                SELECT * FROM duetime.stored_task WHERE (SELECT pg_sleep(0.6)) IS NOT NULL";
    sqlx::raw_sql(slow).execute(&reads.test.pool).await.unwrap();
    let now = fixture::now(&reads.test.pool).await;
    let mut left = reads.preloader.behind.len();
    assert_eq!(left, 6, "each has more than a read takes");
    while left > 0 {
        reads.preloader.catch_up(now).await.unwrap();
        let read_on = left - reads.preloader.behind.len();
        // Two take longer than a second.
        assert!((1..=2).contains(&read_on), "{read_on} shards of {left} in one pass");
        left -= read_on;
    }
    assert_eq!(reads.preloader.database.owned_shards.heap_len(), 15_000);
}

#[tokio::test]
async fn what_cannot_be_read_counts_as_overdue_until_it_is_read() {
    let mut reads = Reads::new().await;
    reads.preloader.pass().await;
    assert_eq!(reads.overdue(), Duration::ZERO);
    let mut other = reads.test.pool.acquire().await.unwrap();
    let lock = "BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *other).await.unwrap();
    reads.overdue_until(|overdue| overdue > Duration::from_secs(3)).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut *other).await.unwrap();
    reads.overdue_until(|overdue| overdue.is_zero()).await;
}

/// A shard that has what this node cannot read, such as a damaged page or a state of a later version.
const BAD: ShardId = ShardId::new(1);

#[tokio::test]
async fn a_shard_that_cannot_be_read_delays_no_other_shard_counts_as_overdue_and_is_read_once_it_can_be() {
    let log = Log::keep();
    let shards: Vec<ShardId> = (0..8).map(ShardId::new).collect();
    let mut reads = Reads::of(&shards).await;
    let later = fixture::now(&reads.test.pool).await.plus(HORIZON / 2);
    for shard in &shards {
        reads.write(fixture::fresh_id_of(*shard), later).await;
    }
    reads.set_state("frozen", "shard = 1").await;
    reads.heap_until_it_has(7).await;
    // The other tasks are due much later.
    reads.overdue_until(|overdue| overdue > Duration::from_secs(3)).await;
    reads.write(fixture::fresh_id_of(SHARD), reads.in_a_second().await).await;
    reads.heap_until_it_has(8).await;
    reads.write(fixture::fresh_id_of(SHARD), later).await;
    reads.preloader.database.owned_shards.nudge([SHARD, BAD]);
    reads.heap_until_it_has(9).await;
    assert_eq!(log.count("cannot be read; it is tried again"), 1, "each try costs a line");
    reads.set_state("frozen", "shard = 2").await;
    reads.preloader.database.owned_shards.nudge([ShardId::new(2)]);
    reads.preloader.pass().await;
    assert_eq!(log.count("cannot be read; it is tried again"), 2, "the second shard is not named");
    reads.set_state("scheduled", "shard = 1").await;
    reads.heap_until_it_has(10).await;
    assert_eq!(reads.preloader.unreadable, BTreeSet::from([ShardId::new(2)]));
}

#[tokio::test]
async fn an_old_task_that_cannot_be_read_keeps_no_task_of_its_shard_from_coming_up_that_comes_due_now() {
    let mut reads = Reads::of(&[SHARD, BAD]).await;
    let hour_ago = fixture::now(&reads.test.pool).await.minus(Duration::from_secs(3_600));
    reads.write(fixture::fresh_id_of(BAD), hour_ago).await;
    reads.set_state("frozen", "shard = 1").await;
    reads.preloader.pass().await;
    reads.write(fixture::fresh_id_of(BAD), reads.in_a_second().await).await;
    reads.heap_until_it_has(1).await;
}

#[tokio::test]
async fn a_task_that_cannot_be_read_and_is_due_later_keeps_no_task_of_its_shard_from_coming_up_that_comes_due_now() {
    let mut reads = Reads::of(&[SHARD, BAD]).await;
    let seconds = Duration::from_secs(10);
    let reach = ReadIntervals { repair_every: seconds, repair_at_least_every: seconds, ..REACH };
    (reads.preloader.reach, reads.preloader.horizon) = (reach, Horizon::new(reach));
    let later = fixture::now(&reads.test.pool).await.plus(HORIZON / 2);
    reads.write(fixture::fresh_id_of(BAD), later).await;
    reads.set_state("frozen", "shard = 1").await;
    reads.preloader.pass().await;
    reads.write(fixture::fresh_id_of(BAD), reads.in_a_second().await).await;
    reads.heap_until_it_has(1).await;
}

/// As a server answers whose disk cannot read a block, or that misses a file.
#[tokio::test]
async fn a_shard_below_which_the_disk_fails_delays_no_other_shard() {
    for code in ["58030", "58P01"] {
        let mut reads = Reads::of(&[SHARD, BAD]).await;
        let now = fixture::now(&reads.test.pool).await;
        for shard in [SHARD, BAD] {
            reads.write(fixture::fresh_id_of(shard), now).await;
        }
        let broken = format!(
            "CREATE FUNCTION duetime.read_block() RETURNS boolean LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'could not read block' USING ERRCODE = '{code}'; END $$;
             ALTER TABLE duetime.task RENAME TO stored_task;
             CREATE VIEW duetime.task AS SELECT * FROM duetime.stored_task WHERE shard <> 1 OR duetime.read_block()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(broken)).execute(&reads.test.pool).await.unwrap();
        reads.heap_until_it_has(1).await;
    }
}

#[tokio::test]
async fn what_the_former_owner_left_claimed_is_taken_over_beside_a_shard_that_cannot_be_read() {
    let mut reads = Reads::of(&[SHARD, BAD]).await;
    let now = fixture::now(&reads.test.pool).await;
    for shard in [SHARD, BAD] {
        reads.write(fixture::fresh_id_of(shard), now).await;
    }
    let claimed = "UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 0, claimed_at = now()";
    sqlx::raw_sql(claimed).execute(&reads.test.pool).await.unwrap();
    let damaged = "ALTER TABLE duetime.task RENAME TO stored_task;
                   CREATE VIEW duetime.task AS
                   SELECT * FROM duetime.stored_task WHERE shard <> 1 OR 1 / (shard - 1) = 0";
    sqlx::raw_sql(damaged).execute(&reads.test.pool).await.unwrap();
    reads.heap_until_it_has(1).await;
    let mended = "DROP VIEW duetime.task; ALTER TABLE duetime.stored_task RENAME TO task";
    sqlx::raw_sql(mended).execute(&reads.test.pool).await.unwrap();
    reads.heap_until_it_has(2).await;
}

#[tokio::test]
async fn a_task_in_doubt_is_rescued_at_once_when_the_clock_was_set_back() {
    let mut reads = Reads::new().await;
    assert!(reads.finds(0).await, "the first read is done");
    let owned_shards = Arc::clone(&reads.preloader.database.owned_shards);
    let ahead = fixture::now(&reads.test.pool).await.plus(HORIZON);
    assert!(!reads.preloader.horizon.follow(ahead), "the clock goes on");
    owned_shards.end_unknown([fixture::fresh_id_of(SHARD)], ahead);
    assert_eq!(owned_shards.next_due(), Some(ahead));
    reads.preloader.activate().await.unwrap();
    assert_eq!(owned_shards.next_due(), Some(UnixMicros::FIRST));
}

#[tokio::test]
async fn what_the_former_owner_claimed_long_ago_comes_up_with_what_is_overdue() {
    let mut reads = Reads::new().await;
    reads.write_overdue(1, 1).await;
    let claimed = "UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 0, claimed_at = wake_at";
    sqlx::raw_sql(claimed).execute(&reads.test.pool).await.unwrap();
    let taken = reads.test.database.shard_acquire(&[SHARD], &node("b")).await.unwrap().into_iter().collect();
    assert_eq!(reads.test.database.task_takeover(&taken, 100).await.unwrap(), [], "it would pass all that is overdue");
    reads.heap_until_it_has(1).await;
}

/// The first keys of the shard can be read, those behind them cannot.
#[tokio::test]
async fn a_shard_that_cannot_be_read_on_keeps_no_other_from_being_read_on() {
    let mut reads = Reads::with_heap(&[SHARD, BAD], 20_000).await;
    reads.write_overdue(2, 5_000).await;
    let last = "id = (SELECT id FROM duetime.task WHERE shard = 0 ORDER BY wake_at DESC LIMIT 1)";
    reads.set_state("frozen", last).await;
    reads.heap_until_it_has(2_000 + 2_500).await;
    assert_eq!(reads.preloader.unread.readable(&[SHARD]), [SHARD], "nudges of it still count");
}
