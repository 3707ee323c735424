mod reads;

use std::collections::BTreeSet;

use common::{
    delay::{
        heap::WakeKind,
        turn::{Reach, Room},
    },
    ids::TaskId,
    queue::QueueBook,
    shard::route::bound_to,
};

use super::{progress::LaneStart, *};
use crate::{
    loops::tests::{Loops, ids_of, until},
    store::{
        PoolKind,
        lane::LaneEnd,
        tests::{fixture, node},
    },
    supervise::spawn_child,
    working_set::{failures::tests::Log, owned_shards::Stop},
};

fn lane(shard: u16, lane: &str) -> LaneStart {
    Some(LaneEnd { shard: ShardId::new(shard), lane: lane.to_owned() })
}

/// A walk of priority 1 that found nothing; `cut`: it ended before it had seen all lanes.
fn walk(progress: &mut QueueProgress, to: LaneStart, cut: bool) -> bool {
    let mut walks = Walks::default();
    (walks.ends[0], walks.cut[0]) = (to, cut);
    progress.walked(walks, [1, 0, 0, 0, 0], [0; LEVELS]);
    progress.rounds[0].is_some()
}

#[test]
fn a_walk_that_finds_nothing_goes_on_until_it_has_come_round() {
    let mut progress = QueueProgress::default();
    progress.ends[0] = lane(1, "=m");
    assert!(walk(&mut progress, lane(1, "=z"), true));
    assert!(walk(&mut progress, lane(2, "=k"), true));
    assert!(walk(&mut progress, lane(1, "=c"), true), "round the end and not yet past its beginning");
    assert!(!walk(&mut progress, lane(1, "=n"), true));
}

#[test]
fn a_walk_that_saw_all_lanes_or_started_something_is_over() {
    let mut progress = QueueProgress::default();
    assert!(walk(&mut progress, lane(1, "=a"), true));
    assert!(!walk(&mut progress, lane(1, "=c"), false));
    assert!(walk(&mut progress, lane(1, "=d"), true));
    let mut walks = Walks::default();
    (walks.ends[0], walks.cut[0]) = (lane(1, "=f"), true);
    progress.walked(walks, [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]);
    assert!(progress.rounds[0].is_none());
    assert_eq!(progress.ends[0], lane(1, "=f"));
}

const LIMITED: &str = "limited";

impl Loops {
    /// Three tasks that wait for room in a queue with a limit of three.
    async fn limited(&self) -> [TaskId; 3] {
        let mut queue = Queue::with_defaults(QueueName::new(LIMITED));
        queue.policy.max_running = Some(3);
        self.counter.books.store(Arc::new(QueueBook::new(1, [queue])));
        let ids = self.three(|task| task.queue = QueueName::new(LIMITED)).await;
        sqlx::raw_sql("UPDATE duetime.task SET state = 'ready'").execute(&self.test.pool).await.unwrap();
        self.test.database.ping().await.unwrap();
        ids
    }

    /// Picks tasks as a node does that never gets the answer.
    async fn pick(&self, wanted: usize) {
        let queue = QueueName::new(LIMITED);
        let mut levels = [0; LEVELS];
        // The default priority is 3.
        levels[2] = wanted;
        let pick = Pick { counted: true, ..Pick::of(&queue, &self.fences, levels) };
        let (claimed, _) = self.test.database.task_pick_open(&pick).await.unwrap();
        assert_eq!(claimed.deliveries.len(), wanted);
    }
}

#[tokio::test]
async fn what_a_lost_pick_has_started_is_woken_when_the_pick_has_certainly_ended() {
    let loops = Loops::new().await;
    let ids = loops.limited().await;
    let (claims, _dispatches) = loops.claims();
    let starter = loops.ready_starter(claims);
    let (sent, sent_at) = (clock::instant(), fixture::now(&loops.test.pool).await);
    loops.pick(2).await;
    // The server began 2 s after it had lost the connection, and took 5 s.
    let late = "UPDATE duetime.task SET wake_at = wake_at + interval '7 s' WHERE state = 'dispatching'";
    sqlx::raw_sql(late).execute(&loops.test.pool).await.unwrap();
    // Another server takes the database's place.
    loops.test.database.clock().forget();
    let shards = [ShardId::new(0)];
    let mut doubt = Doubt::of(sent, Some(sent_at), shards);
    let queue = QueueName::new(LIMITED);
    let progress = |doubt: &Doubt| QueueProgress { doubt: Some(doubt.clone()), ..QueueProgress::default() };

    starter.progress.lock().insert(queue.clone(), progress(&doubt));
    assert_eq!(starter.look(&queue, true).await, Some(doubt.over_at), "until then nothing can be counted");
    let owned = &loops.counter.databases.home().owned_shards;
    assert_eq!(owned.next_due(), None);

    doubt.over_at = clock::instant();
    starter.progress.lock().insert(queue.clone(), progress(&doubt));
    starter.look(&queue, true).await.expect("one task still waits");
    let now = fixture::now(&loops.test.pool).await;
    let reach = Reach { now, until: now, claims_until: now, is_crowd: false, overdue_wait: false };
    let woken = owned.take_due(reach, Room { most: 10, overdue: 10 });
    assert_eq!(woken.len(), 2, "{woken:?}");
    assert!(woken.iter().all(|entry| entry.kind == WakeKind::Rescue && ids.contains(&entry.id)));
    assert!(starter.progress.lock()[&queue].doubt.is_none());
}

