//! Turning rows of an inbox into tasks: one row makes one task, whichever node collects it,
//! however often and from wherever.

use std::time::Duration;

use common::{
    ids::{DatabaseName, ShardId, TaskId},
    task::TaskState,
};

use super::{
    fixture,
    inbox::{read, submit, waiting},
    state_of, until_waiting,
};
use crate::{
    store::{
        PoolKind,
        inbox::{CancelledRow, InboxScope, LeavingRow},
        put::{PutOutcome, Retention},
    },
    supervise::spawn_child,
};

const HOLD: Retention = Retention { window_ms: 86_400_000, keep_ms: 86_400_000 };

/// Collects a second time while the first has moved the row but not committed yet.
async fn second_collector_during_first(keyed: bool) {
    let test = fixture::database().await;
    let id = submit(&test, if keyed { "'mail', '{}', key => 'k'" } else { "'mail', '{}'" }).await;
    let tasks = waiting(&test).await;
    let mut first = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    let moved = sqlx::query(
        "WITH gone AS (DELETE FROM duetime.inbox RETURNING id, shard)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, finished_at, drop_on)
         SELECT id, shard, 'mail', 'succeeded', now(), now(), '', 'x', now(), current_date + 1 FROM gone",
    )
    .execute(&mut *first)
    .await
    .unwrap();
    assert_eq!(moved.rows_affected(), 1);
    let collect = async || {
        if keyed {
            test.database.task_collect_keyed(&tasks, &[HOLD], None).await.unwrap().len()
        } else {
            test.database.task_collect(&tasks, None).await.unwrap().len()
        }
    };
    assert_eq!(collect().await, 0, "another transaction holds the row");
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
    assert_eq!(collect().await, 0, "the row is gone, and its task has finished long ago");
    assert_eq!((test.live().await, state_of(&test.pool, id).await.as_deref()), (0, Some("succeeded")));
}

#[tokio::test]
async fn of_two_collectors_at_once_one_makes_the_task() {
    second_collector_during_first(false).await;
    second_collector_during_first(true).await;
}

#[tokio::test]
async fn a_row_that_is_being_cancelled_is_left_alone() {
    let test = fixture::database().await;
    let id = submit(&test, "'mail', '{}'").await;
    let tasks = waiting(&test).await;
    let mut cancelling = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *cancelling).await.unwrap();
    let outcome: String =
        sqlx::query_scalar("SELECT duetime.cancel($1)").bind(id.uuid()).fetch_one(&mut *cancelling).await.unwrap();
    assert_eq!(outcome, "cancelled");
    assert_eq!(test.database.task_collect(&tasks, None).await.unwrap(), []);
    assert_eq!(test.database.inbox_leave(&[id]).await.unwrap(), []);
    assert_eq!(test.database.inbox_refuse(&[(id, "no".to_owned())], false).await.unwrap(), []);
    sqlx::query("ROLLBACK").execute(&mut *cancelling).await.unwrap();
    assert_eq!(test.database.task_collect(&tasks, None).await.unwrap(), [id]);
}

fn ids_of(leaving: &[LeavingRow]) -> Vec<TaskId> {
    leaving.iter().map(|row| row.id).collect()
}

#[tokio::test]
async fn what_another_database_sends_twice_is_one_task_even_after_that_has_finished_and_was_dropped() {
    let (source, target) = (fixture::database().await, fixture::database().await);
    let name = DatabaseName::new("east");
    let id = submit(&source, "'mail', '{}'").await;
    let tasks = waiting(&source).await;
    assert_eq!(ids_of(&source.database.inbox_leave(&[id]).await.unwrap()), [id]);
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), [id]);
    // The node dies here, and another one starts over.
    assert_eq!(ids_of(&source.database.inbox_leave(&[id]).await.unwrap()), [id]);
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), []);
    sqlx::query("DELETE FROM duetime.task").execute(&target.pool).await.unwrap();
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), []);
    source.database.inbox_delete(&[id]).await.unwrap();
    assert_eq!((read(&source).await.len(), target.live().await), (0, 0));

    target.database.received_forget(&DatabaseName::new("west"), Duration::ZERO).await.unwrap();
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), [], "another source's");
    target.database.received_forget(&name, Duration::from_secs(60)).await.unwrap();
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), [], "not so old");
    target.database.received_forget(&name, Duration::ZERO).await.unwrap();
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), [id]);
}

