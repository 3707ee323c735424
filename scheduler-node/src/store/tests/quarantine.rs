//! Messages that could not be read: the quarantine keeps them whatever they hold, but not for ever.

use std::time::Duration;

use serde_json::json;
use sqlx::{Executor, Row};

use super::{explain, fixture};
use crate::store::{error::Fault, quarantine::Quarantined};

#[tokio::test]
async fn whatever_a_message_holds_it_is_kept() {
    let test = fixture::database().await;
    let deep = (0..32).fold(json!("\0"), |inner, _| json!({ "a\0": [inner] }));
    for (headers, body) in [
        (json!({ "a\0b": ["x\0", { "\0": "\0" }] }), b"\0\xff".to_vec()),
        (deep, Vec::new()),
        (json!({ "large": "x".repeat(1 << 20) }), vec![b'x'; 1 << 20]),
    ] {
        let message =
            Quarantined::new("results", "a\0reason", Some("id\0"), headers, body).with_properties(b"\0\xff".to_vec());
        test.database.quarantine_add(&[message]).await.unwrap();
    }
    let rows = test.pool.fetch_all("SELECT * FROM duetime.quarantine ORDER BY id").await.unwrap();
    let text = |row: usize, column: &str| rows[row].get::<String, _>(column);
    assert_eq!((text(0, "reason"), text(0, "message_id")), ("a\u{fffd}reason".into(), "id\u{fffd}".into()));
    assert_eq!(rows[0].get::<serde_json::Value, _>("headers")["a\u{fffd}b"][0], "x\u{fffd}");
    assert_eq!(rows[0].get::<Vec<u8>, _>("body"), b"\0\xff");
    assert_eq!(rows[2].get::<serde_json::Value, _>("headers"), json!({ "left_out_bytes": (1 << 20) + 12 }));
    assert_eq!((rows[2].get::<Vec<u8>, _>("body").len(), rows[2].get::<i64, _>("body_bytes")), (64 << 10, 1 << 20));
}

#[tokio::test]
async fn messages_of_one_batch_keep_their_order_and_what_they_lack() {
    let test = fixture::database().await;
    let message = |id: Option<&str>| Quarantined::new("rejected", "reason", id, json!({ "id": id }), b"body".to_vec());
    let bare = message(None).reduced().expect("it can be reduced");
    test.database.quarantine_add(&[message(Some("a")), bare, message(Some("b"))]).await.unwrap();
    let rows = test.pool.fetch_all("SELECT * FROM duetime.quarantine ORDER BY id").await.unwrap();
    let ids: Vec<Option<String>> = rows.iter().map(|row| row.get("message_id")).collect();
    assert_eq!(ids, [Some("a".to_owned()), None, Some("b".to_owned())]);
    let headers: Vec<Option<serde_json::Value>> = rows.iter().map(|row| row.get("headers")).collect();
    assert_eq!(headers, [Some(json!({ "id": "a" })), None, Some(json!({ "id": "b" }))]);
}

#[tokio::test]
async fn what_the_database_refuses_is_kept_in_a_reduced_form() {
    let test = fixture::database().await;
    test.pool.execute("ALTER TABLE duetime.quarantine ADD CHECK (headers IS NULL)").await.unwrap();
    let message = Quarantined::new("results", "für dich", Some("id"), json!({}), b"body".to_vec());
    let error = test.database.quarantine_add(std::slice::from_ref(&message)).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Data);
    let reduced = message.reduced().expect("it can be reduced");
    test.database.quarantine_add(std::slice::from_ref(&reduced)).await.unwrap();
    assert!(reduced.reduced().is_none(), "once");
    let row = test.pool.fetch_one("SELECT reason, body FROM duetime.quarantine").await.unwrap();
    assert_eq!((row.get::<String, _>("reason"), row.get::<Vec<u8>, _>("body")), ("fr dich".into(), b"body".to_vec()));
}

#[tokio::test]
async fn the_quarantine_forgets_what_is_old_and_what_is_too_much() {
    let test = fixture::database().await;
    for number in 0..10 {
        let message = Quarantined::new("results", "reason", Some(&number.to_string()), json!({}), Vec::new());
        test.database.quarantine_add(&[message]).await.unwrap();
    }
    let old =
        "UPDATE duetime.quarantine SET received_at = clock_timestamp() - interval '15 days' WHERE message_id = '8'";
    test.pool.execute(old).await.unwrap();
    let day = Duration::from_secs(86_400);
    assert_eq!(test.database.quarantine_forget(day * 14, 5, 3).await.unwrap(), 3, "no more than asked for");
    assert_eq!(test.database.quarantine_forget(day * 14, 5, 100).await.unwrap(), 3);
    assert_eq!(test.database.quarantine_forget(day * 14, 5, 100).await.unwrap(), 0);
    let left = test.pool.fetch_all("SELECT message_id FROM duetime.quarantine ORDER BY id").await.unwrap();
    assert_eq!(left.len(), 4);
}

/// Otherwise each deletion would read all of a quarantine that has grown.
#[tokio::test]
async fn the_oldest_messages_are_found_in_the_order_of_the_primary_key() {
    let test = fixture::database().await;
    let mut connection = fixture::planned(&test.pool).await;
    let (types, values) = ("interval, bigint, bigint", "'14 days', 10000, 2000");
    let plan = explain::plan(&mut connection, include_str!("../queries/quarantine_forget.sql"), types, values).await;
    assert!(plan.contains("Index Scan using quarantine_pkey"), "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{plan}");
}
