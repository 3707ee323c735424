//! Tasks that are messages on their way to another exchange.

use std::time::Duration;

use common::{
    ids::{Attempt, ShardId, TaskId},
    task::{
        Envelope, TaskState,
        envelope::{Field, Properties, Text},
    },
};
use sqlx::PgPool;

use super::{claim, fixture, new_task, own};
use crate::store::{
    change::Guarded,
    settle::{Finish, Report},
    submit::Sending,
};

fn envelope() -> Envelope {
    let headers =
        vec![("nul\0".into(), Field::Text(Text(vec![0, 255]))), ("nan".into(), Field::F64(f64::NAN.to_bits()))];
    let properties = Properties { headers: Some(headers), priority: Some(7), ..Properties::default() };
    Envelope { exchange: "orders".to_owned(), routing_key: "a\0b".into(), properties, redelivered: true }
}

fn finish(id: TaskId) -> Finish {
    Finish {
        id,
        attempt: Attempt::new(1),
        final_state: TaskState::Dead,
        was: &[TaskState::Dispatching],
        keep_ms: 86_400_000,
        report: Report::default(),
        entry: None,
        at_deadline: false,
    }
}

async fn kept(pool: &PgPool, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM duetime.{table} WHERE envelope ->> 'exchange' = 'orders'");
    sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(pool).await.unwrap()
}

#[tokio::test]
async fn an_envelope_stays_with_its_task_through_claim_rescue_archive_and_revival() {
    let test = fixture::database().await;
    let fences = own(&test, "a").await;
    let id = fixture::fresh_id_of(ShardId::new(0));
    let mut task = new_task(id);
    task.envelope = Some(Box::new(envelope()));
    test.database.task_submit(&[task], Sending::First).await.unwrap();
    let claimed = claim(&test, &[id], &fences).await.deliveries.remove(0);
    assert_eq!(claimed.envelope.as_deref(), Some(&envelope()), "bit for bit");
    let rescued = test.database.task_rescue(&[id], &fences).await.unwrap().deliveries.remove(0);
    assert_eq!((rescued.envelope, rescued.redelivered), (claimed.envelope, true));
    assert_eq!(test.database.task_finish(&[finish(id)]).await.unwrap().ids, [id]);
    assert_eq!((kept(&test.pool, "task").await, kept(&test.pool, "archive").await), (0, 1));
    assert!(test.database.task_read_forwarded(id).await.unwrap(), "so it needs no queue");
    assert!(!test.database.task_read_forwarded(fixture::fresh_id()).await.unwrap());
    assert!(matches!(test.database.task_revive(id).await.unwrap(), Guarded::Done(_)));
    let again = test.database.task_claim(&[id], &fences, Duration::ZERO, &Default::default(), i64::MAX).await.unwrap();
    assert_eq!(again.deliveries[0].envelope.as_deref(), Some(&envelope()));
}