#[tokio::test]
async fn two_that_send_a_row_at_once_make_one_task() {
    let (source, target) = (fixture::database().await, fixture::database().await);
    let name = DatabaseName::new("east");
    let id = submit(&source, "'mail', '{}'").await;
    let tasks = waiting(&source).await;
    target.be_patient(PoolKind::Write).await;
    let mut first = target.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *first).await.unwrap();
    sqlx::query("SELECT duetime.receive_begin($1, 'east')").bind(id.uuid()).execute(&mut *first).await.unwrap();
    let database = target.database.clone();
    let second = spawn_child(async move { database.task_collect(&tasks, Some(&name)).await.unwrap() });
    until_waiting(&target.pool, 1).await;
    sqlx::query("COMMIT").execute(&mut *first).await.unwrap();
    assert_eq!(second.await.unwrap(), [], "the task that the first made has finished meanwhile");
}

#[tokio::test]
async fn what_a_key_came_to_is_said_again_when_it_is_sent_again() {
    let (source, target) = (fixture::database().await, fixture::database().await);
    let name = DatabaseName::new("east");
    for (options, outcome) in [
        ("{}", PutOutcome::Created),
        (r#"{"on_duplicate": "replace"}"#, PutOutcome::Replaced),
        (r#"{"on_duplicate": "reject"}"#, PutOutcome::Refused),
    ] {
        submit(&source, &format!("'mail', '{{}}', key => 'k', options => '{options}'")).await;
        let tasks = waiting(&source).await;
        let sent = target.database.task_collect_keyed(&tasks, &[HOLD], Some(&name)).await.unwrap();
        assert_eq!((sent[0].first, sent[0].put.outcome), (true, outcome));
        // From now on the task in the table would lead to another answer.
        sqlx::query("UPDATE duetime.task SET state = 'dispatching', attempt = 1, claim_epoch = 1")
            .execute(&target.pool)
            .await
            .unwrap();
        let again = target.database.task_collect_keyed(&tasks, &[HOLD], Some(&name)).await.unwrap();
        assert_eq!((again[0].first, &again[0].put), (false, &sent[0].put));
        let refused = target.database.received_refuse(&[tasks[0].id], &name).await.unwrap();
        assert_eq!(!refused.is_empty(), outcome == PutOutcome::Refused, "a task stands for each other row");
        sqlx::query("UPDATE duetime.task SET state = 'scheduled'").execute(&target.pool).await.unwrap();
        source.database.inbox_leave(&[tasks[0].id]).await.unwrap();
        source.database.inbox_delete(&[tasks[0].id]).await.unwrap();
    }
    assert_eq!(target.live().await, 1);
}

#[tokio::test]
async fn submissions_of_one_transaction_have_ascending_ids_and_are_applied_in_their_order() {
    let test = fixture::database().await;
    let submitted: Vec<uuid::Uuid> = sqlx::query_scalar(
        "SELECT duetime.submit('mail', to_jsonb(i), now() + interval '1 h', key => 'k', options => '{\"on_duplicate\": \"replace\"}')
           FROM generate_series(1, 20) AS i",
    )
    .fetch_all(&test.pool)
    .await
    .unwrap();
    assert!(submitted.is_sorted(), "{submitted:?}");
    let mut tasks = waiting(&test).await;
    tasks.reverse();
    test.database.task_collect_keyed(&tasks, &[HOLD; 20], None).await.unwrap();
    let made = test.database.task_read(TaskId::from_uuid(submitted[0])).await.unwrap().expect("the first made a task");
    assert_eq!((made.payload.as_deref(), test.live().await), (Some(b"20".as_slice()), 1));
}

#[tokio::test]
async fn a_submission_does_not_overtake_an_earlier_one_with_its_key_that_is_being_cancelled() {
    let test = fixture::database().await;
    let replacing = |payload: &str, key: &str| {
        format!("'mail', '{payload}', key => '{key}', options => '{{\"on_duplicate\": \"replace\"}}'")
    };
    let first = submit(&test, &replacing("1", "k")).await;
    submit(&test, &replacing("2", "k")).await;
    let other = submit(&test, &replacing("3", "other")).await;
    let tasks = waiting(&test).await;
    let mut cancelling = test.pool.acquire().await.unwrap();
    sqlx::query("BEGIN").execute(&mut *cancelling).await.unwrap();
    sqlx::query("SELECT duetime.cancel($1)").bind(first.uuid()).execute(&mut *cancelling).await.unwrap();
    let collect = async || -> Vec<TaskId> {
        let collected = test.database.task_collect_keyed(&tasks, &[HOLD; 3], None).await.unwrap();
        collected.iter().map(|one| one.id).collect()
    };
    assert_eq!(collect().await, [other]);
    sqlx::query("ROLLBACK").execute(&mut *cancelling).await.unwrap();
    assert_eq!(collect().await.len(), 2);
    let made = test.database.task_read(first).await.unwrap().expect("the first made a task");
    assert_eq!(made.payload.as_deref(), Some(b"2".as_slice()));
    assert_eq!((read(&test).await.len(), test.live().await), (0, 2));
}

#[tokio::test]
async fn what_its_own_on_duplicate_refuses_stays_with_the_reason_and_is_not_collected_again() {
    let test = fixture::database().await;
    for _ in 0..2 {
        submit(&test, "'mail', '{}', key => 'k', options => '{\"on_duplicate\": \"reject\"}'").await;
    }
    let tasks = waiting(&test).await;
    let collected = test.database.task_collect_keyed(&tasks, &[HOLD; 2], None).await.unwrap();
    let refused: Vec<TaskId> =
        collected.iter().filter(|row| row.put.outcome == PutOutcome::Refused).map(|row| row.id).collect();
    assert_eq!((collected.len(), refused.len(), test.live().await), (2, 1, 1));
    let reason = [(refused[0], "the key is taken".to_owned())];
    assert_eq!(test.database.inbox_refuse(&reason, false).await.unwrap(), refused);
    assert_eq!(test.database.inbox_refuse(&reason, false).await.unwrap(), [], "once");
    assert_eq!((read(&test).await.len(), test.database.inbox_standing().await.unwrap().waiting), (0, 0));
    assert_eq!(test.database.inbox_find(refused[0]).await.unwrap(), Some(Some("the key is taken".to_owned())));
    test.database.inbox_forget(Duration::from_secs(60)).await.unwrap();
    assert!(test.database.inbox_find(refused[0]).await.unwrap().is_some());
    test.database.inbox_forget(Duration::ZERO).await.unwrap();
    assert_eq!(test.database.inbox_find(refused[0]).await.unwrap(), None);
}

#[tokio::test]
async fn a_row_is_left_to_the_owner_of_its_shard_at_first_and_what_cannot_be_reached_is_left_out() {
    let test = fixture::database().await;
    let id = submit(&test, "'mail', '{}'").await;
    let all: Vec<ShardId> = fixture::all_shards().iter().collect();
    let hour = Duration::from_secs(3_600);
    for (owned, reachable, others_after, found) in [
        (all.as_slice(), all.as_slice(), hour, 1),
        (&[id.shard()], &all, hour, 1),
        (&[], &all, hour, 0),
        (&[], &all, Duration::ZERO, 1),
        (&all, &[], Duration::ZERO, 0),
    ] {
        let wanted = InboxScope { owned, reachable, others_after, most: 100, aside: &[], known: 0 };
        assert_eq!(test.database.inbox_read(wanted).await.unwrap().len(), found);
    }
}

/// The types of the columns with which a row is collected, and a row.
const COLUMNS: &str = "uuid[], int[], text[], timestamptz[], smallint[], bytea[], text[], text[], text[], int[], bigint[], text[], timestamptz[], text[], bigint[], boolean[]";
const ROW: &str = "ARRAY[gen_random_uuid()], '{1}', '{a}', '{now}', '{3}', '{a}', '{a}', '{a}', '{a}', '{1}', '{1}', '{a}', '{now}', '{a}', '{1}', '{f}'";

#[tokio::test]
async fn an_inbox_of_many_rows_is_read_by_its_index() {
    let test = fixture::database().await;
    sqlx::raw_sql(
        "INSERT INTO duetime.inbox (id, shard, request, submitted_at, error, refused_at)
         SELECT gen_random_uuid(), g % 128, '{}', now() + g * interval '1 ms',
                CASE WHEN g % 10 = 0 THEN 'no' END, CASE WHEN g % 10 = 0 THEN now() END
           FROM generate_series(1, 50000) AS g; ANALYZE duetime.inbox",
    )
    .execute(&test.pool)
    .await
    .unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    let shards = super::explain::shards();
    for (sql, types, values, index) in [
        (
            include_str!("../queries/inbox_read.sql"),
            "int[], int[], interval, bigint, uuid[], bigint, bigint, boolean, timestamptz, bigint",
            format!("{shards}, {shards}, '1 s', 256, '{{}}', 1000000, 1000000, true, now(), 7"),
            "inbox_waiting",
        ),
        (
            include_str!("../queries/inbox_standing.sql"),
            "bigint, timestamptz",
            "1000, now()".to_owned(),
            "inbox_waiting",
        ),
        (include_str!("../queries/inbox_forget.sql"), "interval, bigint", "'1 d', 1000".to_owned(), "inbox_refused"),
        (
            include_str!("../queries/task_collect.sql"),
            &format!("{COLUMNS}, text"),
            format!("{ROW}, NULL"),
            "inbox_pkey",
        ),
        (
            include_str!("../queries/task_collect_keyed.sql"),
            &format!("{COLUMNS}, text[], bigint[], bigint[], text[], text"),
            format!("{ROW}, '{{keep}}', '{{1}}', '{{1}}', '{{NULL}}', NULL"),
            "inbox_pkey",
        ),
        (include_str!("../queries/inbox_leave.sql"), "uuid[]", "ARRAY[gen_random_uuid()]".to_owned(), "inbox_pkey"),
        (
            include_str!("../queries/received_forget.sql"),
            "text, interval, bigint",
            "'a', '1 d', 1000".to_owned(),
            "received_source",
        ),
    ] {
        let plan = super::explain::plan(&mut connection, sql, types, &values).await;
        assert!(plan.contains(index) && !plan.contains("Seq Scan on inbox"), "{plan}");
    }
}

/// Otherwise a batch reads all rows that wait: 105 ms beside 100,000 of them, instead of 6.
#[tokio::test]
async fn rows_of_an_inbox_are_found_by_their_ids_even_while_the_statistics_say_that_it_is_empty() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    sqlx::raw_sql("ANALYZE duetime.inbox").execute(&test.pool).await.unwrap();
    for (sql, types, values) in [
        (include_str!("../queries/inbox_leave.sql"), "uuid[]", "ARRAY[gen_random_uuid()]".to_owned()),
        (
            include_str!("../queries/inbox_refuse.sql"),
            "uuid[], text[], boolean",
            "ARRAY[gen_random_uuid()], '{a}', true".to_owned(),
        ),
        (include_str!("../queries/task_collect.sql"), &format!("{COLUMNS}, text"), format!("{ROW}, NULL")),
        (
            include_str!("../queries/task_collect_keyed.sql"),
            &format!("{COLUMNS}, text[], bigint[], bigint[], text[], text"),
            format!("{ROW}, '{{keep}}', '{{1}}', '{{1}}', '{{NULL}}', NULL"),
        ),
    ] {
        let plan = super::explain::plan(&mut connection, sql, types, &values).await;
        assert!(plan.contains("inbox_pkey") && !plan.contains("inbox_waiting"), "{plan}");
    }
}

/// Otherwise each row is compared with all shards that can be reached, or all rows that wait are read for one page.
#[tokio::test]
async fn a_read_of_an_inbox_compares_rows_with_the_nodes_shards_first_and_needs_no_sort_of_what_waits() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    let fill = "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
         SELECT gen_random_uuid(), g % 128, '{}', now() + g * interval '1 ms' FROM generate_series(1, 20000) AS g";
    let shards = super::explain::shards();
    let types = "int[], int[], interval, bigint, uuid[], bigint, bigint, boolean, timestamptz, bigint";
    let values = format!("{shards}, {shards}, '1 s', 256, '{{}}', 1000000, 1000000, true, now(), 7");
    for change in ["ANALYZE duetime.inbox", fill, "ANALYZE duetime.inbox"] {
        sqlx::raw_sql(change).execute(&test.pool).await.unwrap();
        let read = include_str!("../queries/inbox_read.sql");
        let plan = super::explain::plan(&mut connection, read, types, &values).await;
        assert!(plan.contains("CASE WHEN ((shard = ANY ($1))"), "{plan}");
        let head: Vec<&str> = plan.lines().skip_while(|line| !line.contains("CTE head")).skip(1).take(2).collect();
        assert!(head[0].contains("Limit") && head[1].contains("Index Scan using inbox_waiting"), "{plan}");
    }
}

