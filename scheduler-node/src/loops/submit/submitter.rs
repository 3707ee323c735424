//! Makes submitted tasks durable: routes each to its shard, gathers concurrent submissions into one insert, answers
//! each caller after the commit, and hands near-due tasks to the heap.
//!
//! If this loop stops, submissions wait in a bounded queue and are refused when it is full. No answered submission
//! is lost.

mod insert;
mod route;

use std::{sync::Arc, time::Duration};

use common::{
    ids::TaskId,
    task::{NewTask, ValidTask},
    time::UnixMicros,
};
use futures::future::{join, join_all};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::insert::run;
use self::route::Routes;
pub use super::batch::SubmitError;
use super::{
    batch::Job,
    keyed_submitter::{PutJob, TASKS_PER_PUT},
};
use crate::{
    by_database::ByDatabase,
    clock,
    loops::upkeep::{prober::NodeFitness, queue_reader::Books},
    store::{
        Patience,
        put::{Put, PutOutcome},
        submit::Sending,
    },
    working_set::database::{DatabaseIndex, NodeDatabases},
};

/// The most submissions that wait for an insert in one database. Further callers must come back later.
const WAITING_JOBS: usize = 1_024;

/// No database that this node uses has the shard, for longer than a cut takes.
const NO_PLACE: &str = "its shard is moving to another database, or is in one that this node does not use yet";

/// The answer to a task whose caller is to send an earlier one with its key again.
const BEHIND_ANOTHER: &str = "an earlier task of the batch with its key was not stored";

/// The promise to a caller: this task is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: TaskId,
    pub created_at: UnixMicros,
    pub due_at: UnixMicros,
}

/// The answer for a caller's task: [`Stored`] if it is new, otherwise the effect of another task with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    Stored(Stored),
    Keyed(Put),
}

#[derive(Clone, Debug)]
pub struct Submitter {
    lines: ByDatabase<Line>,
    routes: Arc<Routes>,
}

/// The tasks of a sent part, and the answer to wait for.
type SentInserts = (Vec<Inserted>, oneshot::Receiver<Vec<Result<UnixMicros, SubmitError>>>);

/// A task that is being inserted: its position, its id, and its due time; `None` stands for the time of the insert.
type Inserted = (usize, TaskId, Option<UnixMicros>);

/// Tasks to insert. The answer to each is the time of the insert.
pub type InsertJob = Job<UnixMicros>;

/// The ways to the two loops that write into one database.
#[derive(Debug)]
struct Line {
    jobs: mpsc::Sender<InsertJob>,
    puts: mpsc::Sender<PutJob>,
}

/// The half of a database that [`run`] and the keyed submitter work on.
#[derive(Debug)]
pub struct SubmitJobs {
    pub jobs: mpsc::Receiver<InsertJob>,
    pub puts: mpsc::Receiver<PutJob>,
}

impl Submitter {
    /// Every database needs [its line](Self::add_line) before a task is routed to it.
    pub fn new(
        databases: NodeDatabases,
        books: Books,
        fitness: watch::Receiver<NodeFitness>,
        horizon: Duration,
    ) -> Self {
        let routes = Arc::new(Routes { databases, books, fitness, horizon });
        Self { lines: ByDatabase::default(), routes }
    }

    /// Opens the line of the next database.
    pub fn add_line(&self) -> SubmitJobs {
        let ((to_insert, jobs), (to_put, puts)) = (mpsc::channel(WAITING_JOBS), mpsc::channel(WAITING_JOBS));
        self.lines.push(Line { jobs: to_insert, puts: to_put });
        SubmitJobs { jobs, puts }
    }

    /// Submits tasks that were admitted by the queues as of revision `admitted`, or by a newer one. Returns one answer
    /// for each, in their order. `Ok` means that the task, or the one that has its key, is durable. A task whose queue
    /// has other rules by now is handed back.
    pub async fn submit(
        &self,
        tasks: Vec<ValidTask>,
        source: &'static str,
        admitted: i64,
    ) -> Vec<Result<Accepted, SubmitError>> {
        let Some(shard_count) = self.routes.databases.places().known().await else {
            let why = || Err(SubmitError::Unavailable("no database has told the shards of the cluster yet".to_owned()));
            return tasks.iter().map(|_| why()).collect();
        };
        let (placed, routed) = self.routes.place(tasks, shard_count);
        self.write_routed(placed, source, routed.min(admitted), Patience::Long).await
    }

