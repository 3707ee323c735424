//! Schedules: one statement decides each fire time, once.

use std::time::Duration;

use common::{
    ids::{QueueName, ScheduleName, ShardId, TaskId},
    queue::QueuePolicy,
    schedule::{Fire, FireDecision, Overlap, Rules, ScheduleState, When},
    time::UnixMicros,
};
use sqlx::{Postgres, pool::PoolConnection};

use super::{
    fixture::{self, TestDatabase, database},
    until_waiting,
};
use crate::{
    store::{
        PoolKind,
        schedules::{LookedAtWithin, ScheduleContents, ScheduleCount, ScheduleQuota, ScheduleRecord, ScheduleWrite},
    },
    supervise::spawn_child,
};

pub(super) const HOUR_US: i64 = 3_600_000_000;

fn rules(queue: &str) -> Rules {
    Rules {
        queue: QueueName::new(queue),
        when: When::Every { every_ms: 3_600_000 },
        overlap: Overlap::Allow,
        catch_up_ms: 60_000,
        content_type: "application/json".to_owned(),
        headers: Default::default(),
        priority: 3,
        partition_key: None,
        max_attempts: None,
        timeout_ms: None,
        retry: None,
        expires_after_ms: None,
    }
}

pub(super) fn standing(next_hour: i64) -> ScheduleState {
    let since = UnixMicros::new((next_hour - 1) * HOUR_US);
    ScheduleState { next_at: Some(UnixMicros::new(next_hour * HOUR_US)), since, paused_at: None, buffered_at: None }
}

fn wish(rules: &Rules, standing: ScheduleState) -> ScheduleContents<'_> {
    ScheduleContents { rules, payload: b"{}", standing, wake_at: standing.next_at }
}

/// Adds a schedule whose hour 1 is long past.
pub(super) async fn added(test: &TestDatabase, name: &str) -> ScheduleRecord {
    let rules = rules("mails");
    put(test, name, &rules, NONE).await.expect("new")
}

const NONE: ScheduleQuota<'_> = ScheduleQuota { of_caller: None, queues: None };

async fn put(test: &TestDatabase, name: &str, rules: &Rules, quota: ScheduleQuota<'_>) -> Option<ScheduleRecord> {
    done(test.database.schedule_add(&ScheduleName::new(name), wish(rules, standing(1)), quota).await.unwrap())
}

/// Returns the schedule that was written. `None`: the schedule has changed, or one exists
/// already. No limit is reached here.
fn done(written: ScheduleWrite) -> Option<ScheduleRecord> {
    match written {
        ScheduleWrite::Done(record) => Some(*record),
        ScheduleWrite::Overtaken => None,
        full => panic!("{full:?}"),
    }
}

/// The decision that hour 1 fires.
pub(super) fn turn() -> FireDecision {
    let fire = Fire { at: UnixMicros::new(HOUR_US), buffered: false };
    FireDecision {
        fires: vec![fire],
        skipped: 0,
        missed: 0,
        state: standing(2),
        wake_at: Some(UnixMicros::new(2 * HOUR_US)),
    }
}

async fn decide(test: &TestDatabase, read: &ScheduleRecord, id: TaskId) -> Option<ScheduleRecord> {
    test.database.schedule_turn(&read.name, read.revision, &turn(), &[id], Duration::ZERO).await.unwrap()
}

fn all_shards() -> Vec<ShardId> {
    fixture::all_shards().iter().collect()
}

pub(super) async fn decided(test: &TestDatabase) -> Vec<uuid::Uuid> {
    sqlx::query_scalar("SELECT id FROM duetime.fire").fetch_all(&test.pool).await.unwrap()
}

