//! The mover on real databases without etcd.

mod clean;
mod former;
mod gates;
mod heard;
mod late;
mod slow;
mod steps;
mod watched;

use std::sync::atomic::Ordering;

use super::{
    copy::Round,
    cut::{Cut, LONG_CUT, SOON_LONG},
    work::{Ends, LONG_ROUNDS, Stepped},
    *,
};
use crate::{
    coordination::tests::{eventually, soon},
    desk::tests::{Counter, nowhere, with_three_databases, with_two_databases, with_two_of_three_databases},
    loops::cluster::session_keeper::SessionState,
    store::{
        move_requests::{AskedMove, MovesAdded},
        move_rows::PageCursor,
        moves::CloseWait,
        submit::Sending,
        tests::{
            fixture::{self, TestDatabase},
            new_task, node,
        },
    },
    supervise::spawn_child,
};
use common::{
    ids::{Epoch, TaskId},
    shard::{map::FenceRow, move_progress::MovePhase},
    time::UnixMicros,
};

const SHARD: ShardId = ShardId::new(0);

fn mover(me: NodeId, databases: NodeDatabases) -> Mover {
    let session = Session { standing: SessionState::Joining, last_renewal: None, refusal: None };
    let (views, session) = (watch::channel(Arc::default()).1, watch::channel(session).1);
    let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
    Mover::new(me, databases, nowhere(), views, session, metrics)
}

fn asked(shard: ShardId, target: &str) -> AskedMove {
    AskedMove { shard, source: DatabaseName::new("main"), target: DatabaseName::new(target) }
}

fn plan(shard: ShardId, target: &str) -> MoveRow {
    MoveRow {
        shard,
        source: DatabaseName::new("main"),
        target: DatabaseName::new(target),
        step: MovePhase::Planned,
        called_off_at: None,
        requested_by: "a test".to_owned(),
        requested_at: UnixMicros::new(0),
        started_at: None,
        cut: None,
        has_cut: false,
        page: None,
        rows_total: None,
        rows_copied: 0,
        bytes_copied: 0,
        node: None,
        problem: None,
        updated_at: UnixMicros::new(0),
    }
}

/// A shard that its owner moves from the first database to the second.
struct Moving {
    work: Work,
    ends: Ends,
    epoch: Epoch,
    tests: [TestDatabase; 2],
    _counter: Counter,
}

impl Moving {
    async fn new() -> Self {
        let (counter, tests) = with_two_databases().await;
        let me = node("owner");
        let taken = tests[0].database.shard_acquire(&[SHARD], &me).await.unwrap();
        let (source_index, target_index) = (DatabaseIndex::HOME, DatabaseIndex::new(1));
        let databases = counter.databases.clone();
        let (source, target) = (databases[source_index].clone(), databases[target_index].clone());
        source.owned_shards.adopt(&taken);
        assert_eq!(source.sql.move_add(&[asked(SHARD, "east")], "a test").await.unwrap(), MovesAdded::All);
        let plan = source.sql.move_list().await.unwrap().remove(0);
        let mover = mover(me, databases);
        let work = Work::new(mover.shared, &plan, CancellationToken::new());
        let ends = Ends { source, source_index, target, target_index };
        Self { work, ends, epoch: taken[0].1, tests, _counter: counter }
    }

    /// Copies the shard. From here on its changes are noted.
    async fn copy(&mut self) {
        let (source, target) = (&self.ends.source.sql, &self.ends.target.sql);
        target.move_guard(&[SHARD], false).await.unwrap();
        source.move_guard(&[SHARD], false).await.unwrap();
        assert!(target.move_arrive(SHARD, self.epoch, 0, None).await.unwrap());
        assert!(source.move_leave(SHARD, self.epoch, self.work.next_write()).await.unwrap());
        while self.work.page != PageCursor::Done {
            self.work.copy(&self.ends, self.epoch).await.unwrap();
        }
    }

