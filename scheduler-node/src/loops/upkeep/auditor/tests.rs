//! Every note is written: in time, after an outage of the database, and before the node ends.

use std::sync::Arc;

use common::wire::AuditFilter;
use prometheus::Registry;
use sqlx::Executor;

use super::*;
use crate::{
    audit::{Audit, AuditAction, AuditEvent},
    coordination::tests::eventually,
    store::tests::fixture::{self, TestDatabase},
};

fn event(action: AuditAction) -> AuditEvent {
    AuditEvent {
        caller: "ops".into(),
        caller_id: None,
        action,
        target: "mail".to_owned(),
        address: None,
        status: 200,
        detail: None,
        request_id: None,
    }
}

fn auditor(test: &TestDatabase) -> (Auditor, Audit, mpsc::Receiver<AuditRecord>) {
    let metrics = AuditMetrics::register(&Registry::new()).expect("registered once");
    let (audit, notes) = Audit::new(metrics.clone());
    let store = Store::new(vec![Arc::clone(&test.database)]);
    (Auditor { store, node: "a".to_owned(), metrics, set_aside: SetAside::default() }, audit, notes)
}

async fn written(test: &TestDatabase) -> usize {
    test.database.audit_list(&AuditFilter { limit: Some(1_000), ..AuditFilter::default() }).await.unwrap().deeds.len()
}

#[tokio::test]
async fn what_was_noted_before_the_stop_is_written_after_it() {
    let test = fixture::database().await;
    let (auditor, audit, notes) = auditor(&test);
    for _ in 0..BATCH + 7 {
        audit.record(event(AuditAction::TaskCancel));
    }
    let (stop, metrics) = (CancellationToken::new(), auditor.metrics.clone());
    stop.cancel();
    auditor.run(notes, stop).await;
    assert_eq!(written(&test).await, BATCH + 7);
    assert_eq!(metrics.written.get(), (BATCH + 7) as u64);
}

#[tokio::test]
async fn notes_wait_until_they_can_be_written() {
    let test = fixture::database().await;
    let (auditor, audit, notes) = auditor(&test);
    test.pool.execute("ALTER TABLE duetime.audit RENAME TO away").await.unwrap();
    audit.record(event(AuditAction::TaskCancel));
    auditor.write(&[]).await.expect_err("there is nothing to write to");
    let (stop, metrics) = (CancellationToken::new(), auditor.metrics.clone());
    let restore = async {
        audit.record(event(AuditAction::TaskRun));
        test.pool.execute("ALTER TABLE duetime.away RENAME TO audit").await.unwrap();
        eventually("both are written", || metrics.written.get() == 2).await;
        stop.cancel();
    };
    tokio::join!(auditor.run(notes, stop.clone()), restore);
    assert_eq!(written(&test).await, 2);
}

#[tokio::test]
async fn a_note_that_the_database_refuses_costs_its_neighbours_nothing() {
    let test = fixture::database().await;
    let (auditor, audit, notes) = auditor(&test);
    test.refuse("INSERT", "audit", "target", "poison").await;
    for target in ["mail", "poison", "mail"] {
        audit.record(AuditEvent { target: target.to_owned(), ..event(AuditAction::TaskCancel) });
    }
    let (stop, metrics, set_aside) = (CancellationToken::new(), auditor.metrics.clone(), auditor.set_aside.clone());
    stop.cancel();
    auditor.run(notes, stop).await;
    assert_eq!((written(&test).await, metrics.written.get(), set_aside.count(Kind::Audit)), (2, 2, 1));
    assert_eq!(test.quarantine().await.len(), 1);
}