#[tokio::test]
async fn a_queue_goes_on_although_a_look_for_what_a_lost_pick_started_can_never_succeed() {
    let loops = Loops::new().await;
    loops.limited().await;
    let (claims, _dispatches) = loops.claims();
    let starter = loops.ready_starter(claims);
    let (now, queue) = (fixture::now(&loops.test.pool).await, QueueName::new(LIMITED));
    let mut doubt = Doubt::of(clock::instant(), Some(now), [ShardId::new(0)]);
    doubt.over_at = clock::instant();
    starter.progress.lock().insert(queue.clone(), QueueProgress { doubt: Some(doubt), ..QueueProgress::default() });
    let unreadable = "ALTER TABLE duetime.task RENAME COLUMN wake_at TO moved";
    sqlx::raw_sql(unreadable).execute(&loops.test.pool).await.unwrap();
    starter.look(&queue, true).await.expect("three tasks still wait");
    assert!(starter.progress.lock()[&queue].doubt.is_none());
}

#[tokio::test]
async fn a_queue_whose_looks_fail_again_and_again_is_one_warning() {
    let (log, loops) = (Log::keep(), Loops::new().await);
    loops.limited().await;
    let (claims, _dispatches) = loops.claims();
    let (starter, queue) = (loops.ready_starter(claims), QueueName::new(LIMITED));
    let unreadable = "ALTER TABLE duetime.task RENAME COLUMN wake_at TO moved";
    sqlx::raw_sql(unreadable).execute(&loops.test.pool).await.unwrap();
    for warnings in [0, 0, 1, 1] {
        starter.look(&queue, true).await.expect("three tasks still wait");
        assert_eq!(log.count("cannot be started, again and again"), warnings);
    }
}

#[tokio::test]
async fn a_queue_whose_look_ran_out_of_time_rests_for_as_long_as_that_took() {
    let loops = Loops::new().await;
    let began = clock::instant().checked_sub(LONGEST_REST).expect("the machine has run for longer");
    for code in ["query_canceled", "connection_failure"] {
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'failed' USING ERRCODE = '{code}'; END $$");
        let source = sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&loops.test.pool).await.expect_err("it raises");
        let (database, op) = (loops.database().name().clone(), StoreOp::TaskPick);
        let error = Error { database, op, effect: Effect::None, source: Some(source.into()) };
        let at = try_again_at(&error, began);
        assert_eq!(at >= began + LONGEST_REST * 2, code == "query_canceled", "an outage asks for no rest");
    }
}

/// As with payloads that are large, over a slow way.
#[tokio::test]
async fn tasks_whose_pick_runs_out_of_its_time_are_started_in_smaller_parts() {
    let loops = Loops::new().await;
    let ids = loops.limited().await;
    let one_at_a_time = "
        CREATE FUNCTION duetime.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF (SELECT count(*) FROM written) > 1 THEN
                RAISE EXCEPTION 'more than one takes too long' USING ERRCODE = 'query_canceled';
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER slow AFTER UPDATE ON duetime.task REFERENCING NEW TABLE AS written
            FOR EACH STATEMENT EXECUTE FUNCTION duetime.slow()";
    sqlx::raw_sql(one_at_a_time).execute(&loops.test.pool).await.unwrap();
    let (claims, mut dispatches) = loops.claims();
    let starter = loops.ready_starter(claims);
    // A pick passes a row by whose failed write is not rolled back yet.
    until(|| async {
        starter.look(&QueueName::new(LIMITED), true).await;
        let started = "SELECT count(*) FROM duetime.task WHERE state = 'dispatching'";
        sqlx::query_scalar::<_, i64>(started).fetch_one(&loops.test.pool).await.unwrap() == 3
    })
    .await;
    assert_eq!(ids_of(&mut dispatches, ids.len()).await, ids.into());
}