    /// Copies and closes the shard. The target refuses the last part, in which this task comes. Returns the epoch of
    /// the close, too.
    async fn refused(&mut self) -> (TaskId, Epoch) {
        self.copy().await;
        let id = fixture::fresh_id_of(SHARD);
        self.ends.source.sql.task_submit(&[new_task(id)], Sending::First).await.unwrap();
        sqlx::raw_sql(REFUSE_ROWS).execute(&self.tests[1].pool).await.unwrap();
        (id, self.close().await)
    }

    /// Closes the shard, as a node that dies in its cut. Returns the epoch of the close.
    async fn close(&self) -> Epoch {
        self.close_under(self.epoch).await
    }

    async fn close_under(&self, epoch: Epoch) -> Epoch {
        let write = self.work.next_write();
        let closed = self.ends.source.sql.move_close(SHARD, epoch, write, CloseWait::Plain).await.unwrap();
        closed.expect("the owner closes it")
    }

    async fn statuses(&self) -> [ShardStatus; 2] {
        let (source, target) =
            tokio::join!(self.ends.source.sql.move_fence(SHARD), self.ends.target.sql.move_fence(SHARD));
        [source, target].map(|fence| fence.unwrap().expect("both know the shard").status)
    }
}

#[tokio::test]
async fn what_changes_after_the_last_round_is_in_the_target_when_it_opens() {
    let mut moving = Moving::new().await;
    let source = Arc::clone(&moving.tests[0].database);
    let id = fixture::fresh_id_of(SHARD);
    source.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    moving.copy().await;
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("scheduled"), "the copy has the task");
    let fences = BTreeMap::from([(SHARD, moving.epoch)]);
    let claimed = source.task_claim(&[id], &fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap();
    assert_eq!(claimed.deliveries.len(), 1);
    // The answer is lost.
    moving.ends.source.look_again([id], Duration::from_secs(3_600));
    let closed = moving.close().await;
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert!(moving.ends.target.owned_shards.own_since(SHARD).is_some(), "the target has the shard");
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("dispatching"), "the claim came over");
    assert_eq!(moving.ends.target.owned_shards.in_doubt(SHARD), [id], "a rescue looks at it there");
}

/// Refuses each row of a copy, as a constraint of an operator may.
const REFUSE_ROWS: &str = "
    CREATE FUNCTION public.refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'a test refuses this row';
    END $$;
    CREATE TRIGGER refuse_row BEFORE INSERT ON duetime.task FOR EACH ROW EXECUTE FUNCTION public.refuse_row();
";

#[tokio::test]
async fn a_shard_whose_last_part_is_refused_fires_from_its_source_again() {
    let mut moving = Moving::new().await;
    let (id, closed) = moving.refused().await;
    let stepped = moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert!(matches!(&stepped, Stepped::HeldUp(why) if why.contains("a test refuses this row")), "{stepped:?}");
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
    let (source, target) = (moving.ends.source.clone(), moving.ends.target.clone());
    assert!(source.owned_shards.is_claimable(SHARD));
    let fences = source.owned_shards.owned();
    let claimed = source.sql.task_claim(&[id], &fences, Duration::ZERO, &BTreeSet::new(), i64::MAX).await.unwrap();
    assert_eq!(claimed.deliveries.len(), 1);
    let me = moving.work.shared.me.clone();
    let late = target.sql.move_open(SHARD, closed, closed, &me).await.unwrap();
    assert_eq!(late, None, "an open that comes late does nothing");
    sqlx::raw_sql("DROP TRIGGER refuse_row ON duetime.task").execute(&moving.tests[1].pool).await.unwrap();
    let again = moving.close_under(fences[&SHARD]).await;
    moving.work.finish_cut(&moving.ends, again).await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
    assert_eq!(moving.tests[1].state_of(id).await.as_deref(), Some("dispatching"), "the move has gone on");
}

#[tokio::test]
async fn a_shard_that_its_target_has_opened_without_an_answer_stays_closed_in_its_source() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let closed = moving.close().await;
    let me = moving.work.shared.me.clone();
    moving.ends.target.sql.move_open(SHARD, moving.epoch, closed, &me).await.unwrap().expect("it arrives");
    assert!(!moving.work.undo_cut(&moving.ends, closed).await.unwrap());
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
}