    /// Writes tasks that have ids already and come again. They stay on their shards, even if their queue has been
    /// placed anew.
    pub async fn write(&self, new: Vec<NewTask>, source: &'static str) -> Vec<Result<Accepted, SubmitError>> {
        self.write_routed(new, source, i64::MAX, Patience::Short).await
    }

    /// Writes tasks, each in the place of its shard. Those that a database hands back are divided again by the map and
    /// sent with the same ids, a bounded number of times.
    async fn write_routed(
        &self,
        new: Vec<NewTask>,
        source: &'static str,
        routed: i64,
        patience: Patience,
    ) -> Vec<Result<Accepted, SubmitError>> {
        let mut answers = self.write_once(new, source, routed, Sending::First).await;
        let (mut refusals, refused_at) = (0, clock::instant());
        loop {
            let (places, left, sending) = handed_back(&answers);
            if left.is_empty() {
                return answers;
            }
            if !self.routes.databases.places().reread_after_move(refusals, refused_at, patience).await {
                places.into_iter().for_each(|place| answers[place] = Err(unsent(sending, NO_PLACE)));
                return answers;
            }
            refusals += 1;
            let again = self.write_once(left, source, routed, sending).await;
            for (place, answer) in places.into_iter().zip(again) {
                answers[place] = answer;
            }
        }
    }

    async fn write_once(
        &self,
        new: Vec<NewTask>,
        source: &'static str,
        routed: i64,
        sending: Sending,
    ) -> Vec<Result<Accepted, SubmitError>> {
        let mut answers: Vec<Option<Result<Accepted, SubmitError>>> = new.iter().map(|_| None).collect();
        let (parts, lost) = self.routes.databases.divide(new.into_iter().enumerate(), |(_, task)| task.id);
        for (place, task) in lost {
            let why = "no database that was read since the start of this node has its shard";
            let sending = if task.is_put() { sending } else { Sending::First };
            answers[place] = Some(Err(unsent(sending, why)));
        }
        let (mut inserts, mut puts) = (Vec::new(), Vec::new());
        for (index, part) in parts {
            let (keyed, plain): (Vec<_>, Vec<_>) = part.into_iter().partition(|(_, task)| task.is_put());
            inserts.extend(self.send_inserts(index, plain, source, routed));
            let lines = in_lines(keyed).into_iter();
            puts.extend(lines.map(|line| self.put_one_by_one(index, line, source, routed, sending)));
        }
        let inserted = async {
            for (places, answered) in inserts {
                let given = answered.await.unwrap_or_else(|_| vec![Err(stopping()); places.len()]);
                for ((place, id, due_at), answer) in places.into_iter().zip(given) {
                    let stored = |now| Accepted::Stored(Stored { id, created_at: now, due_at: due_at.unwrap_or(now) });
                    answers[place] = Some(answer.map(stored));
                }
            }
        };
        let (put, ()) = join(join_all(puts), inserted).await;
        for (place, answer) in put.into_iter().flatten() {
            answers[place] = Some(answer.and_then(keyed_answer));
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Err(SubmitError::Overloaded))).collect()
    }

    /// Sends a database's part to its insert loop. A part that finds no room is left out.
    fn send_inserts(
        &self,
        index: DatabaseIndex,
        part: Vec<(usize, NewTask)>,
        source: &'static str,
        routed: i64,
    ) -> Option<SentInserts> {
        if part.is_empty() {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let due_at = |task: &NewTask| (!task.due_now).then_some(task.due_at);
        let places = part.iter().map(|(place, task)| (*place, task.id, due_at(task))).collect();
        let tasks = part.into_iter().map(|(_, task)| task).collect();
        // The loop sends a part by itself again if the end of its first sending is unknown.
        let job = Job { tasks, source, routed, sending: Sending::First, answer };
        self.lines[index].jobs.try_send(job).ok()?;
        Some((places, answered))
    }

    /// Sends tasks to a database's loop of keyed writes, in jobs of a bounded size, each after the answer to the one
    /// before. Returns the answers with their positions. A job that finds no room is not sent, nor is any behind it.
    /// The tasks of several jobs have one key: where one of them may come again, those behind its job are not sent.
    async fn put_one_by_one(
        &self,
        index: DatabaseIndex,
        line: Vec<(usize, NewTask)>,
        source: &'static str,
        routed: i64,
        sending: Sending,
    ) -> Vec<(usize, Result<Put, SubmitError>)> {
        let mut answers = Vec::with_capacity(line.len());
        let mut left = line.into_iter().peekable();
        while left.peek().is_some() {
            let (answer, answered) = oneshot::channel();
            let (places, tasks): (Vec<usize>, Vec<NewTask>) = left.by_ref().take(TASKS_PER_PUT).unzip();
            if self.lines[index].puts.try_send(PutJob { tasks, source, routed, sending, answer }).is_err() {
                let kept_back = places.into_iter().chain(left.map(|(place, _)| place));
                answers.extend(kept_back.map(|place| (place, Err(overloaded(sending)))));
                break;
            }
            let given = answered.await.unwrap_or_else(|_| vec![Err(stopping()); places.len()]);
            if let Some(first) = first_to_come_again(&given) {
                answers.extend(left.by_ref().map(|(place, task)| (place, Err(behind(first, task, sending)))));
            }
            answers.extend(places.into_iter().zip(given));
        }
        answers
    }
}