#[tokio::test]
async fn a_schedule_reads_back_and_pages_go_by_name() {
    let test = database().await;
    let kept = added(&test, "b").await;
    assert_eq!((kept.rules, kept.payload, kept.standing), (rules("mails"), b"{}".to_vec(), standing(1)));
    for name in ["a", "c"] {
        added(&test, name).await;
    }
    let names =
        |records: Vec<ScheduleRecord>| records.into_iter().map(|record| record.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(test.database.schedule_list(None, 2, None).await.unwrap()), ["a", "b"]);
    assert_eq!(names(test.database.schedule_list(Some("b"), 2, None).await.unwrap()), ["c"]);
    sqlx::query("UPDATE duetime.schedule SET since = clock_timestamp() + interval '1 day' WHERE name = 'a'")
        .execute(&test.pool)
        .await
        .unwrap();
    let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3_600));
    let count = async || {
        let within = LookedAtWithin { schedule: hour, fire: minute };
        test.database.schedule_count(minute, within).await.unwrap()
    };
    assert_eq!(count().await, ScheduleCount { schedules: 3, ahead: 1, put_off: 0 });
    // The first rightly waits for its next fire time, the second waits in vain.
    sqlx::raw_sql(
        "UPDATE duetime.schedule SET wake_at = now() + interval '1 day' WHERE name <> 'c';
         UPDATE duetime.schedule SET next_at = wake_at + interval '3 s' WHERE name = 'a'",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    assert_eq!(count().await.put_off, 1);
    for (change, put_off) in [("buffered_at = now()", 2), ("paused_at = now()", 1)] {
        let change = format!("UPDATE duetime.schedule SET {change} WHERE name = 'a'");
        sqlx::query(sqlx::AssertSqlSafe(change)).execute(&test.pool).await.unwrap();
        assert_eq!(count().await.put_off, put_off, "one that is buffered waits in vain, unless it is paused");
    }
    let fire = "INSERT INTO duetime.fire (id, schedule, fire_at, buffered, rules, payload, wake_at)
                SELECT gen_random_uuid(), name, now(), false, rules, payload, now() + interval '2 minutes'
                  FROM duetime.schedule WHERE name = 'a'";
    sqlx::query(fire).execute(&test.pool).await.unwrap();
    assert_eq!(count().await.put_off, 2);
    let rules = rules("others");
    assert!(put(&test, kept.name.as_str(), &rules, NONE).await.is_none(), "one is there");
}

#[tokio::test]
async fn of_two_that_decide_the_same_fire_time_at_the_same_moment_one_does() {
    let test = database().await;
    let read = added(&test, "s").await;
    test.be_patient(PoolKind::Fire).await;
    let mut blocker = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *blocker).await.unwrap();
    sqlx::query("SELECT FROM duetime.schedule FOR UPDATE").execute(&mut *blocker).await.unwrap();
    let deciding = [fixture::fresh_id(), fixture::fresh_id()].map(|id| {
        let (database, read) = (test.database.clone(), read.clone());
        spawn_child(async move {
            let turned = database.schedule_turn(&read.name, read.revision, &turn(), &[id], Duration::ZERO).await;
            turned.unwrap().map(|record| (id, record))
        })
    });
    until_waiting(&test.pool, 2).await;
    sqlx::query("COMMIT").execute(&mut *blocker).await.unwrap();
    let won: Vec<_> = futures::future::join_all(deciding).await.into_iter().filter_map(|done| done.unwrap()).collect();
    assert_eq!(won.len(), 1, "the other finds the schedule changed");
    let (id, record) = &won[0];
    assert_eq!(decided(&test).await, [id.uuid()]);
    assert_eq!((record.last_task, record.last_fire_at), (Some(*id), Some(UnixMicros::new(HOUR_US))));
    assert_eq!(record.standing, standing(2));
}

#[tokio::test]
async fn what_was_changed_or_made_anew_in_between_is_not_decided_by_what_was_read_before() {
    let test = database().await;
    let read = added(&test, "s").await;
    let other = rules("others");
    let change = || test.database.schedule_change(&read.name, read.revision, wish(&other, standing(1)));
    assert_eq!(done(change().await.unwrap()).expect("it was as it was read").rules.queue.as_str(), "others");
    assert!(decide(&test, &read, fixture::fresh_id()).await.is_none());
    assert!(done(change().await.unwrap()).is_none());

    assert!(test.database.schedule_delete(&read.name, None).await.unwrap());
    added(&test, "s").await;
    assert!(decide(&test, &read, fixture::fresh_id()).await.is_none(), "no revision comes twice");
    assert!(decided(&test).await.is_empty());
}