#[tokio::test]
async fn a_cut_that_is_given_up_has_its_shard_open_in_the_source_from_then_on() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let id = fixture::fresh_id_of(SHARD);
    moving.ends.source.sql.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    sqlx::raw_sql(REFUSE_ROWS).execute(&moving.tests[1].pool).await.unwrap();
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    let cut = moving.work.cut_without_claims(&ends, epoch, Instant::now()).await.unwrap();
    assert!(matches!(cut, Cut::Reopened(..)), "{cut:?}");
    assert!(moving.work.reopening.is_some(), "the target must not open, had the answer been lost");
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
}

/// The answer to its opening was lost, and it may still be under way.
#[tokio::test]
async fn a_shard_that_may_open_in_its_source_late_is_not_opened_in_its_target() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let closed = moving.close().await;
    moving.work.reopening = Some(closed);
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    assert_eq!(moving.statuses().await, [ShardStatus::Leaving, ShardStatus::Arriving]);
}

#[tokio::test]
async fn a_cut_that_was_half_undone_ends_in_the_source_with_its_owner_and_in_the_target_with_the_next() {
    for is_same_owner in [true, false] {
        let mut moving = Moving::new().await;
        let (_, mut closed) = moving.refused().await;
        moving.work.shared.writes.fetch_add(100, Ordering::Relaxed);
        assert!(moving.ends.target.sql.move_refuse_open(SHARD, closed).await.unwrap());
        sqlx::raw_sql("DROP TRIGGER refuse_row ON duetime.task").execute(&moving.tests[1].pool).await.unwrap();
        let mut expected = [ShardStatus::Leaving, ShardStatus::Arriving];
        if !is_same_owner {
            // An acquire of a closed shard.
            let acquire = "UPDATE duetime.shard SET epoch = epoch + 1 WHERE id = 0 RETURNING epoch";
            let epoch: i64 = sqlx::query_scalar(acquire).fetch_one(&moving.tests[0].pool).await.unwrap();
            (closed, expected) = (Epoch::from_store(epoch), [ShardStatus::Gone, ShardStatus::Here]);
            // A node that has written less.
            moving.work.shared.writes.store(0, Ordering::Relaxed);
        }
        moving.work.finish_cut(&moving.ends, closed).await.unwrap();
        assert_eq!(moving.statuses().await, expected);
    }
}

/// Tasks on [`SHARD`], of which a round reads two thousand at once, and which leave a round of few changes.
const MANY_TASKS: &str = "
    INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
    SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now(), now(), '', '' FROM generate_series(1, 2100)";

/// Has each write of the copy take as long as a round may.
const SLOW_WRITES: &str = "
    CREATE FUNCTION public.slow_write() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(1);
        RETURN NULL;
    END $$;
    CREATE TRIGGER slow_write AFTER INSERT ON duetime.task FOR EACH STATEMENT EXECUTE FUNCTION public.slow_write();
";

#[tokio::test]
async fn a_shard_that_changes_faster_than_it_is_copied_is_held_up_and_moves_when_it_changes_less() {
    let mut moving = Moving::new().await;
    let (source, target) = (moving.tests[0].pool.clone(), moving.tests[1].pool.clone());
    sqlx::raw_sql(MANY_TASKS).execute(&source).await.unwrap();
    moving.copy().await;
    sqlx::raw_sql(SLOW_WRITES).execute(&target).await.unwrap();
    sqlx::raw_sql("UPDATE duetime.task SET priority = 5 WHERE shard = 0").execute(&source).await.unwrap();
    moving.work.long_rounds = LONG_ROUNDS - 1;
    let stepped = moving.work.cut(&moving.ends, moving.epoch).await.unwrap();
    assert!(matches!(&stepped, Stepped::HeldUp(why) if why.contains("changes faster")), "{stepped:?}");
    let changes = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM duetime.move_change");
    assert_eq!(changes.fetch_one(&source).await.unwrap(), 100, "the round has ended before the last changes");
    assert_eq!(moving.work.round(&moving.ends, moving.epoch).await.unwrap(), Round::Short);
    let mut stepped = Stepped::On;
    while matches!(stepped, Stepped::On) {
        stepped = moving.work.cut(&moving.ends, moving.epoch).await.unwrap();
    }
    assert!(matches!(stepped, Stepped::Ended), "nothing holds it up any more: {stepped:?}");
    assert_eq!(moving.statuses().await, [ShardStatus::Gone, ShardStatus::Here]);
}