/// Divides tasks into lines that may be written beside one another: all tasks of a key are in one, in their order.
/// Each line is one job, but for that of a key with more tasks than a job may have.
fn in_lines(mut tasks: Vec<(usize, NewTask)>) -> Vec<Vec<(usize, NewTask)>> {
    // The sort is stable.
    tasks.sort_by(|(_, one), (_, other)| one.full_key().cmp(&other.full_key()));
    let is_same = |(_, one): &(usize, NewTask), (_, other): &(usize, NewTask)| {
        one.keyed.is_some() && one.full_key() == other.full_key()
    };
    let lengths: Vec<usize> = tasks.chunk_by(is_same).map(<[_]>::len).collect();
    let mut tasks = tasks.into_iter();
    let mut lines: Vec<Vec<(usize, NewTask)>> = Vec::new();
    for length in lengths {
        let of_key = tasks.by_ref().take(length);
        match lines.last_mut() {
            Some(line) if line.len() + length <= TASKS_PER_PUT => line.extend(of_key),
            _ => lines.push(of_key.collect()),
        }
    }
    lines
}

/// The tasks whose shards may be in another database by now, with their positions, and whether any of them was sent to
/// an unknown end. They are sent again together, so one such task makes the others ones that may be stored.
fn handed_back(answers: &[Result<Accepted, SubmitError>]) -> (Vec<usize>, Vec<NewTask>, Sending) {
    let (mut places, mut tasks, mut sending) = (Vec::new(), Vec::new(), Sending::First);
    for (place, answer) in answers.iter().enumerate() {
        let Err(SubmitError::Elsewhere(task, sent)) = answer else { continue };
        places.push(place);
        tasks.push(NewTask::clone(task));
        if *sent == Sending::Again {
            sending = Sending::Again;
        }
    }
    (places, tasks, sending)
}

/// The answer to a task that is not sent now. `Again`: an earlier sending may have stored it.
fn unsent(sending: Sending, why: &str) -> SubmitError {
    match sending {
        Sending::First => SubmitError::Unavailable(why.to_owned()),
        Sending::Again => SubmitError::Unknown(why.to_owned()),
    }
}

/// The same where too many others wait.
fn overloaded(sending: Sending) -> SubmitError {
    match sending {
        Sending::First => SubmitError::Overloaded,
        Sending::Again => unsent(sending, "too many submissions are waiting"),
    }
}

/// The answer to a task that comes again, or may come again, so that no later one with its key may be written before.
/// One that only its caller can send again goes before one that is handed back.
fn first_to_come_again(answers: &[Result<Put, SubmitError>]) -> Option<&Result<Put, SubmitError>> {
    let may_come_again = |answer: &&Result<Put, SubmitError>| match answer {
        Ok(put) => put.outcome == PutOutcome::Busy,
        Err(error) => !matches!(error, SubmitError::Refused(_)),
    };
    let is_handed_back = |answer: &&Result<Put, SubmitError>| {
        matches!(answer, Err(SubmitError::Elsewhere(..) | SubmitError::RulesChanged(_)))
    };
    answers.iter().filter(may_come_again).min_by_key(is_handed_back)
}