#[tokio::test]
async fn a_decided_fire_time_stays_as_it_was_decided_whatever_becomes_of_its_schedule() {
    let test = database().await;
    let read = added(&test, "s").await;
    let id = fixture::fresh_id();
    let turned = decide(&test, &read, id).await.expect("decided");
    let other = rules("others");
    let changed = test.database.schedule_change(&read.name, turned.revision, wish(&other, standing(2))).await;
    done(changed.unwrap()).expect("changed");
    assert!(test.database.schedule_delete(&read.name, None).await.unwrap());
    let others: Vec<ShardId> = all_shards().into_iter().filter(|shard| *shard != id.shard()).collect();
    assert!(test.database.fire_take(Duration::from_secs(60), 10, &others).await.unwrap().is_empty());
    let taken = test.database.fire_take(Duration::from_secs(60), 10, &all_shards()).await.unwrap();
    let fire = taken.into_iter().next().expect("one").expect("readable");
    assert_eq!((fire.id, fire.rules, fire.payload), (id, rules("mails"), b"{}".to_vec()));
    assert_eq!(fire.fire, turn().fires[0]);
    assert!(
        test.database.fire_take(Duration::ZERO, 10, &all_shards()).await.unwrap().is_empty(),
        "its taker has a minute"
    );
    test.database.fire_done(&[id]).await.unwrap();
    assert!(decided(&test).await.is_empty());
}

#[tokio::test]
async fn two_that_take_on_at_the_same_moment_get_different_fire_times() {
    let test = database().await;
    for name in ["a", "b"] {
        let read = added(&test, name).await;
        decide(&test, &read, fixture::fresh_id()).await.expect("decided");
    }
    let mut first = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    let taking = sqlx::query(include_str!("../queries/fire_take.sql"));
    let hold = crate::store::claim::interval(Duration::from_secs(60));
    let taking = taking.bind(hold).bind(1_i64).bind(crate::store::numbers(&all_shards()));
    let held: Vec<sqlx::postgres::PgRow> =
        taking.bind(UnixMicros::FIRST.to_utc()).fetch_all(&mut *first).await.unwrap();
    let held: TaskId = crate::store::task_id(&held[0], "id").unwrap();
    let taken = test.database.fire_take(Duration::from_secs(60), 10, &all_shards()).await.unwrap();
    let ids: Vec<TaskId> = taken.into_iter().map(|fire| fire.unwrap().id).collect();
    assert!(ids.len() == 1 && ids[0] != held, "it neither waits nor takes the same: {ids:?}");
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
}

#[tokio::test]
async fn what_is_due_is_read_with_the_next_moment_and_others_wait_their_time() {
    let test = database().await;
    let none = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    assert!(none.schedules.is_empty() && none.next_wake_at.is_none());
    added(&test, "due").await;
    let soon = added(&test, "soon").await;
    let later = "UPDATE duetime.schedule SET wake_at = clock_timestamp() + interval '1 hour' WHERE name = 'soon'";
    sqlx::query(later).execute(&test.pool).await.unwrap();
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    assert_eq!(due.schedules.len(), 1);
    let found = due.schedules[0].as_ref().unwrap();
    assert_eq!((found.record.name.as_str(), found.pending), ("due", false));
    assert!(due.next_wake_at.is_some_and(|next| next > due.now));

    let read = found.record.revision;
    let both = [(&found.record.name, read), (&soon.name, read)];
    assert!(test.database.schedule_postpone(&both, Duration::ZERO).await.unwrap().is_empty(), "none is held");
    let minute = Duration::from_secs(60);
    assert!(test.database.schedule_due(minute, 10, &[], &[], None).await.unwrap().schedules.is_empty());
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    assert_eq!(due.schedules.len(), 1, "a schedule changed after the read is not postponed");

    decide(&test, &due.schedules[0].as_ref().unwrap().record, fixture::fresh_id()).await.expect("decided");
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    assert!(due.schedules[0].as_ref().unwrap().pending, "its task is not known to be written");
}

