//! Lets many callers share few writes.

use std::{future::Future, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, oneshot},
    time::Instant,
};

use super::{Effect, Error, Fault};

/// The most jobs of one statement. The rows of 64 tasks with the largest payloads are 16 MB.
const MOST: usize = 64;

/// A statement that fails after so long has met a database that is away or locked, as the next one would.
const LONG: Duration = Duration::from_secs(1);

/// Jobs that one statement does for many callers. While a statement is under way, the jobs that come wait, and the next
/// one does all of them. A caller without company waits for no other.
#[derive(Debug)]
pub(super) struct SharedWrite<Job, Done> {
    waiting: Mutex<Vec<Waiting<Job, Done>>>,
    /// One statement at a time. It must not wait for a lock that a client may hold.
    turn: AsyncMutex<()>,
}

#[derive(Debug)]
struct Waiting<Job, Done> {
    job: Job,
    answer: Answer<Done>,
}

type Answer<Done> = oneshot::Sender<Result<Option<Done>, Error>>;

impl<Job, Done> Default for SharedWrite<Job, Done> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: AsyncMutex::default() }
    }
}

impl<Job, Done> SharedWrite<Job, Done> {
    /// Does `job` in one statement with those of other callers. `statement` returns one answer for each of its jobs, in
    /// their order, with `None` for a job that it did not do.
    ///
    /// Returns the answer to `job`; `Ok(None)` also if the statement failed without effect and another job may be the
    /// reason. An error is one of every job of the statement. Returns `None` if the caller that executed the statement
    /// was dropped before its end.
    pub(super) async fn write<F>(
        &self,
        job: Job,
        statement: impl Fn(Vec<Job>) -> F,
    ) -> Option<Result<Option<Done>, Error>>
    where
        F: Future<Output = Result<Vec<Option<Done>>, Error>>,
    {
        let (answer, mut answered) = oneshot::channel();
        self.waiting.lock().push(Waiting { job, answer });
        loop {
            let turn = tokio::select! {
                biased;
                answer = &mut answered => return answer.ok(),
                turn = self.turn.lock() => turn,
            };
            let (jobs, callers) = self.take();
            let begun = Instant::now();
            let answer = statement(jobs).await;
            if let Err(error) = &answer
                && concerns_all(error)
                && begun.elapsed() >= LONG
            {
                self.refuse(error);
            }
            let answers = apart(answer, callers.len());
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that was dropped meanwhile does not need its answer.
                let _ = caller.send(answer);
            }
            drop(turn);
        }
    }

    /// Refuses the jobs that wait, so that none waits for more than one statement that fails.
    fn refuse(&self, error: &Error) {
        for one in self.waiting.lock().drain(..) {
            let _ = one.answer.send(Err(Error { effect: Effect::None, ..error.clone() }));
        }
    }

    /// The jobs that have waited longest, without those of callers that wait no more.
    fn take(&self) -> (Vec<Job>, Vec<Answer<Done>>) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|one| !one.answer.is_closed());
        let count = waiting.len().min(MOST);
        waiting.drain(..count).map(|one| (one.job, one.answer)).unzip()
    }
}

/// The answer to each of `count` jobs.
fn apart<Done>(answer: Result<Vec<Option<Done>>, Error>, count: usize) -> Vec<Result<Option<Done>, Error>> {
    match answer {
        Ok(done) => done.into_iter().map(Ok).collect(),
        Err(error) if concerns_all(&error) => std::iter::repeat_n(error, count).map(Err).collect(),
        Err(_) => std::iter::repeat_with(|| Ok(None)).take(count).collect(),
    }
}

/// Whether each job alone would have failed too, or may have been done.
fn concerns_all(error: &Error) -> bool {
    let is_away = error.fault() == Fault::Outage && error.sqlstate().is_none();
    error.effect == Effect::Unknown || error.is_contention() || is_away
}