/// The answer for a task that is not sent, because one with its key has this answer. Behind one that is handed back, it
/// is handed back as well, and both are sent again in their order. Sent now, it could be stored: a cut may be undone
/// between the two jobs, and the first may have shared its statement with a task that was admitted by older rules. One
/// that may be stored is not admitted again: it would get another id.
fn behind(first: &Result<Put, SubmitError>, task: NewTask, sending: Sending) -> SubmitError {
    match (first, sending) {
        (Err(SubmitError::Elsewhere(..)), _) => SubmitError::Elsewhere(Box::new(task), sending),
        (Err(SubmitError::RulesChanged(_)), Sending::First) => SubmitError::RulesChanged(Box::new(task)),
        _ => unsent(sending, BEHIND_ANOTHER),
    }
}

/// Turns a put into an answer. A task whose key is not free at the moment is not stored, and its neighbours are.
fn keyed_answer(put: Put) -> Result<Accepted, SubmitError> {
    if put.outcome == PutOutcome::Busy {
        return Err(SubmitError::Unavailable(
            "another transaction, or the move of a shard, holds a task with this key".to_owned(),
        ));
    }
    Ok(Accepted::Keyed(put))
}

fn stopping() -> SubmitError {
    SubmitError::Unknown("the node is stopping".to_owned())
}

#[cfg(test)]
mod tests {
    use common::{
        ids::ShardId,
        task::{BusinessKey, OnDuplicate, TaskState},
    };

    use super::*;
    use crate::{
        desk::tests::{Counter, fresh},
        store::tests::{
            fixture::{self, TestDatabase},
            new_task,
        },
    };

    /// A submitter with one database, the line of that database, and a task with a key. The rest keeps the database.
    async fn with_line() -> (Submitter, SubmitJobs, NewTask, (Counter, TestDatabase)) {
        let (counter, test) = fresh().await;
        let fitness = watch::channel(NodeFitness::default()).1;
        let (databases, books) = (counter.databases.clone(), Arc::clone(&counter.books));
        let submitter = Submitter::new(databases, books, fitness, Duration::from_secs(10));
        let lines = submitter.add_line();
        let mut task = new_task(fixture::fresh_id_of(ShardId::new(0)));
        task.keyed = Some(BusinessKey { key: "k".to_owned(), version: 0, on_duplicate: OnDuplicate::default() });
        (submitter, lines, task, (counter, test))
    }

    /// Writes one task more than a job takes, all with one key. `answer_to` answers a task of the job with this number.
    /// Returns the lengths of the jobs, their kinds, and the answers.
    async fn written(
        answer_to: impl Fn(usize, &NewTask) -> Result<Put, SubmitError>,
    ) -> (Vec<usize>, Vec<Sending>, Vec<Result<Accepted, SubmitError>>) {
        let (submitter, SubmitJobs { jobs: _jobs, mut puts }, task, _counter) = with_line().await;
        let (mut lengths, mut sendings) = (Vec::new(), Vec::new());
        let answering = async {
            while let Some(PutJob { tasks, sending, answer, .. }) = puts.recv().await {
                let given = tasks.iter().map(|task| answer_to(lengths.len(), task)).collect();
                lengths.push(tasks.len());
                sendings.push(sending);
                answer.send(given).expect("the submitter waits for it");
            }
        };
        let answers = tokio::select! {
            answers = submitter.write(vec![task; TASKS_PER_PUT + 1], "http") => answers,
            () = answering => unreachable!("the line is open"),
        };
        assert_eq!(answers.len(), TASKS_PER_PUT + 1);
        (lengths, sendings, answers)
    }

    fn put(outcome: PutOutcome, task: &NewTask) -> Put {
        let (id, state, now) = (task.id, TaskState::Scheduled, UnixMicros::new(0));
        Put { outcome, id, state, due_at: now, created_at: now, version: 0, superseded: 0 }
    }

    #[tokio::test]
    async fn a_task_is_not_stored_before_an_earlier_job_with_its_key_that_is_to_come_again() {
        let (lengths, _, answers) = written(|_, task| Ok(put(PutOutcome::Busy, task))).await;
        assert_eq!(lengths, [TASKS_PER_PUT], "the last task is not sent");
        assert_eq!(answers.last(), Some(&Err(SubmitError::Unavailable(BEHIND_ANOTHER.to_owned()))));
    }