#[tokio::test]
async fn a_look_begins_at_the_floor_and_finds_what_became_ready_below_it() {
    let loops = Loops::new().await;
    loops.limited().await;
    let (claims, mut dispatches) = loops.claims();
    let (starter, queue) = (loops.ready_starter(claims.clone()), QueueName::new(LIMITED));
    let now = clock::instant();
    let long = Duration::from_secs(60);
    claims.database.ready_queues.floors.change(&queue, |floor| {
        floor.was_slow(now);
        floor.read_head(claims.now().plus(long), long, now);
    });
    assert_eq!(starter.look(&queue, true).await, None, "all are due before the floor");

    sqlx::raw_sql("UPDATE duetime.task SET state = 'scheduled'").execute(&loops.test.pool).await.unwrap();
    let ids = loops.three(|task| task.queue = queue.clone()).await;
    let closed = BTreeSet::from([queue.clone()]);
    let held = loops.test.database.task_claim(&ids, &loops.fences, Duration::ZERO, &closed, i64::MAX).await;
    claims.received("due", &ids, &loops.fences, Duration::ZERO, held.unwrap()).await;
    starter.look(&queue, true).await;
    assert_eq!(ids_of(&mut dispatches, 3).await, ids.into());
}

#[tokio::test]
async fn a_count_holds_up_no_hand_over_and_nothing_is_started_in_a_shard_that_stopped_meanwhile() {
    let loops = Loops::new().await;
    loops.limited().await;
    let (claims, _dispatches) = loops.claims();
    let (starter, queue) = (loops.ready_starter(claims), QueueName::new(LIMITED));
    loops.test.be_patient(PoolKind::Fire).await;
    let mut hold = loops.test.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut *hold).await.unwrap();
    let hand_over = async {
        loops.test.until_waiting(1).await;
        let (owned_shards, shards) = (&loops.database().owned_shards, [ShardId::new(0)]);
        owned_shards.begin_release(&shards);
        assert_eq!(owned_shards.busy(&shards), [], "the count has taken nothing");
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    let (again, ()) = tokio::join!(starter.look(&queue, true), hand_over);
    assert!(again.is_some(), "three tasks still wait");
    let started = "SELECT count(*) FROM duetime.task WHERE state <> 'ready'";
    assert_eq!(sqlx::query_scalar::<_, i64>(started).fetch_one(&loops.test.pool).await.unwrap(), 0);
}

const SHARDS: [ShardId; 2] = [ShardId::new(0), ShardId::new(1)];

impl Loops {
    /// Gives the queue these rules, and takes the fence of shard 1 too. Returns that fence.
    async fn ruled(&self, policy: QueuePolicy) -> (ShardId, Epoch) {
        let queue = Queue { policy, ..Queue::with_defaults(QueueName::new(LIMITED)) };
        self.counter.books.store(Arc::new(QueueBook::new(1, [queue])));
        let taken = self.test.database.shard_acquire(&SHARDS[1..], &node("a")).await.unwrap();
        self.database().owned_shards.adopt(&taken);
        taken[0]
    }
}

fn one_a_second(placement: Placement) -> QueuePolicy {
    QueuePolicy { rate_per_second: Some(1.0), placement, ..QueuePolicy::default() }
}