#[tokio::test]
async fn schedules_that_an_open_transaction_holds_are_not_read_and_their_neighbours_are() {
    let test = database().await;
    for name in ["a", "b", "c"] {
        added(&test, name).await;
    }
    let mut holder = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *holder).await.unwrap();
    sqlx::query("UPDATE duetime.schedule SET payload = '' WHERE name <= 'b'").execute(&mut *holder).await.unwrap();
    let names = async |most| {
        let due = test.database.schedule_due(Duration::ZERO, most, &[], &[], None).await.unwrap();
        due.schedules.into_iter().map(|read| read.unwrap().record.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(1).await, ["c"], "those that are held take no place");
    sqlx::query("ROLLBACK").execute(&mut *holder).await.unwrap();
    assert_eq!(names(3).await.len(), 3);
}

#[tokio::test]
async fn one_that_cannot_be_read_does_not_keep_the_others_from_it() {
    let test = database().await;
    added(&test, "good").await;
    added(&test, "newer").await;
    sqlx::query(r#"UPDATE duetime.schedule SET rules = '{"moon": true}' WHERE name = 'newer'"#)
        .execute(&test.pool)
        .await
        .unwrap();
    let due = test.database.schedule_due(Duration::ZERO, 10, &[], &[], None).await.unwrap();
    let (good, bad): (Vec<_>, Vec<_>) = due.schedules.into_iter().partition(Result::is_ok);
    assert_eq!((good.len(), bad.len()), (1, 1));
}

#[tokio::test]
async fn a_queue_and_a_caller_have_only_so_many_schedules() {
    let test = database().await;
    let (mails, others) = (rules("mails"), rules("others"));
    limit(&test, Some(2)).await;
    let add = async |name: &str, rules: &Rules, quota| {
        test.database.schedule_add(&ScheduleName::new(name), wish(rules, standing(1)), quota).await.unwrap()
    };
    assert!(put(&test, "a", &mails, NONE).await.is_some());
    let second = put(&test, "b", &mails, NONE).await.expect("there is room");
    assert!(matches!(add("c", &mails, NONE).await, ScheduleWrite::QueueFull { used: 2, most: 2 }));
    let elsewhere = put(&test, "c", &others, NONE).await.expect("another queue has room");

    let change = async |from: &ScheduleRecord, rules: &Rules| {
        test.database.schedule_change(&from.name, from.revision, wish(rules, standing(2))).await.unwrap()
    };
    let moved = change(&elsewhere, &mails).await;
    assert!(matches!(moved, ScheduleWrite::QueueFull { used: 2, most: 2 }), "nor does one move there");
    assert!(done(change(&second, &mails).await).is_some(), "one that stays needs no room");
    limit(&test, None).await;

    let scope = ["mail*".to_owned(), "other".to_owned()];
    let of_caller = |most| ScheduleQuota { of_caller: Some(most), queues: Some(&scope) };
    assert!(
        matches!(add("d", &others, of_caller(2)).await, ScheduleWrite::CallerFull(2)),
        "those of `others` do not count"
    );
    assert!(matches!(add("d", &mails, of_caller(3)).await, ScheduleWrite::Done(_)));
    let all = ScheduleQuota { of_caller: Some(4), ..NONE };
    assert!(matches!(add("e", &mails, all).await, ScheduleWrite::CallerFull(4)));
}

/// Sets the limit of schedules of the queue `mails`.
async fn limit(test: &TestDatabase, max_schedules: Option<i64>) {
    let policy = QueuePolicy { max_schedules, ..QueuePolicy::default() };
    test.database.queue_put(&QueueName::new("mails"), &policy, None, 10).await.unwrap().expect("there is room");
}

/// A limit that is answered before the schedule is written would be exceeded by it otherwise.
#[tokio::test]
async fn a_new_schedule_waits_for_a_change_of_its_queues_limit_that_is_under_way() {
    let test = database().await;
    test.be_patient(PoolKind::Write).await;
    limit(&test, None).await;
    let elsewhere = put(&test, "b", &rules("others"), NONE).await.expect("new");
    let mut changing = test.pool.acquire().await.unwrap();
    let limit = r#"UPDATE duetime.queue SET policy = policy || '{"max_schedules": 0}'"#;
    for statement in ["BEGIN", "SELECT duetime.await_claims()", limit] {
        sqlx::query(statement).execute(&mut *changing).await.unwrap();
    }
    let database = test.database.clone();
    let adding = spawn_child(async move {
        let mails = rules("mails");
        database.schedule_add(&ScheduleName::new("a"), wish(&mails, standing(1)), NONE).await
    });
    let database = test.database.clone();
    let moving = spawn_child(async move {
        let mails = rules("mails");
        database.schedule_change(&elsewhere.name, elsewhere.revision, wish(&mails, standing(1))).await
    });
    test.until_waiting(2).await;
    sqlx::query("COMMIT").execute(&mut *changing).await.unwrap();
    for written in [adding.await.unwrap().unwrap(), moving.await.unwrap().unwrap()] {
        assert!(matches!(written, ScheduleWrite::QueueFull { used: 0, most: 0 }), "{written:?}");
    }
}

/// Otherwise a stream of new schedules keeps the change waiting, and no task is claimed meanwhile.
#[tokio::test]
async fn a_change_of_a_queue_waits_for_the_new_schedules_in_flight_and_later_ones_wait_for_it() {
    let test = database().await;
    let timeout = "ALTER FUNCTION duetime.await_claims() SET lock_timeout = '1min'";
    sqlx::query(timeout).execute(&test.pool).await.unwrap();
    test.be_patient(PoolKind::Write).await;
    limit(&test, None).await;
    added(&test, "a").await;
    let mut locking = test.pool.acquire().await.unwrap();
    for statement in ["BEGIN", "LOCK TABLE duetime.schedule IN SHARE MODE"] {
        sqlx::query(statement).execute(&mut *locking).await.unwrap();
    }
    let add = |name: &'static str| {
        let database = test.database.clone();
        spawn_child(async move {
            let mails = rules("mails");
            database.schedule_add(&ScheduleName::new(name), wish(&mails, standing(1)), NONE).await.unwrap()
        })
    };
    let first = add("a");
    test.until_waiting(1).await;
    let database = test.database.clone();
    let changing = spawn_child(async move {
        let policy = QueuePolicy { max_schedules: Some(0), ..QueuePolicy::default() };
        database.queue_put(&QueueName::new("mails"), &policy, None, 10).await
    });
    test.until_waiting(2).await;
    let second = add("b");
    test.until_waiting(3).await;
    assert!(!changing.is_finished(), "no answer while a schedule by the former limit is under way");
    sqlx::query("ROLLBACK").execute(&mut *locking).await.unwrap();
    assert!(done(first.await.unwrap()).is_none(), "its name is taken");
    changing.await.unwrap().unwrap().expect("there is room");
    let second = second.await.unwrap();
    assert!(matches!(second, ScheduleWrite::QueueFull { used: 1, most: 0 }), "{second:?}");
}