/// Large payloads fill a read with few changes.
#[tokio::test]
async fn a_round_goes_on_while_a_read_was_full_however_few_changes_it_has() {
    let mut moving = Moving::new().await;
    let source = moving.tests[0].pool.clone();
    moving.copy().await;
    let large = "
        INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
        SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now(), now(), convert_to(repeat('x', 100000), 'UTF8'), 'text/plain'
          FROM generate_series(1, 60)";
    sqlx::raw_sql(large).execute(&source).await.unwrap();
    // A slow machine may need more than the time of one round.
    while moving.work.round(&moving.ends, moving.epoch).await.unwrap() == Round::Long {}
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM duetime.move_change").fetch_one(&source).await.unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn changes_that_a_round_has_left_go_before_further_pages() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let id = fixture::fresh_id_of(SHARD);
    moving.ends.source.sql.task_submit(&[new_task(id)], Sending::First).await.unwrap();
    (moving.work.page, moving.work.is_behind) = (PageCursor::FIRST, true);
    moving.work.copy(&moving.ends, moving.epoch).await.unwrap();
    assert_eq!((&moving.work.page, moving.work.is_behind), (&PageCursor::FIRST, false));
    assert!(moving.tests[1].state_of(id).await.is_some(), "it has caught up");
    moving.work.copy(&moving.ends, moving.epoch).await.unwrap();
    assert_ne!(moving.work.page, PageCursor::FIRST, "the pages go on");
}

#[tokio::test]
async fn moves_to_a_database_that_is_away_leave_a_place_to_the_others() {
    let (counter, tests) = with_two_of_three_databases().await;
    let shards = [0, 1, 2, 3].map(ShardId::new);
    let me = node("owner");
    let main = &counter.databases[DatabaseIndex::HOME];
    main.owned_shards.adopt(&main.sql.shard_acquire(&shards, &me).await.unwrap());
    let targets = ["west", "west", "west", "east"];
    let moves: Vec<AskedMove> = shards.into_iter().zip(targets).map(|(shard, target)| asked(shard, target)).collect();
    assert_eq!(main.sql.move_add(&moves, "a test").await.unwrap(), MovesAdded::All);
    let mover = mover(me, counter.databases.clone());
    let shared = Arc::clone(&mover.shared);
    let stop = CancellationToken::new();
    let task = spawn_child(mover.run(stop.clone()));
    let is_listed = || shared.plans.load().contains_key(&shards[3]);
    eventually("the moves are listed", is_listed).await;
    eventually("the move to the database that answers has ended", || !is_listed()).await;
    assert!(counter.databases[DatabaseIndex::new(1)].owned_shards.own_since(shards[3]).is_some());
    let all_held_up = BTreeSet::from([shards[0], shards[1], shards[2]]);
    eventually("the others are held up", || *shared.held_up.lock() == all_held_up).await;
    let gauges = || (shared.metrics.moves_under_way.get(), shared.metrics.moves_held_up.get());
    eventually("they show", || gauges() == (3, 3)).await;
    stop.cancel();
    soon("the end of the mover", task).await.unwrap();
    drop(tests);
}