    /// The cut that the first job met is undone before the next one would be sent.
    #[tokio::test]
    async fn a_task_is_not_sent_before_an_earlier_job_with_its_key_whose_shard_has_moved() {
        let (lengths, sendings, answers) = written(|job, task| match job {
            0 => Err(SubmitError::Elsewhere(Box::new(task.clone()), Sending::First)),
            _ => Ok(put(PutOutcome::Existing, task)),
        })
        .await;
        assert_eq!(lengths, [TASKS_PER_PUT, TASKS_PER_PUT, 1], "all are sent again in their order");
        assert_eq!(sendings, [Sending::First; 3], "nothing is in doubt");
        assert!(answers.iter().all(Result::is_ok));
    }

    /// It may have come in before its shard moved.
    #[tokio::test]
    async fn what_was_sent_to_an_unknown_end_in_a_former_place_is_sent_as_such_to_the_new_one() {
        let (_, sendings, answers) = written(|job, task| match job {
            0 => Err(SubmitError::Elsewhere(Box::new(task.clone()), Sending::Again)),
            _ => Ok(put(PutOutcome::Existing, task)),
        })
        .await;
        assert_eq!(sendings, [Sending::First, Sending::Again, Sending::Again]);
        assert!(answers.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn what_was_sent_to_an_unknown_end_and_has_no_place_by_now_may_be_stored() {
        for (sending, is_unknown) in [(Sending::First, false), (Sending::Again, true)] {
            let (.., answers) = written(|_, task| Err(SubmitError::Elsewhere(Box::new(task.clone()), sending))).await;
            let found = |answer: &Result<Accepted, SubmitError>| matches!(answer, Err(SubmitError::Unknown(_)));
            assert!(answers.iter().all(|answer| found(answer) == is_unknown), "{sending:?}");
        }
    }

    /// Its line takes no further job, or no database is known to have its shard.
    #[tokio::test]
    async fn what_was_sent_to_an_unknown_end_and_is_not_sent_again_may_be_stored() {
        let (submitter, lines, mut task, _counter) = with_line().await;
        drop(lines);
        for shard in [0, 200] {
            task.id = fixture::fresh_id_of(ShardId::new(shard));
            for (sending, is_unknown) in [(Sending::First, false), (Sending::Again, true)] {
                let answers = submitter.write_once(vec![task.clone()], "http", 0, sending).await;
                let [Err(error)] = answers.as_slice() else { panic!("{answers:?}") };
                assert_eq!(matches!(error, SubmitError::Unknown(_)), is_unknown, "{shard}, {sending:?}: {error:?}");
            }
        }
    }

    #[test]
    fn a_task_behind_another_is_not_admitted_again_and_not_called_unstored_where_it_may_be_stored() {
        let task = new_task(fixture::fresh_id_of(ShardId::new(0)));
        let rules_changed = Err(SubmitError::RulesChanged(Box::new(task.clone())));
        for first in [rules_changed, Ok(put(PutOutcome::Busy, &task))] {
            let answer = |sending| behind(&first, task.clone(), sending);
            assert!(!matches!(answer(Sending::First), SubmitError::Unknown(_)), "{first:?}");
            assert_eq!(answer(Sending::Again), SubmitError::Unknown(BEHIND_ANOTHER.to_owned()), "{first:?}");
        }
    }

    /// The first job has shared its statement with a task that was admitted by older rules.
    #[tokio::test]
    async fn a_task_is_not_sent_before_an_earlier_job_with_its_key_that_met_other_rules() {
        let (lengths, _, answers) = written(|job, task| match job {
            0 => Err(SubmitError::RulesChanged(Box::new(task.clone()))),
            _ => Ok(put(PutOutcome::Existing, task)),
        })
        .await;
        assert_eq!(lengths, [TASKS_PER_PUT], "the last task is not sent");
        let is_handed_back =
            |answer: &&Result<Accepted, SubmitError>| matches!(answer, Err(SubmitError::RulesChanged(_)));
        assert_eq!(
            answers.iter().filter(is_handed_back).count(),
            TASKS_PER_PUT + 1,
            "all go back to be admitted again"
        );
    }
}
