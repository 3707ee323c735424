//! The audit log: the actions, and the callers who did them.

use std::time::{Duration, Instant};

use common::wire::audit::AuditFilter;
use sqlx::Executor;

use super::{explain::plan, fixture};
use crate::{
    audit::{AuditAction, AuditEvent, AuditRecord},
    store::audit::ADD_NEW,
};

fn note(caller: &str, action: AuditAction, ago: Duration) -> AuditRecord {
    let event = AuditEvent {
        caller: caller.into(),
        caller_id: (caller == "ops").then_some(7),
        action,
        target: "mail".to_owned(),
        address: Some([127, 0, 0, 1].into()),
        status: 200,
        detail: None,
        request_id: Some("r-1".to_owned()),
    };
    AuditRecord { id: uuid::Uuid::now_v7(), event, at: Instant::now().checked_sub(ago).expect("the clock is older") }
}

#[tokio::test]
async fn a_note_that_is_written_again_is_one_and_pages_come_newest_first() {
    let test = fixture::database().await;
    let second = Duration::from_secs(1);
    let notes: Vec<AuditRecord> = (0..5).map(|n| note("ops", AuditAction::QueuePause, second * n)).collect();
    test.database.audit_add(&notes, "a").await.unwrap();
    test.database.audit_add(&notes, "a").await.unwrap();
    let mut filter = AuditFilter { limit: Some(2), ..AuditFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = test.database.audit_list(&filter).await.unwrap();
        seen.extend(page.deeds);
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|newer, older| newer.at >= older.at), "{seen:?}");
    let apart = seen[0].at.since(seen[4].at);
    assert!((3_900..4_100).contains(&apart.as_millis()), "when it was done, not when it was written: {apart:?}");
    let first = &seen[0];
    assert_eq!(first.who_id, Some(7));
    assert_eq!((first.who.as_str(), first.target.as_str(), first.node.as_str()), ("ops", "mail", "a"));
    assert_eq!((first.address.as_deref(), first.request_id.as_deref()), (Some("127.0.0.1"), Some("r-1")));
}

#[tokio::test]
async fn of_a_batch_that_is_written_in_part_the_other_notes_are_added_once() {
    assert!(!ADD_NEW.contains("ON CONFLICT"), "it fails at a note that exists, and adds none");
    let test = fixture::database().await;
    let notes: Vec<AuditRecord> =
        (0..3).map(|_| note("ops", AuditAction::QueuePause, Duration::from_secs(60))).collect();
    test.database.audit_add(&notes[..1], "a").await.unwrap();
    test.database.audit_add(&notes, "b").await.unwrap();
    let deeds = test.database.audit_list(&AuditFilter::default()).await.unwrap().deeds;
    let nodes: Vec<&str> = deeds.iter().map(|deed| deed.node.as_str()).collect();
    assert_eq!(nodes.len(), 3, "{deeds:?}");
    assert_eq!(nodes.iter().filter(|node| **node == "a").count(), 1, "the first note stays as it is: {deeds:?}");
}

#[tokio::test]
async fn deeds_are_found_by_who_and_what_and_when() {
    let test = fixture::database().await;
    let notes = [
        note("ops", AuditAction::QueuePause, Duration::from_secs(60)),
        note("ops", AuditAction::TaskCancel, Duration::ZERO),
        note("shop", AuditAction::TaskCancel, Duration::ZERO),
    ];
    test.database.audit_add(&notes, "a").await.unwrap();
    let found = async |filter: AuditFilter| test.database.audit_list(&filter).await.unwrap().deeds.len();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(found(AuditFilter { who: some("ops"), ..AuditFilter::default() }).await, 2);
    assert_eq!(found(AuditFilter { what: some("task.cancel"), ..AuditFilter::default() }).await, 2);
    assert_eq!(found(AuditFilter { target: some("mail"), who: some("shop"), ..AuditFilter::default() }).await, 1);
    assert_eq!(found(AuditFilter { target: some("x"), ..AuditFilter::default() }).await, 0);
    let all = test.database.audit_list(&AuditFilter::default()).await.unwrap().deeds;
    assert_eq!(found(AuditFilter { before: Some(all[1].at), ..AuditFilter::default() }).await, 1);
    assert_eq!(found(AuditFilter { after: Some(all[1].at), ..AuditFilter::default() }).await, 2);
}

#[tokio::test]
async fn what_is_kept_long_enough_goes_in_batches() {
    let test = fixture::database().await;
    let old: Vec<AuditRecord> =
        (0..5).map(|_| note("ops", AuditAction::QueuePause, Duration::from_secs(100))).collect();
    test.database.audit_add(&old, "a").await.unwrap();
    test.database.audit_add(&[note("ops", AuditAction::QueuePut, Duration::ZERO)], "a").await.unwrap();
    let keep = Duration::from_secs(50);
    assert_eq!(test.database.audit_forget(keep, 3).await.unwrap(), 3);
    assert_eq!(test.database.audit_forget(keep, 3).await.unwrap(), 2);
    let left = test.database.audit_list(&AuditFilter::default()).await.unwrap().deeds;
    assert_eq!(left.iter().map(|deed| deed.what.as_str()).collect::<Vec<_>>(), ["queue.put"]);
}

#[tokio::test]
async fn a_page_and_what_is_old_enough_are_found_by_their_time() {
    let test = fixture::database().await;
    let fill = "INSERT INTO duetime.audit (id, at, who, what, target, status, node)
                SELECT gen_random_uuid(), now() - g * interval '1 s', 'u' || g % 50, 'task.cancel', 't' || g, 200, 'a'
                  FROM generate_series(1, 100000) AS g";
    test.pool.execute(fill).await.unwrap();
    test.pool.execute("ANALYZE duetime.audit").await.unwrap();
    let mut connection = test.pool.acquire().await.unwrap();
    let types = "text, text, text, timestamptz, timestamptz, uuid, bigint, bigint";
    let values = "NULL, NULL, NULL, '-infinity', now(), gen_random_uuid(), 100, 20000";
    let page = plan(&mut connection, include_str!("../queries/audit_list.sql"), types, values).await;
    let gone =
        plan(&mut connection, include_str!("../queries/audit_forget.sql"), "interval, bigint", "'1 day', 100").await;
    for plan in [page, gone] {
        assert!(plan.contains("audit_at") && !plan.contains("Seq Scan on audit"), "{plan}");
    }
}