#[tokio::test]
async fn a_move_of_a_shard_that_neither_end_has_says_so_and_ends_once_it_is_called_off() {
    let (counter, tests) = with_three_databases().await;
    let (me, shard) = (node("owner"), ShardId::new(64));
    let (home, east) = (&counter.databases[DatabaseIndex::HOME], &counter.databases[DatabaseIndex::new(1)]);
    east.owned_shards.adopt(&east.sql.shard_acquire(&[shard], &me).await.unwrap());
    // The map of the node that was asked did not have the second database.
    assert_eq!(home.sql.move_add(&[asked(shard, "west")], "a test").await.unwrap(), MovesAdded::All);
    let mover = mover(me, counter.databases.clone());
    let shared = Arc::clone(&mover.shared);
    let stop = CancellationToken::new();
    let task = spawn_child(mover.run(stop.clone()));
    let problem = || shared.plans.load().get(&shard).and_then(|plan| plan.problem.clone());
    eventually("its problem shows", || problem().is_some_and(|problem| problem.contains("contradict"))).await;
    home.sql.move_call_off(&[shard].into_iter().collect()).await.unwrap();
    eventually("it has ended", || shared.plans.load().is_empty()).await;
    assert_eq!(home.sql.move_list().await.unwrap(), []);
    assert_eq!(east.sql.move_fence(shard).await.unwrap().unwrap().status, ShardStatus::Here);
    stop.cancel();
    soon("the end of the mover", task).await.unwrap();
    drop(tests);
}

/// The shard whose move takes the next place.
fn next(shared: &Shared, busy: &[ShardId]) -> Option<ShardId> {
    let begun = Begun { busy: busy.iter().copied().collect(), ..Begun::default() };
    shared.next(&begun).map(|plan| plan.shard)
}

#[tokio::test]
async fn a_closed_shard_waits_for_no_place() {
    let moving = Moving::new().await;
    let shared = &moving.work.shared;
    shared.plans.store(Arc::new(BTreeMap::from([(SHARD, plan(SHARD, "east"))])));
    let busy = [1, 2].map(ShardId::new);
    assert_eq!(next(shared, &busy), None);
    let row = |shard, status| FenceRow { shard, status, epoch: moving.epoch };
    let of_main = |shard| row(shard, if shard == SHARD { ShardStatus::Gone } else { ShardStatus::Here });
    let main = (0..64).map(ShardId::new).map(of_main).collect();
    let east = (64..128).map(|shard| row(ShardId::new(shard), ShardStatus::Here));
    let east = east.chain([row(SHARD, ShardStatus::Arriving)]).collect();
    shared.databases.places().tell(&[Some(main), Some(east)]);
    assert_eq!(next(shared, &busy), Some(SHARD));
}

#[tokio::test]
async fn moves_that_do_not_get_on_are_few_and_take_one_of_two_places() {
    let moving = Moving::new().await;
    let shared = &moving.work.shared;
    let shards: Vec<ShardId> = (0..30).map(ShardId::new).collect();
    let (last, rest) = shards.split_last().unwrap();
    let owned: Vec<_> = shards.iter().map(|shard| (*shard, moving.epoch)).collect();
    moving.ends.source.owned_shards.adopt(&owned);
    let plans = rest.iter().map(|shard| (*shard, plan(*shard, "west"))).chain([(*last, plan(*last, "east"))]);
    shared.plans.store(Arc::new(plans.collect()));
    shared.held_up.lock().extend(&shards[..HELD_UP_MOST - 1]);
    assert_eq!(next(shared, &[]), Some(shards[0]), "the first place is for one of them");
    assert_eq!(next(shared, &shards[..1]), Some(shards[HELD_UP_MOST - 1]), "the second is for another move");
    shared.held_up.lock().insert(shards[HELD_UP_MOST - 1]);
    assert_eq!(next(shared, &shards[..1]), Some(*last), "enough moves wait for that target");
    shared.plans.store(Arc::new(rest.iter().map(|shard| (*shard, plan(*shard, "west"))).collect()));
    assert_eq!(next(shared, &shards[..1]), Some(shards[1]), "no other move waits");
    assert_eq!(next(shared, &shards[..2]), None);
}