const HOLD: &str = "SELECT FROM duetime.schedule FOR SHARE";

/// A transaction that has run the statement.
async fn begun(test: &TestDatabase, statement: &'static str) -> PoolConnection<Postgres> {
    let mut connection = test.pool.acquire().await.unwrap();
    for statement in ["BEGIN", statement] {
        sqlx::query(statement).execute(&mut *connection).await.unwrap();
    }
    connection
}

/// Otherwise claims wait behind the change of the queue, which waits for the change of the schedule.
#[tokio::test]
async fn a_change_of_a_schedule_that_a_transaction_holds_keeps_no_change_of_a_queue_waiting() {
    let test = database().await;
    test.be_patient(PoolKind::Write).await;
    let read = added(&test, "a").await;
    let mut holding = begun(&test, HOLD).await;
    let (database, revision) = (test.database.clone(), read.revision);
    let changing = spawn_child(async move {
        let others = rules("others");
        database.schedule_change(&ScheduleName::new("a"), revision, wish(&others, standing(2))).await
    });
    test.until_waiting(1).await;
    limit(&test, Some(2)).await;
    assert!(!changing.is_finished(), "it waits for the schedule");
    sqlx::query("COMMIT").execute(&mut *holding).await.unwrap();
    let written = changing.await.unwrap().unwrap();
    assert!(done(written).is_some(), "it was as it was read");
}

