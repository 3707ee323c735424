//! Sends a batch again whose first sending failed, until its result is known.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::task::NewTask;

use super::batch::SubmitError;
use crate::{
    store::{
        Database, Effect, Error, Fault, Statements,
        submit::{EXECUTED_WITHIN, Sending, Window},
    },
    working_set::{database::NodeDatabase, retry::DOUBTS_ALONE, set_aside::Kind},
};

/// The pause between two sendings of a batch.
const PAUSE: Duration = Duration::from_millis(100);

/// A batch whose commit is unknown is sent again for this long. After that, or before a wait that would last longer
/// than the window of one more sending, its callers learn that it is unknown.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(5);

/// What is known of a part of a batch in the end.
#[derive(Debug)]
pub(super) enum Known<T> {
    Stored(T),
    Failed(SubmitError),
    /// The part has a task whose shard is in another database by now, and this sending wrote nothing. After a sending
    /// with an unknown end, the tasks may have moved with their shards.
    Elsewhere(Sending),
}

/// How far a part of a batch is.
enum Progress<T> {
    Answered(Result<T, Error>),
    /// It shares a key with an earlier part, which is not done. The error is that of the part that both were. If the
    /// earlier part is to be sent elsewhere, this one goes with it, unsent: the cut may be undone by now.
    WaitsItsTurn(Error),
}

