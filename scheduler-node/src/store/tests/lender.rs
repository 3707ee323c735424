//! Connections that are lent from one statement to the next.

use std::{future::poll_fn, pin::pin, task::Poll};

use futures::TryStreamExt;
use sqlx::{Executor, Row, postgres::PgPoolOptions};

use super::fixture;
use crate::store::lender::Lender;

fn lender(test: &fixture::TestDatabase, most: u32) -> Lender {
    Lender::new(PgPoolOptions::new().max_connections(most).connect_lazy(&test.url).unwrap())
}

async fn session(lender: &Lender) -> i32 {
    sqlx::query("SELECT pg_backend_pid()").fetch_one(lender).await.unwrap().get(0)
}

#[tokio::test]
async fn the_next_statement_takes_the_connection_that_was_used_last() {
    let test = fixture::database().await;
    let lender = lender(&test, 3);
    let mut first = lender.acquire().await.unwrap();
    let mut second = lender.acquire().await.unwrap();
    let pid = async |connection: &mut sqlx::PgConnection| {
        sqlx::query("SELECT pg_backend_pid()").fetch_one(connection).await.unwrap().get::<i32, _>(0)
    };
    let (rested, used) = (pid(&mut first).await, pid(&mut second).await);
    assert_ne!(rested, used);
    first.give_back();
    second.give_back();
    for _ in 0..5 {
        assert_eq!(session(&lender).await, used, "not the one that has rested longer");
    }
    let usage = lender.tidy();
    assert_eq!((usage.open, usage.idle), (2, 2));
}

#[tokio::test]
async fn a_statement_that_waits_for_the_pool_gets_the_connection_that_is_given_back() {
    let test = fixture::database().await;
    let lender = lender(&test, 1);
    let only = lender.acquire().await.unwrap();
    let mut next = pin!(lender.acquire());
    let waits = poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_pending())).await;
    assert!(waits, "the only connection is in use");
    only.give_back();
    next.await.expect("the pool wakes it").give_back();
    assert_eq!(lender.tidy().idle, 1);
}

#[tokio::test]
async fn a_connection_that_was_lent_on_for_too_long_goes_back_to_its_pool() {
    let test = fixture::database().await;
    let lender = lender(&test, 2);
    lender.acquire().await.unwrap().give_back();
    assert_eq!(lender.tidy().idle, 1, "it is lent on");
    lender.age();
    assert_eq!(lender.tidy().idle, 0, "the pool looks at it first");
    assert_ne!(session(&lender).await, 0);
}

#[tokio::test]
async fn a_connection_whose_answer_was_not_read_to_its_end_is_not_lent_on() {
    let test = fixture::database().await;
    let lender = lender(&test, 1);
    let mut connection = lender.acquire().await.unwrap();
    let mut rows = connection.fetch("SELECT generate_series(1, 100000)");
    assert!(rows.try_next().await.unwrap().is_some());
    drop(rows);
    drop(connection);
    assert_eq!(lender.tidy().idle, 0, "the pool looks at it first");
    assert_ne!(session(&lender).await, 0, "the pool has thrown away the rest of the answer");
    assert!(sqlx::query("SELECT 1 / 0").fetch_one(&lender).await.is_err());
    assert_eq!(lender.tidy().idle, 0, "nor is one whose statement failed");
    assert_ne!(session(&lender).await, 0, "the connection survives a refusal");
}