/// Otherwise each search reads all rows that are kept.
#[tokio::test]
async fn a_search_for_rows_to_forget_reads_old_ones_only() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    for (sql, types, values, bound) in [
        (include_str!("../queries/inbox_forget.sql"), "interval, bigint", "'1 d', 1000", "refused_at <"),
        (include_str!("../queries/received_forget.sql"), "text, interval, bigint", "'a', '1 d', 1000", "received_at <"),
    ] {
        let plan = super::explain::plan(&mut connection, sql, types, values).await;
        assert!(plan.lines().any(|line| line.contains("Index Cond:") && line.contains(bound)), "{plan}");
    }
}

#[tokio::test]
async fn what_waits_for_others_begins_as_waiting_and_a_circle_stays_in_the_inbox() {
    let test = fixture::database().await;
    let on = |key: &str, other: &str| {
        format!(
            "'mail', '{{}}', key => '{key}', options => '{{\"partition_key\": \"p\", \"depends_on\": [\"{other}\"]}}'"
        )
    };
    let first = submit(&test, &on("a", "b")).await;
    submit(&test, &on("b", "a")).await;
    let tasks = waiting(&test).await;
    let collected = test.database.task_collect_keyed(&tasks, &[HOLD; 2], None).await.unwrap();
    let outcomes: Vec<PutOutcome> = collected.iter().map(|one| one.put.outcome).collect();
    assert_eq!(outcomes, [PutOutcome::Created, PutOutcome::Cycle]);
    assert_eq!(state_of(&test.pool, first).await.as_deref(), Some("waiting"));
    assert_eq!(test.database.task_dependencies(first).await.unwrap()[0].key, "b");
    assert_eq!(read(&test).await.len(), 1, "it can be refused with its reason");
}