#[cfg(test)]
impl<Job, Done> SharedWrite<Job, Done> {
    /// Keeps every statement waiting until the return value is dropped.
    pub(super) async fn hold(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// The number of jobs that wait for a statement.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, pin::Pin};

    use common::ids::DatabaseName;
    use futures::FutureExt;

    use super::*;
    use crate::store::StoreOp;

    const CALLERS: usize = 3;
    /// A caller goes on, or its task is dropped.
    const STEPS: usize = 2 * CALLERS;
    /// The shortest way to a dropped statement with the job of another: one caller executes, two wait, the first ends,
    /// the second executes, is dropped, and the third learns it.
    const LENGTH: u32 = 7;

    type Shared = SharedWrite<usize, usize>;
    type Answered = Option<Result<Option<usize>, Error>>;
    type Caller<'a> = Pin<Box<dyn Future<Output = Answered> + 'a>>;

    fn failure(effect: Effect, source: Option<sqlx::Error>) -> Error {
        let source = source.map(std::sync::Arc::new);
        Error { database: DatabaseName::new("main"), op: StoreOp::TaskCancel, effect, source }
    }

    /// Does a job in a statement that takes two steps, as one that waits for its answer. Notes what was executed.
    fn call<'a>(shared: &'a Shared, executed: &'a RefCell<Vec<usize>>, job: usize) -> Caller<'a> {
        Box::pin(shared.write(job, async |jobs: Vec<usize>| {
            tokio::task::yield_now().await;
            executed.borrow_mut().extend(&jobs);
            Ok(jobs.into_iter().map(Some).collect())
        }))
    }

    /// Runs the callers in the order that `order` spells, and then until each that was not dropped is answered. Returns
    /// how many learnt that their job may not have been done.
    fn run(mut order: usize) -> usize {
        let (shared, executed) = (Shared::default(), RefCell::default());
        let mut callers: [Option<Caller<'_>>; CALLERS] = [const { None }; CALLERS];
        let (mut has_called, mut answers) = ([false; CALLERS], [const { None }; CALLERS]);
        let mut go_on = |caller: usize, callers: &mut [Option<Caller<'_>>; CALLERS]| {
            if let Some(answer) = callers[caller].as_mut().and_then(FutureExt::now_or_never) {
                callers[caller] = None;
                answers[caller] = Some(answer);
            }
        };
        for _ in 0..LENGTH {
            let (step, caller) = (order % STEPS, order % CALLERS);
            order /= STEPS;
            if step >= CALLERS {
                callers[caller] = None;
                continue;
            }
            if !has_called[caller] {
                has_called[caller] = true;
                callers[caller] = Some(call(&shared, &executed, caller));
            }
            go_on(caller, &mut callers);
        }
        for caller in (0..CALLERS).cycle().take(CALLERS * 2 * CALLERS) {
            go_on(caller, &mut callers);
        }
        assert!(callers.iter().all(Option::is_none), "each is answered, whoever was dropped");
        let mut seen = executed.borrow().clone();
        seen.sort_unstable();
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "no job is done twice: {seen:?}");
        for (caller, answer) in answers.iter().enumerate() {
            match answer {
                Some(Some(Ok(done))) => assert!(*done == Some(caller) && seen.contains(&caller)),
                Some(Some(Err(error))) => panic!("{error}"),
                Some(None) | None => {}
            }
        }
        answers.iter().filter(|answer| matches!(answer, Some(None))).count()
    }

    #[test]
    fn each_caller_is_answered_and_no_job_is_done_twice_in_every_order_of_calls_and_drops() {
        let in_doubt: usize = (0..STEPS.pow(LENGTH)).map(run).sum();
        assert!(in_doubt > 0, "some had their job in the statement of a caller that was dropped");
    }

    #[test]
    fn jobs_that_come_while_a_statement_is_under_way_share_the_next_up_to_a_bound() {
        let (shared, sizes) = (Shared::default(), RefCell::new(Vec::new()));
        let call = |job| {
            shared.write(job, async |jobs: Vec<usize>| {
                sizes.borrow_mut().push(jobs.len());
                tokio::task::yield_now().await;
                Ok(jobs.into_iter().map(Some).collect())
            })
        };
        let mut callers: Vec<_> = (0..MOST + 2).map(|job| Box::pin(call(job))).collect();
        let mut answered = 0;
        while answered < MOST + 2 {
            let left = callers.len();
            callers.retain_mut(|caller| caller.now_or_never().is_none());
            answered += left - callers.len();
        }
        assert_eq!(*sizes.borrow(), [1, MOST, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_waited_for_a_statement_without_an_answer_are_refused_and_were_not_done() {
        let shared = Shared::default();
        let call = |job| {
            shared.write(job, async |_: Vec<usize>| {
                tokio::time::sleep(LONG).await;
                Err(failure(Effect::Unknown, None))
            })
        };
        let (first, second) = tokio::join!(call(0), call(1));
        let effect = |answered: Answered| answered.unwrap().unwrap_err().effect;
        assert_eq!((effect(first), effect(second)), (Effect::Unknown, Effect::None));
    }

    #[test]
    fn a_failure_concerns_all_unless_one_job_may_be_the_reason() {
        let shared = Shared::default();
        let outcome = |error: Error| {
            let failing = async |_: Vec<usize>| Err(error.clone());
            shared.write(1, failing).now_or_never().expect("it waits for nothing").expect("it was not dropped")
        };
        let unencodable = || Some(sqlx::Error::Encode("no".into()));
        assert!(matches!(outcome(failure(Effect::None, unencodable())), Ok(None)), "the job goes on alone");
        assert!(outcome(failure(Effect::None, Some(sqlx::Error::PoolTimedOut))).is_err(), "the database is away");
        let unknown = outcome(failure(Effect::Unknown, unencodable())).expect_err("it may have been done");
        assert_eq!(unknown.effect, Effect::Unknown);
    }
}