/// Otherwise requests end with too many tries although none of them has changed the schedule.
#[tokio::test]
async fn of_changes_that_wait_for_the_same_schedule_one_is_written_and_overtakes_the_others() {
    let test = database().await;
    // As many as the pool has connections.
    test.be_patient(PoolKind::Write).await;
    let read = added(&test, "a").await;
    let mut holding = begun(&test, HOLD).await;
    let changes = [1, 2, 3].map(|hour| {
        let (database, revision) = (test.database.clone(), read.revision);
        spawn_child(async move {
            let mails = rules("mails");
            database.schedule_change(&ScheduleName::new("a"), revision, wish(&mails, standing(hour))).await
        })
    });
    test.until_waiting(3).await;
    sqlx::query("COMMIT").execute(&mut *holding).await.unwrap();
    let mut written = 0;
    for changed in futures::future::join_all(changes).await {
        written += usize::from(matches!(changed.unwrap().unwrap(), ScheduleWrite::Done(_)));
    }
    assert_eq!(written, 1);
}

/// Otherwise it stays locked while the commit waits for a disk or a standby, and looks held to others that wait for it.
#[tokio::test]
async fn the_commit_of_a_wait_for_a_schedule_waits_for_nothing() {
    let test = database().await;
    added(&test, "a").await;
    for change in [HOLD, "UPDATE duetime.schedule SET revision = revision + 1"] {
        let mut holding = begun(&test, change).await;
        let mut waiting = begun(&test, "SET LOCAL synchronous_commit = on").await;
        let waited = spawn_child(async move {
            let held = sqlx::query(include_str!("../queries/schedule_await.sql")).bind("a");
            held.execute(&mut *waiting).await.unwrap();
            let show = sqlx::query_scalar::<_, String>("SHOW synchronous_commit");
            let setting = show.fetch_one(&mut *waiting).await.unwrap();
            sqlx::query("COMMIT").execute(&mut *waiting).await.unwrap();
            setting
        });
        test.until_waiting(1).await;
        sqlx::query("COMMIT").execute(&mut *holding).await.unwrap();
        assert_eq!(waited.await.unwrap(), "off", "{change}");
    }
}

/// A schedule that cannot move to a full queue costs no lock of it.
#[tokio::test]
async fn a_change_that_finds_no_room_waits_for_no_transaction_that_holds_the_schedule() {
    let test = database().await;
    limit(&test, Some(0)).await;
    let elsewhere = put(&test, "b", &rules("others"), NONE).await.expect("new");
    let _holding = begun(&test, HOLD).await;
    let mails = rules("mails");
    let moved = test.database.schedule_change(&elsewhere.name, elsewhere.revision, wish(&mails, standing(2))).await;
    assert!(matches!(moved.unwrap(), ScheduleWrite::QueueFull { used: 0, most: 0 }), "it waits for nothing");
}

/// A change of a queue waits for twice as long. The session has no bound of its own here.
#[tokio::test]
async fn a_new_schedule_waits_for_its_name_no_longer_than_its_statement_allows() {
    let test = database().await;
    test.be_patient(PoolKind::Write).await;
    added(&test, "a").await;
    let mut deleting = test.pool.acquire().await.unwrap();
    for statement in ["BEGIN", "DELETE FROM duetime.schedule"] {
        sqlx::query(statement).execute(&mut *deleting).await.unwrap();
    }
    let (name, mails) = (ScheduleName::new("a"), rules("mails"));
    let adding = test.database.schedule_add(&name, wish(&mails, standing(1)), NONE);
    let refused = adding.await.expect_err("a transaction holds the name");
    assert!(refused.is_contention(), "{refused}");
    sqlx::query("COMMIT").execute(&mut *deleting).await.unwrap();
    assert!(put(&test, "a", &mails, NONE).await.is_some());
}