#[tokio::test]
async fn a_row_that_was_moved_is_refused_only_when_it_is_known_what_became_of_it() {
    let (source, target) = (fixture::database().await, fixture::database().await);
    let (arrived, not_yet) = (submit(&source, "'mail', '{}'").await, submit(&source, "'mail', '{}'").await);
    let tasks = waiting(&source).await;
    source.database.inbox_leave(&[arrived, not_yet]).await.unwrap();
    let name = DatabaseName::new("source");
    let moved: Vec<_> = tasks.iter().filter(|task| task.id == arrived).cloned().collect();
    target.database.task_collect(&moved, Some(&name)).await.unwrap();
    // A node that judges the rows anew would refuse both.
    let reasons = [arrived, not_yet].map(|id| (id, "no".to_owned()));
    assert_eq!(source.database.inbox_refuse(&reasons, false).await.unwrap(), [], "they may be tasks there");
    for _ in 0..2 {
        let refused = target.database.received_refuse(&[arrived, not_yet], &name).await.unwrap();
        assert_eq!(refused, [not_yet], "a second node that refuses it hears the same");
    }
    assert_eq!(source.database.inbox_refuse(&reasons[1..], true).await.unwrap(), [not_yet]);
    assert_eq!(target.database.task_collect(&tasks, Some(&name)).await.unwrap(), [], "it never arrives");
    source.database.inbox_delete(&[arrived]).await.unwrap();
    assert_eq!((target.live().await, read(&source).await.len()), (1, 0));
}

