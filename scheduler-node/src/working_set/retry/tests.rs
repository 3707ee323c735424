//! Which failures are repeated, which are split, and which are given up.

use std::{borrow::Cow, cell::RefCell};

use common::ids::DatabaseName;
use sqlx::error::{DatabaseError, ErrorKind};

use super::*;
use crate::{
    store::{Effect, StoreOp, tests::fixture},
    working_set::failures::tests::Log,
};

/// A refused value, as the driver reports one that it cannot encode.
fn refusal() -> Error {
    let source = sqlx_encode();
    Error {
        database: DatabaseName::new("main"),
        op: StoreOp::TaskFinish,
        effect: Effect::None,
        source: Some(source.into()),
    }
}

fn sqlx_encode() -> sqlx::Error {
    sqlx::Error::Encode("no".into())
}

fn bug() -> Error {
    Error::unreadable(DatabaseName::new("main"), StoreOp::TaskFinish)
}

/// A server's answer, with its SQLSTATE.
#[derive(Debug, thiserror::Error)]
#[error("{1}")]
struct Answer(&'static str, &'static str);

impl DatabaseError for Answer {
    fn message(&self) -> &str {
        self.1
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        Some(self.0.into())
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

fn contention() -> Error {
    answered("55P03", "canceling statement due to lock timeout")
}

fn unreadable_block() -> Error {
    answered("58030", "could not read block 7")
}

fn answered(code: &'static str, message: &'static str) -> Error {
    let source = sqlx::Error::Database(Box::new(Answer(code, message)));
    Error {
        database: DatabaseName::new("main"),
        op: StoreOp::TaskFinish,
        effect: Effect::None,
        source: Some(source.into()),
    }
}

/// As just after a queue got a longer retention. Only the driver can make such an error.
async fn without_partition() -> Error {
    let test = fixture::database().await;
    let insert = "CREATE TABLE public.days (day int) PARTITION BY LIST (day); INSERT INTO public.days VALUES (1)";
    let source = sqlx::raw_sql(insert).execute(&test.pool).await.expect_err("there is no partition");
    let error = Error { source: Some(source.into()), ..outage() };
    assert!(error.lacks_partition(), "{error:?}");
    error
}

fn outage() -> Error {
    Error { database: DatabaseName::new("main"), op: StoreOp::TaskFinish, effect: Effect::Unknown, source: None }
}

#[test]
fn an_outage_is_repeated_for_ever_and_a_refusal_is_split_until_the_culprit_stands_alone() {
    assert_eq!(next(Fault::Outage, 1_000, 1, true, false, 0), Next::Again);
    assert_eq!(next(Fault::Outage, 1_000, 500, true, false, 0), Next::Again);
    assert_eq!(next(Fault::Data, 1, 500, true, false, 0), Next::Split);
    assert_eq!(next(Fault::Data, 1, 1, true, false, 0), Next::Refuse);
}

#[test]
fn contention_is_never_a_refusal_and_a_batch_that_meets_it_again_and_again_is_split() {
    assert_eq!(next(Fault::Contention, 1, 500, true, false, 0), Next::Again);
    assert_eq!(next(Fault::Contention, CONTENDED_TRIES, 500, true, false, 0), Next::Split);
    assert_eq!(next(Fault::Contention, 1_000, 1, true, false, 0), Next::Again);
    assert_eq!(next(Fault::Contention, 1, 1, true, true, 0), Next::Again);
    assert_eq!(next(Fault::Contention, 1_000, 1, true, true, 0), Next::Doubt);
    assert_eq!(next(Fault::Contention, 1_000, 500, true, true, CONTENDED_ALONE), Next::Doubt);
    assert_eq!(next(Fault::Contention, 1_000, 500, true, false, CONTENDED_ALONE), Next::Split);
}

#[test]
fn what_looks_like_a_bug_has_some_seconds_to_pass() {
    assert_eq!(next(Fault::Bug, 1, 1, true, false, 0), Next::Again);
    assert_eq!(next(Fault::Bug, BUG_TRIES, 500, true, false, 0), Next::Split);
    assert_eq!(next(Fault::Bug, BUG_TRIES, 1, true, false, 0), Next::Refuse);
}

#[test]
fn what_strikes_every_row_is_no_fault_of_the_row() {
    assert_eq!(next(Fault::Bug, BUG_TRIES, 500, false, false, 0), Next::Split);
    assert_eq!(next(Fault::Bug, BUG_TRIES, 1, false, false, 0), Next::Again);
    assert_eq!(next(Fault::Bug, BUG_TRIES_ALONE, 1, false, false, 0), Next::Refuse);
}

#[test]
fn a_row_in_doubt_goes_back_to_the_caller_who_takes_it_whether_others_pass_or_not() {
    for others_pass in [false, true] {
        assert_eq!(next(Fault::Bug, 1, 1, others_pass, true, 0), Next::Again);
        assert_eq!(next(Fault::Bug, BUG_TRIES, 1, others_pass, true, 0), Next::Doubt);
    }
    assert_eq!(next(Fault::Data, 1, 1, false, true, 0), Next::Refuse);
}

#[test]
fn rows_that_are_held_leave_their_part_and_the_rows_between_them_stay_together() {
    let items = [1, 2, 3, 4, 5];
    let mut done: Done<'_, i32, ()> = Done::default();
    let parts = done.take_held(&items, &[true, false, false, true, false]);
    assert_eq!(parts, [&[][..], &[2, 3], &[5]]);
    assert_eq!(done.held, [&1, &4]);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_long_outage_goes_back_and_a_short_one_is_waited_out() {
    let (patience, items) = (Duration::from_secs(10), [1, 2, 3, 4]);
    for (away, left) in [(Duration::from_secs(60), vec![&1, &2, &3, &4]), (Duration::from_secs(5), vec![])] {
        let begun = tokio::time::Instant::now();
        let write = |part: &[u32]| {
            let answer = if begun.elapsed() < away { Err(outage()) } else { Ok(part.len()) };
            std::future::ready(answer)
        };
        let none = |_: &[u32]| std::future::ready(Vec::new());
        let done = until_done_or_held("numbers", &items, Some(patience), &Failures::default(), none, write).await;
        assert_eq!(done.away, left);
        assert_eq!(done.answers.iter().sum::<usize>(), items.len() - left.len());
        assert!(begun.elapsed() <= patience.max(away) + LONGEST_PAUSE, "{:?}", begun.elapsed());
    }
}

/// Such as a row that goes into a partition which an operator has locked: no one holds the row itself.
#[tokio::test(start_paused = true)]
async fn a_row_that_meets_contention_without_end_goes_back_and_the_others_are_written() {
    let items: Vec<u32> = (0..100).collect();
    let none = |_: &[u32]| std::future::ready(Vec::new());
    let write = |part: &[u32]| {
        let answer = if part.contains(&17) { Err(contention()) } else { Ok(part.len()) };
        std::future::ready(answer)
    };
    let failures = Failures::default();
    let writing = until_done_or_held("numbers", &items, None, &failures, none, write);
    let done = tokio::time::timeout(Duration::from_secs(60), writing).await.expect("it ends while the lock lasts");
    assert_eq!(done.answers.iter().sum::<usize>(), 99);
    assert_eq!(done.doubtful.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [[17]]);
    assert!(done.refused.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_read_costs_few_statements_and_refuses_no_row() {
    let items: Vec<u32> = (0..1_000).collect();
    let none = |_: &[u32]| std::future::ready(Vec::new());
    let statements = RefCell::new(0);
    let write = |_: &[u32]| {
        *statements.borrow_mut() += 1;
        std::future::ready(Err(unreadable_block()))
    };
    let patience = Some(Duration::from_secs(60));
    let done: Done<'_, u32, ()> =
        until_done_or_held("numbers", &items, patience, &Failures::default(), none, write).await;
    assert!(done.refused.is_empty());
    let doubtful: usize = done.doubtful.iter().map(|(part, _)| part.len()).sum();
    assert_eq!(done.away.len() + doubtful, items.len());
    assert!(statements.into_inner() <= 200, "some sixty tries, and few splits");
}

#[tokio::test(start_paused = true)]
async fn contention_of_every_row_costs_few_statements() {
    let items: Vec<u32> = (0..1_000).collect();
    let none = |_: &[u32]| std::future::ready(Vec::new());
    let statements = RefCell::new(0);
    let write = |_: &[u32]| {
        *statements.borrow_mut() += 1;
        std::future::ready(Err(contention()))
    };
    let done: Done<'_, u32, ()> = until_done_or_held("numbers", &items, None, &Failures::default(), none, write).await;
    let mut doubtful: Vec<u32> = done.doubtful.iter().flat_map(|(part, _)| *part).copied().collect();
    doubtful.sort_unstable();
    assert_eq!(doubtful, items);
    assert!(statements.into_inner() <= 27, "each may wait 2 s, and the loop counts as stalled after a minute");
}

#[tokio::test]
async fn rows_without_a_partition_go_back_and_those_between_them_are_written_however_many_there_are() {
    let (items, error) = ((0..500).collect::<Vec<u32>>(), without_partition().await);
    for remainder in 0..3 {
        let lacks = |item: &u32| item % 3 == remainder;
        let none = |_: &[u32]| std::future::ready(Vec::new());
        let write = |part: &[u32]| {
            let answer = if part.iter().any(lacks) { Err(error.clone()) } else { Ok(part.len()) };
            std::future::ready(answer)
        };
        let done = until_done_or_held("numbers", &items, None, &Failures::default(), none, write).await;
        let doubtful: Vec<u32> = done.doubtful.iter().flat_map(|(part, _)| *part).copied().collect();
        assert_eq!(doubtful, items.iter().copied().filter(lacks).collect::<Vec<_>>());
        assert_eq!(done.answers.iter().sum::<usize>() + doubtful.len(), items.len());
    }
}

#[tokio::test]
async fn rows_without_a_partition_that_come_again_in_each_pass_have_one_line_in_the_log() {
    let (error, log, failures) = (without_partition().await, Log::keep(), Failures::default());
    let none = |_: &[u32]| std::future::ready(Vec::new());
    for _ in 0..3 {
        let write = |_: &[u32]| std::future::ready(Err(error.clone()));
        let done: Done<'_, u32, ()> = until_done_or_held("numbers", &[1, 2], None, &failures, none, write).await;
        assert_eq!(done.doubtful.len(), 2);
    }
    assert_eq!(log.count("numbers could not be written; retrying"), 1);
}

#[tokio::test]
async fn a_batch_of_rows_without_a_partition_costs_few_statements_and_refuses_none() {
    let (items, error) = ((0..500).collect::<Vec<u32>>(), without_partition().await);
    let none = |_: &[u32]| std::future::ready(Vec::new());
    let statements = RefCell::new(0);
    let write = |_: &[u32]| {
        *statements.borrow_mut() += 1;
        std::future::ready(Err(error.clone()))
    };
    let done: Done<'_, u32, ()> = until_done_or_held("numbers", &items, None, &Failures::default(), none, write).await;
    assert_eq!(done.doubtful.iter().flat_map(|(part, _)| *part).copied().collect::<Vec<u32>>(), items);
    assert!(done.refused.is_empty());
    assert!(statements.into_inner() < 60);
}

#[tokio::test]
async fn neighbours_of_a_refused_row_are_written_once_each_although_an_outage_lies_between() {
    let written = RefCell::new(Vec::new());
    let outages = RefCell::new(2);
    let items: Vec<u32> = (0..100).collect();
    let done = until_done("numbers", &items, |part| {
        let answer = if part.iter().any(|item| [17, 63].contains(item)) {
            Err(refusal())
        } else if *outages.borrow() > 0 {
            *outages.borrow_mut() -= 1;
            Err(outage())
        } else {
            written.borrow_mut().extend(part.iter().copied());
            Ok(part.len())
        };
        std::future::ready(answer)
    })
    .await;
    let mut refused: Vec<u32> = done.refused.iter().map(|refused| *refused.item).collect();
    refused.sort_unstable();
    assert_eq!(refused, [17, 63]);
    let mut written = written.into_inner();
    written.sort_unstable();
    assert_eq!(written, (0..100).filter(|item| ![17, 63].contains(item)).collect::<Vec<u32>>());
    assert_eq!(done.answers.into_iter().sum::<usize>(), 98);
}

#[tokio::test]
async fn a_single_try_leaves_what_an_outage_kept_from_being_written() {
    let items = [1, 2, 3, 4];
    let tried = try_each(&items, |part| {
        let answer = match part {
            [1, 2] => Err(outage()),
            [3, 4] | [1, 2, 3, 4] | [3] => Err(refusal()),
            part => Ok(part.to_vec()),
        };
        std::future::ready(answer)
    })
    .await;
    assert_eq!(tried.answers, [[4]]);
    assert_eq!(tried.refused.iter().map(|refused| *refused.item).collect::<Vec<i32>>(), [3]);
    assert_eq!(tried.left.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [[1, 2]]);
}

#[tokio::test]
async fn a_row_that_fails_as_with_a_bug_is_left_alone_and_its_neighbours_are_written() {
    let items: Vec<u32> = (0..100).collect();
    let tried = try_each(&items, |part| {
        let answer = if part.contains(&17) { Err(bug()) } else { Ok(part.len()) };
        std::future::ready(answer)
    })
    .await;
    assert_eq!(tried.answers.into_iter().sum::<usize>(), 99);
    assert_eq!(tried.left.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [[17]]);
    assert!(tried.refused.is_empty());
}

#[tokio::test]
async fn what_strikes_every_row_refuses_none_and_costs_few_statements() {
    let items: Vec<u32> = (0..500).collect();
    let statements = RefCell::new(0);
    let tried: Tried<'_, u32, ()> = try_each(&items, |_| {
        *statements.borrow_mut() += 1;
        std::future::ready(Err(bug()))
    })
    .await;
    assert!(tried.refused.is_empty());
    let mut left: Vec<u32> = tried.left.iter().flat_map(|(part, _)| *part).copied().collect();
    left.sort_unstable();
    assert_eq!(left, items);
    assert!(statements.into_inner() < 60);
}
