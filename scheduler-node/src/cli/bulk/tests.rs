//! Tests of bulk actions, with a node that answers as each test wants.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::http::StatusCode;
use clap::Parser;
use common::{
    ids::DatabaseName,
    task::bulk::SkipReason,
    wire::{
        BulkRequest,
        bulk::{self, Position},
    },
};

use super::*;
use crate::cli::client::tests::client_of;

#[derive(Debug, Parser)]
struct Bulked {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Result<Args, clap::Error> {
    Bulked::try_parse_from([&["bulk"], words].concat()).map(|bulked| bulked.args)
}

#[test]
fn what_is_typed_is_what_a_node_understands() {
    for words in [
        ["cancel", "--queue", "mails", "--state", "ready"].as_slice(),
        &["retry", "--error", "no route", "--due-after", "1700000000000", "--due-before", "2030-01-31T09:00:00Z"],
        &["run", "--key", "k", "--partition-key", "p"],
        &["move", "--all", "--shift", "-5m"],
        &["move", "--all", "--delay", "5m", "--dry-run", "--yes"],
    ] {
        let args = args(words).expect("understood");
        let body = Body {
            action: args.action,
            filter: &args.filter,
            all: args.all,
            dry_run: args.dry_run,
            delay_ms: args.due.delay,
            due_at: args.due.at,
            shift_ms: args.shift,
            cursor: None,
        };
        let body = serde_json::to_string(&body).expect("JSON");
        BulkRequest::parse(&body).and_then(|request| request.validate(UnixMicros::new(0))).expect(&body);
    }
    assert_eq!(args(&["move", "--all", "--shift", "-5m"]).expect("understood").shift, Some(-300_000));
}

#[test]
fn what_does_not_go_together_is_a_mistake_of_the_caller() {
    for words in [
        [].as_slice(),
        &["forget"],
        &["move", "--all", "--shift", "5m", "--delay", "5m"],
        &["move", "--all", "--shift", "soon"],
        &["cancel", "--state", "asleep"],
    ] {
        assert_eq!(args(words).expect_err("refused").exit_code(), 2, "{words:?}");
    }
}

#[test]
fn a_person_reads_what_was_left_and_why() {
    let action = bulk::Action::Cancel;
    let refused = BTreeMap::from([(SkipReason::InFlight, 1_200)]);
    let answer = BulkAnswer {
        action,
        dry_run: false,
        matched: 2_500,
        done: 1_300,
        no_further_attempts: 7,
        refused,
        next_cursor: None,
        interrupted: None,
    };
    let sum = add(Some(answer.clone()), BulkAnswer { matched: 1, done: 1, ..answer });
    assert_eq!(
        summary(&sum),
        "cancel: 2,501 found, 1,301 done (14 of them between two attempts), 2,400 left: in flight"
    );
}

/// The answer about one task that was moved, with a cursor.
fn moved_one() -> (StatusCode, String) {
    let position = Position {
        action: bulk::Action::Move,
        began_at: UnixMicros::new(0),
        database: 0,
        name: DatabaseName::new("main"),
        walked: Vec::new(),
        map: 0,
        place: None,
    };
    let answer = BulkAnswer {
        action: bulk::Action::Move,
        dry_run: false,
        matched: 1,
        done: 1,
        no_further_attempts: 0,
        refused: BTreeMap::new(),
        next_cursor: Some(BulkCursor(position)),
        interrupted: None,
    };
    (StatusCode::OK, serde_json::to_string(&answer).expect("JSON"))
}

#[tokio::test]
async fn a_signal_ends_it_after_the_answer_with_the_sum_and_the_cursor() {
    let stop = CancellationToken::new();
    let signal = stop.clone();
    let client = client_of("/v1/tasks/bulk", move |_| {
        signal.cancel();
        std::future::ready(moved_one())
    })
    .await;
    let args = args(&["move", "--all", "--delay", "5m", "--yes"]).expect("understood");
    let (sum, broken) = to_the_end(&client, &args, false, &stop).await.expect("an answer");
    let told = broken.expect("it is not through").told(&sum, true);
    assert!(sum.done == 1 && told.starts_with("stopped by a signal; continue with --cursor "), "{told}");
}

/// The end of an action whose second request gets this answer.
async fn broken_by(words: &[&str], status: StatusCode) -> String {
    let requests = Arc::new(AtomicUsize::new(0));
    let client = client_of("/v1/tasks/bulk", move |_| {
        let is_first = requests.fetch_add(1, Ordering::Relaxed) == 0;
        std::future::ready(if is_first { moved_one() } else { (status, "gone".to_owned()) })
    })
    .await;
    let args = args(words).expect("understood");
    let (sum, broken) = to_the_end(&client, &args, false, &CancellationToken::new()).await.expect("an answer");
    broken.expect("it is not through").told(&sum, args.shift.is_some())
}

#[tokio::test]
async fn no_cursor_is_recommended_that_would_shift_tasks_twice() {
    let shift = ["move", "--all", "--shift", "5m", "--yes"];
    for lost in [StatusCode::BAD_GATEWAY, StatusCode::OK] {
        let told = broken_by(&shift, lost).await;
        assert!(told.contains("up to 10,000 tasks") && !told.contains("continue with --cursor"), "{told}");
        let told = broken_by(&["move", "--all", "--delay", "5m", "--yes"], lost).await;
        assert!(told.contains("; continue with --cursor "), "what is done again has no effect: {told}");
    }
    let told = broken_by(&shift, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(told.contains("; continue with --cursor "), "a refused request shifts nothing: {told}");
    let told = broken_by(&shift, StatusCode::CONFLICT).await;
    assert!(!told.contains("--cursor"), "the shards have moved, and every try gets the same answer: {told}");
}