/// A move stops and resumes claims of its shard; a queue that never collects a permit starts nothing.
#[tokio::test]
async fn shards_that_stop_and_go_on_take_no_permit_of_a_rate() {
    let loops = Loops::new().await;
    let (other, epoch) = loops.ruled(one_a_second(Placement::Single)).await;
    for _ in 0..2 {
        loops.three(|task| task.queue = QueueName::new(LIMITED)).await;
    }
    sqlx::raw_sql("UPDATE duetime.task SET state = 'ready'").execute(&loops.test.pool).await.unwrap();
    loops.test.database.ping().await.unwrap();
    let (claims, mut dispatches) = loops.claims();
    let stop = CancellationToken::new();
    spawn_child(loops.ready_starter(claims).run(stop.clone()));
    let moves = async {
        let database = loops.database();
        loop {
            database.owned_shards.stop_claiming(&[other], Stop::Cut);
            database.ready_queues.sooner.notify_one();
            tokio::time::sleep(Duration::from_millis(250)).await;
            database.owned_shards.resume_claiming(other, epoch, Stop::Cut);
            database.ready_queues.sooner.notify_one();
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    tokio::select! {
        started = ids_of(&mut dispatches, 4) => assert_eq!(started.len(), 4),
        () = moves => unreachable!("they go on"),
    }
    stop.cancel();
}

#[tokio::test]
async fn a_shard_of_another_owner_empties_the_buckets_of_the_queues_that_may_have_tasks_in_it() {
    let loops = Loops::new().await;
    let (claims, _dispatches) = loops.claims();
    let starter = loops.ready_starter(claims);
    let queue = QueueName::new(LIMITED);
    let shards = u32::from(starter.places.shard_count().expect("it is read"));
    let own = bound_to(&queue, Placement::Single, None, None, shards).expect("it is bound");
    let other = ShardId::new((own.number() + 1) % u16::try_from(shards).unwrap());
    let owned_shards = &loops.database().owned_shards;
    let mut owned = owned_shards.held();
    let mut is_kept_after = |placement, change: &dyn Fn()| {
        let ruled = Queue { policy: one_a_second(placement), ..Queue::with_defaults(queue.clone()) };
        loops.counter.books.store(Arc::new(QueueBook::new(1, [ruled])));
        let bucket = Some(Bucket::empty(clock::instant()));
        starter.progress.lock().insert(queue.clone(), QueueProgress { bucket, ..QueueProgress::default() });
        change();
        starter.follow_gains(&mut owned);
        starter.progress.lock()[&queue].bucket.is_some()
    };
    let epoch = Epoch::from_store;
    for (placement, of_other) in [(Placement::Single, true), (Placement::Spread, false)] {
        owned_shards.forget(&[own, other]);
        assert!(is_kept_after(placement, &|| ()), "{placement:?}: shards have left");
        assert_eq!(is_kept_after(placement, &|| owned_shards.adopt(&[(other, epoch(5))])), of_other);
        assert!(!is_kept_after(placement, &|| owned_shards.adopt(&[(own, epoch(5))])));
        assert!(is_kept_after(placement, &|| owned_shards.adopt_own(own, epoch(7), epoch(5))), "it was moved back");
        assert!(!is_kept_after(placement, &|| owned_shards.adopt(&[(own, epoch(9))])), "another had it meanwhile");
        owned_shards.forget(&[own]);
        assert!(is_kept_after(placement, &|| ()));
        let from_another_database = is_kept_after(placement, &|| owned_shards.adopt_own(own, epoch(11), epoch(9)));
        assert_eq!(from_another_database, placement == Placement::Spread);
    }
}

#[tokio::test]
async fn a_bucket_that_a_gain_empties_while_its_queue_is_looked_at_stays_empty() {
    let loops = Loops::new().await;
    let starter = loops.ready_starter(loops.claims().0);
    let (queue, mut owned) = (QueueName::new(LIMITED), BTreeMap::new());
    let begun = QueueProgress { bucket: Some(Bucket::empty(clock::instant())), ..QueueProgress::default() };
    starter.progress.lock().insert(queue.clone(), begun.clone());
    // Every shard counts as gained.
    starter.follow_gains(&mut owned);
    starter.remember(&queue, begun.clone(), true);
    assert!(starter.progress.lock()[&queue].bucket.is_none());
    starter.remember(&queue, begun, false);
    assert!(starter.progress.lock()[&queue].bucket.is_some(), "the look has begun it");
}

#[tokio::test]
async fn the_progress_of_a_deleted_queue_is_forgotten_when_the_book_changes() {
    let loops = Loops::new().await;
    let starter = loops.ready_starter(loops.claims().0);
    let [kept, deleted] = ["kept", "deleted"].map(QueueName::new);
    let book = |revision, of: &[&QueueName]| {
        let queues: Vec<Queue> = of.iter().map(|name| Queue::with_defaults((*name).clone())).collect();
        loops.counter.books.store(Arc::new(QueueBook::new(revision, queues)));
    };
    let mut known = 0;
    for (revision, of) in [(1, vec![&kept, &deleted]), (2, vec![&kept])] {
        book(revision, &of);
        for queue in [&kept, &deleted] {
            starter.progress.lock().entry(queue.clone()).or_default();
        }
        starter.forget_deleted(&mut known);
        assert_eq!(starter.progress.lock().len(), of.len());
    }
}