#[tokio::test]
async fn a_move_neither_copies_nor_deletes_while_commits_of_its_target_are_not_replicated() {
    let (counter, tests) = with_two_databases().await;
    let me = node("owner");
    let (home, east) = (&counter.databases[DatabaseIndex::HOME], &counter.databases[DatabaseIndex::new(1)]);
    home.owned_shards.adopt(&home.sql.shard_acquire(&[SHARD], &me).await.unwrap());
    home.sql.task_submit(&[new_task(fixture::fresh_id_of(SHARD))], Sending::First).await.unwrap();
    assert_eq!(home.sql.move_add(&[asked(SHARD, "east")], "a test").await.unwrap(), MovesAdded::All);
    east.sql.pretend_unreplicated(Some("no standby"));
    let mover = mover(me, counter.databases.clone());
    let shared = Arc::clone(&mover.shared);
    let stop = CancellationToken::new();
    let task = spawn_child(mover.run(stop.clone()));
    let is_held_up = |step: MovePhase| {
        let plans = shared.plans.load();
        let says_why = |why: &String| why == "commits of database `east` are not replicated: no standby";
        plans.get(&SHARD).is_some_and(|plan| plan.step == step && plan.problem.as_ref().is_some_and(says_why))
    };
    eventually("it says why it waits", || is_held_up(MovePhase::Planned)).await;
    assert!(east.sql.move_fence(SHARD).await.unwrap().is_none(), "nothing has come there");
    east.sql.pretend_unreplicated(None);
    eventually("the target has the shard", || east.owned_shards.own_since(SHARD).is_some()).await;
    east.sql.pretend_unreplicated(Some("no standby"));
    eventually("it says why its source is kept", || is_held_up(MovePhase::Cleaning)).await;
    assert_eq!(tests[0].live().await, 1, "the replicated copy is still there");
    east.sql.pretend_unreplicated(None);
    eventually("the move has ended", || shared.plans.load().is_empty()).await;
    assert_eq!(tests[0].live().await, 0);
    stop.cancel();
    soon("the end of the mover", task).await.unwrap();
}

/// Lets the database refuse each note of how far a move is, and count them.
const REFUSE_NOTES: &str = "
    CREATE SEQUENCE public.notes;
    CREATE FUNCTION public.refuse_note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM nextval('public.notes');
        RAISE EXCEPTION 'a test refuses this note' USING ERRCODE = 'read_only_sql_transaction';
    END $$;
    CREATE TRIGGER refuse_note BEFORE UPDATE ON duetime.move FOR EACH ROW EXECUTE FUNCTION public.refuse_note();
";

/// Notes that a move tries to write in a second, if it rests between them.
const NOTES_MOST: u64 = 4;

#[tokio::test]
async fn a_move_whose_cut_cannot_be_noted_rests_between_its_attempts() {
    let mut moving = Moving::new().await;
    let pool = moving.tests[0].pool.clone();
    sqlx::raw_sql(REFUSE_NOTES).execute(&pool).await.unwrap();
    moving.copy().await;
    let closed = moving.close().await;
    moving.work.finish_cut(&moving.ends, closed).await.unwrap();
    let mover = Mover { shared: Arc::clone(&moving.work.shared) };
    let stop = CancellationToken::new();
    let task = spawn_child(mover.run(stop.clone()));
    let notes = || sqlx::query_scalar::<_, i64>("SELECT last_value FROM public.notes").fetch_one(&pool);
    let before = notes().await.unwrap();
    let tried = async {
        while notes().await.unwrap() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("an attempt to note the cut", tried).await;
    let first = notes().await.unwrap();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (more, time) = ((notes().await.unwrap() - first).unsigned_abs(), begun.elapsed());
    assert!(more < NOTES_MOST * time.as_secs().max(2), "{more} notes in {time:?}");
    sqlx::raw_sql("DROP TRIGGER refuse_note ON duetime.move").execute(&pool).await.unwrap();
    let shared = &moving.work.shared;
    eventually("the move has ended", || !shared.plans.load().contains_key(&SHARD)).await;
    stop.cancel();
    soon("the end of the mover", task).await.unwrap();
}