#[tokio::test]
async fn what_is_cancelled_before_it_is_collected_leaves_a_cancelled_task_in_the_database_of_its_shard() {
    let (source, target) = (fixture::database().await, fixture::database().await);
    let name = DatabaseName::new("east");
    // The source now holds shard 0 only, and no key's hash leads there.
    sqlx::raw_sql("UPDATE duetime.shard SET status = 'gone' WHERE id > 0").execute(&source.pool).await.unwrap();
    let id = submit(&source, "'mail', '{\"n\": 1}', key => 'a'").await;
    assert_ne!(id.shard(), ShardId::new(0), "its shard is in another database");
    let tasks = waiting(&source).await;
    let cancel = || async {
        let outcome = sqlx::query_scalar("SELECT duetime.cancel($1)").bind(id.uuid());
        outcome.fetch_one(&source.pool).await.unwrap_or_else(|error| error.to_string())
    };
    assert_eq!(cancel().await, "cancelled");
    assert_eq!(cancel().await, "cancelled", "on every request");
    // A node that has read the row before learns of the cancel when it marks the row.
    for first in [true, false] {
        let leaving = source.database.inbox_leave(&[id]).await.unwrap();
        let LeavingRow { submitted_at, cancelled_at: Some(at), .. } = leaving[0] else { panic!("{leaving:?}") };
        let cancelled = [CancelledRow { submitted_at, at, keep_ms: 86_400_000 }];
        let kept = target.database.task_collect_cancelled(&tasks, &cancelled, &name).await.unwrap();
        assert_eq!(kept, if first { vec![id] } else { Vec::new() });
    }
    assert_eq!(cancel().await, "cancelled", "on its way too");
    source.database.inbox_delete(&[id]).await.unwrap();
    let found = target.database.task_read(id).await.unwrap().expect("it left a trace");
    assert_eq!((found.state, found.attempt.number(), found.key.as_deref()), (TaskState::Cancelled, 0, Some("a")));
    assert_eq!((read(&source).await.len(), target.live().await), (0, 0));
}

#[tokio::test]
async fn a_row_that_was_cancelled_and_cannot_be_a_task_leaves_nothing() {
    let source = fixture::database().await;
    sqlx::raw_sql("UPDATE duetime.shard SET status = 'gone' WHERE id > 0").execute(&source.pool).await.unwrap();
    let id = submit(&source, "'mail', '{}', key => 'a'").await;
    sqlx::query("SELECT duetime.cancel($1)").bind(id.uuid()).execute(&source.pool).await.unwrap();
    assert_eq!(source.database.inbox_refuse(&[(id, "no".to_owned())], false).await.unwrap(), []);
    assert_eq!(source.database.inbox_find(id).await.unwrap(), None);
}