/// Sends `tasks` again, whose first sending failed, until they are known to be durable or known not to be, within
/// bounds. After a sending with an unknown end, the next begins only when the time of the earlier one is over. A
/// task that the database refuses is separated from its neighbours, and so is one in doubt, as with a bug: its sender
/// may send it again, in case the server is at fault. So is one that ends a task for which the archive has no partition
/// yet. Tasks of one key keep their order. `first` is the kind of the failed sending. Returns the result of each part,
/// in the order of the tasks.
pub(super) async fn until_known<'a, T, F>(
    node_database: &NodeDatabase,
    tasks: &'a [NewTask],
    first: Sending,
    (window, error): (Window, Error),
    send: impl Fn(&'a [NewTask], Sending, Window) -> F,
) -> Vec<(&'a [NewTask], Known<T>)>
where
    F: Future<Output = Result<T, Error>>,
{
    let (started, database) = (Instant::now(), &node_database.sql);
    let mut known: Vec<(&[NewTask], Known<T>)> = Vec::new();
    let mut doubts_alone = 0;
    // The first part is the last of the list.
    let mut parts = vec![(tasks, first, window, Progress::Answered(Err(error)))];
    while let Some((part, sending, mut window, progress)) = parts.pop() {
        let result = match progress {
            Progress::Answered(answer) => known_of(answer, sending),
            Progress::WaitsItsTurn(_) if is_behind_moved(&known, part) => Ok(Known::Elsewhere(sending)),
            Progress::WaitsItsTurn(error) => {
                window = next_window(window, &error, sending, database);
                known_of(send(part, sending, window).await, sending)
            }
        };
        let Err(error) = result.map(|result| known.push((part, result))) else { continue };
        let refused = error.fault() == Fault::Data;
        let is_doubt = error.may_concern_some_rows() && error.effect == Effect::None;
        let others_pass = known.iter().any(|(_, known)| matches!(known, Known::Stored(_)))
            || parts.iter().any(|(_, _, _, progress)| matches!(progress, Progress::Answered(Ok(_))));
        // A smaller part may be written within a statement's timeout, or within a window.
        let is_slow = error.is_out_of_time() || (error.is_outside_window() && window.is_over(database));
        // If several tasks fail alone and none has passed, the server may be at fault.
        let is_split = refused || is_slow || (is_doubt && (others_pass || doubts_alone < DOUBTS_ALONE));
        doubts_alone += usize::from(is_doubt && part.len() == 1);
        let unknown = sending == Sending::Again || error.effect == Effect::Unknown;
        let late = started.elapsed() > RESOLVE_DEADLINE;
        if is_split && part.len() > 1 && !late {
            let (before, after) = part.split_at(part.len() / 2);
            let next = next_window(window, &error, sending, database);
            let answer = send(before, sending, next).await;
            if answer.is_err() && share_a_key(before, after) {
                parts.push((after, sending, window, Progress::WaitsItsTurn(error)));
            } else {
                // The first half may have used up that window.
                let later = next_window(window, &error, sending, database);
                parts.push((after, sending, later, Progress::Answered(send(after, sending, later).await)));
            }
            parts.push((before, sending, next, Progress::Answered(answer)));
            continue;
        }
        let next = next_window(window, &error, sending, database);
        let pause = PAUSE.max(next.wait(database));
        // The clock of a server that took over may be far behind the end of the last window.
        let is_too_long = started.elapsed() + pause > RESOLVE_DEADLINE + EXECUTED_WITHIN;
        if refused || late || is_too_long || !(unknown || error.is_contention()) {
            note_unstored(node_database, part.len(), &error, others_pass);
            known.push((part, Known::Failed(unstored(&error, part.len() == 1, unknown))));
            continue;
        }
        let sending = if unknown { Sending::Again } else { sending };
        tokio::time::sleep(pause).await;
        parts.push((part, sending, next, Progress::Answered(send(part, sending, next).await)));
    }
    with_others_pass(known)
}

/// The window of a sending that begins now, after that of kind `sending` with `window` failed.
fn next_window(window: Window, error: &Error, sending: Sending, database: &Database) -> Window {
    match (error.effect, sending) {
        (Effect::Unknown, _) => window.next(database),
        (Effect::None, Sending::Again) => Window { after: window.after, ..Window::first(database) },
        (Effect::None, Sending::First) => Window::first(database),
    }
}

/// Whether a later part has a task of a key of an earlier one: written first, it would be replaced by the older task.
fn share_a_key(earlier: &[NewTask], later: &[NewTask]) -> bool {
    let keys: BTreeSet<_> = earlier.iter().filter_map(|task| task.full_key()).collect();
    later.iter().filter_map(|task| task.full_key()).any(|key| keys.contains(&key))
}

/// Whether a part has a task of a key of an earlier part that is to be sent elsewhere.
fn is_behind_moved<T>(known: &[(&[NewTask], Known<T>)], part: &[NewTask]) -> bool {
    known.iter().any(|(earlier, known)| matches!(known, Known::Elsewhere(_)) && share_a_key(earlier, part))
}

/// What an answer makes known of a part. An error: it is to be sent again, or it failed.
fn known_of<T>(answer: Result<T, Error>, sending: Sending) -> Result<Known<T>, Error> {
    match answer {
        Ok(stored) => Ok(Known::Stored(stored)),
        Err(error) if error.is_moved() => Ok(Known::Elsewhere(sending)),
        Err(error) => Err(error),
    }
}

/// Tells the tasks in doubt whether others of the batch passed.
fn with_others_pass<T>(mut known: Vec<(&[NewTask], Known<T>)>) -> Vec<(&[NewTask], Known<T>)> {
    let pass = known.iter().any(|(_, known)| matches!(known, Known::Stored(_)));
    for (_, known) in &mut known {
        if let Known::Failed(SubmitError::InDoubt { others_pass, .. }) = known {
            *others_pass = pass;
        }
    }
    known
}

/// Notes that submitted tasks could not be stored.
fn note_unstored(database: &NodeDatabase, tasks: usize, error: &Error, others_pass: bool) {
    // The log has a line about a refused task where it is set aside.
    if error.fault() == Fault::Data && tasks == 1 {
        return;
    }
    // A connection that breaks, or that none is free, says nothing about the next write. No answer in time does.
    let says_it_takes_none = error.sqlstate().is_some() || error.source.is_none() || error.not_replicated().is_some();
    let is_of_one_row = error.lacks_partition() || (others_pass && error.is_unreadable_file());
    if error.fault() == Fault::Outage && says_it_takes_none && !is_of_one_row {
        database.leave_messages();
    }
    // The prober has said it once for all tasks.
    if error.not_replicated().is_none() && database.unstored.begin() {
        let cause = error as &dyn std::error::Error;
        tracing::warn!(database = %database.name(), tasks, error = cause, "could not store submitted tasks");
    }
}

/// Notes that submitted tasks were stored.
pub(super) fn stored(database: &NodeDatabase) {
    if database.unstored.end() {
        tracing::info!(database = %database.name(), "submitted tasks are stored again");
    }
}

/// The answers for tasks that are handed back, because their shards may be in another database.
pub(super) fn handed_back<T>(part: &[NewTask], sending: Sending) -> impl Iterator<Item = Result<T, SubmitError>> {
    part.iter().map(move |task| Err(SubmitError::Elsewhere(Box::new(task.clone()), sending)))
}

fn unstored(error: &Error, is_alone: bool, unknown: bool) -> SubmitError {
    match (error.fault(), is_alone, unknown) {
        (Fault::Data, true, _) => SubmitError::Refused(error.reason()),
        (_, _, true) => SubmitError::Unknown(error.to_string()),
        (Fault::Bug, true, false) => SubmitError::InDoubt { why: error.reason(), others_pass: false },
        (_, _, false) => match error.not_replicated() {
            Some(why) => SubmitError::Unreplicated(why),
            None => SubmitError::Unavailable(error.to_string()),
        },
    }
}

/// Notes a task that the database refuses. Nothing of it is kept, because its sender gets the error.
pub(super) fn refused<S: Statements, T>(database: &NodeDatabase<S>, part: &[NewTask], stored: &Known<T>) {
    if let (Known::Failed(SubmitError::Refused(reason)), [task]) = (stored, part) {
        database.set_aside.note_task(Kind::Submission, database.sql.name(), task.id, reason);
    }
}

#[cfg(test)]
mod tests {
    use common::{
        ids::{DatabaseName, ShardId},
        task::{BusinessKey, OnDuplicate},
        time::UnixMicros,
    };

    use super::*;
    use crate::{
        desk::tests::fresh,
        store::{
            StoreOp,
            put::{PutOutcome, Retention},
            tests::{changed, fixture, lapse, new_task},
        },
    };

    #[tokio::test]
    async fn callers_do_not_wait_until_the_clock_of_a_server_that_took_over_has_caught_up() {
        let (counter, _test) = fresh().await;
        let database = counter.databases.home();
        let first = Window::first(&database.sql);
        let window = Window { until: first.until.plus(Duration::from_secs(60)), ..first };
        let (name, op) = (DatabaseName::new("main"), StoreOp::TaskSubmit);
        let error = Error { database: name, op, effect: Effect::Unknown, source: None };
        let tasks = [new_task(fixture::fresh_id_of(ShardId::new(0)))];
        let send = |_: &[NewTask], _, _| std::future::ready(Err::<(), Error>(error.clone()));
        let known = until_known(database, &tasks, Sending::First, (window, error.clone()), send);
        let known = tokio::time::timeout(Duration::from_secs(8), known).await.expect("the wait is bounded");
        assert!(matches!(known.as_slice(), [(_, Known::Failed(SubmitError::Unknown(_)))]), "{known:?}");
    }

    /// A window that is over, and the failure of a sending within it.
    async fn too_late(database: &NodeDatabase, tasks: &[NewTask]) -> (Window, Error) {
        let over = Window { after: None, until: UnixMicros::new(0) };
        let late = database.sql.task_submit_within(tasks, Sending::First, over, i64::MAX).await;
        (over, late.expect_err("its window is over"))
    }

    #[tokio::test]
    async fn tasks_that_are_too_many_for_the_window_of_one_sending_are_stored_in_parts() {
        let (counter, _test) = fresh().await;
        let database = counter.databases.home();
        let tasks = [0, 0].map(|shard| new_task(fixture::fresh_id_of(ShardId::new(shard))));
        let (over, error) = too_late(database, &tasks).await;
        let known = until_known(database, &tasks, Sending::First, (over, error), |part, sending, window| {
            // Both together take longer than any window.
            let window = if part.len() > 1 { over } else { window };
            async move { database.sql.task_submit_within(part, sending, window, i64::MAX).await }
        });
        let known = known.await;
        assert!(known.iter().all(|(_, known)| matches!(known, Known::Stored(_))), "{known:?}");
        assert_eq!(known.len(), tasks.len());
    }

    /// The cut that the first half met is undone before the second half would be sent.
    #[tokio::test]
    async fn the_second_half_of_a_batch_goes_elsewhere_with_the_first_if_they_share_a_key() {
        let (counter, _test) = fresh().await;
        let database = counter.databases.home();
        let mut tasks = [0, 0].map(|shard| new_task(fixture::fresh_id_of(ShardId::new(shard))));
        let (over, error) = too_late(database, &tasks).await;
        for task in &mut tasks {
            task.keyed = Some(BusinessKey { key: "k".to_owned(), version: 0, on_duplicate: OnDuplicate::default() });
        }
        let elsewhere = new_task(fixture::fresh_id_of(ShardId::new(fixture::SHARDS)));
        let hold = Retention { window_ms: 1, keep_ms: 1 };
        let moved = database.sql.task_put(&[elsewhere], &[hold]).await.expect_err("its shard is not here");
        assert!(moved.is_moved(), "{moved:?}");
        let sent = std::cell::Cell::new(0);
        let known = until_known(database, &tasks, Sending::First, (over, error), |_, _, _| {
            sent.set(sent.get() + 1);
            std::future::ready(if sent.get() == 1 { Err(moved.clone()) } else { Ok(()) })
        });
        let known = known.await;
        assert!(matches!(known.as_slice(), [(_, Known::Elsewhere(_)), (_, Known::Elsewhere(_))]), "{known:?}");
        assert_eq!(sent.get(), 1, "the second half is not sent");
    }

    /// A client has read what it wrote meanwhile, and replaced that.
    #[tokio::test]
    async fn a_replacement_whose_answer_was_lost_is_not_written_over_a_later_one() {
        let (counter, _test) = fresh().await;
        let database = counter.databases.home();
        let hold = Retention { window_ms: 1, keep_ms: 1 };
        let [old, lost, later] = ["1", "2", "3"].map(|payload| {
            let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
            task.content.payload = payload.as_bytes().to_vec();
            task.keyed = Some(BusinessKey { key: "k".to_owned(), version: 0, on_duplicate: OnDuplicate::Replace });
            task
        });
        for task in [&old, &lost, &later] {
            database.sql.task_put(std::slice::from_ref(task), &[hold]).await.expect("written");
        }
        let name = DatabaseName::new("main");
        let error = Error { database: name, op: StoreOp::TaskPut, effect: Effect::Unknown, source: None };
        let over = Window { after: None, until: UnixMicros::new(0) };
        let tasks = [lost];
        let known = until_known(database, &tasks, Sending::First, (over, error), |part, _, window| async move {
            database.sql.task_put_within(part, &[hold], window, i64::MAX).await
        });
        let known = known.await;
        let [(_, Known::Stored(puts))] = known.as_slice() else { panic!("{known:?}") };
        assert_eq!((puts[0].outcome, puts[0].id), (PutOutcome::Replaced, old.id));
        let there = database.sql.task_read(old.id).await.expect("read").expect("there");
        assert_eq!(there.payload.as_deref(), Some(&b"3"[..]));
    }

    /// As just after its queue got a longer retention.
    #[tokio::test]
    async fn a_key_whose_expired_task_has_no_partition_yet_keeps_no_other_key_from_being_stored() {
        let (counter, test) = fresh().await;
        let database = counter.databases.home();
        let keyed = |key: &str| {
            let keyed = BusinessKey { key: key.to_owned(), version: 0, on_duplicate: OnDuplicate::default() };
            changed(new_task(fixture::fresh_id_of(ShardId::new(0))), |task| task.keyed = Some(keyed))
        };
        let hold = Retention { window_ms: 1, keep_ms: 300 * 86_400_000 };
        let late = keyed("late");
        database.sql.task_put(std::slice::from_ref(&late), &[hold]).await.unwrap();
        lapse(&test.pool, late.id).await;

        let (tasks, window) = (["first", "late", "last"].map(keyed), Window::first(&database.sql));
        let error = database.sql.task_put_within(&tasks, &[hold; 3], window, i64::MAX).await;
        let error = error.expect_err("it archives the expired task");
        assert!(error.lacks_partition(), "{error:?}");
        let known = until_known(database, &tasks, Sending::First, (window, error), |part, _, window| async move {
            database.sql.task_put_within(part, &vec![hold; part.len()], window, i64::MAX).await
        });
        let known = known.await;
        let stored = |known: &Known<_>| matches!(known, Known::Stored(_));
        assert_eq!(known.iter().map(|(_, known)| stored(known)).collect::<Vec<_>>(), [true, false, true], "{known:?}");
        assert!(!database.leaves_messages(), "it takes writes");
    }

    #[tokio::test]
    async fn the_second_half_of_a_batch_has_a_window_that_begins_after_the_first_was_sent() {
        let (counter, _test) = fresh().await;
        let database = counter.databases.home();
        let tasks = [0, 0].map(|shard| new_task(fixture::fresh_id_of(ShardId::new(shard))));
        let (over, error) = too_late(database, &tasks).await;
        let ends = std::cell::RefCell::new(Vec::new());
        let known = until_known(database, &tasks, Sending::First, (over, error), |_, _, window| {
            ends.borrow_mut().push(window.until);
            async {
                tokio::time::sleep(EXECUTED_WITHIN).await;
                Ok(())
            }
        });
        assert_eq!(known.await.len(), tasks.len());
        let ends = ends.into_inner();
        assert!(matches!(ends.as_slice(), [first, second] if *second >= first.plus(EXECUTED_WITHIN / 2)), "{ends:?}");
    }
}
