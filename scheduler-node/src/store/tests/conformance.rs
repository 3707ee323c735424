//! Checks the SQL against the state machine. The tests put statements to tasks in every state and in random order.
//! After each statement the row is in the state that `transition` gives, or unchanged if `transition` refuses.
//!
//! Only the state and the attempt decide here: every task is due, its owner holds the fence, and it expires only
//! when a statement is to expire it. The other tests of this directory cover due times, fences and expiry. A
//! failure names the seed of its list: `SEED=<seed>` runs that list again, as the first one.

mod statement;

use std::collections::BTreeSet;

use common::{
    ids::{ShardId, TaskId},
    task::{
        TaskState,
        oracle::{Event, transition},
        state::CancelOutcome,
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use sqlx::PgPool;

use self::statement::{Statement, Subject};
use super::{fixture, fixture::TestDatabase};

/// The number of lanes. Lanes run in parallel, each on a shard of its own, and put one list after the other.
const LANES: u16 = 16;
const LISTS_OF_A_LANE: u64 = 10;
const STEPS: usize = 12;

/// Ways to every state that can be reached: the first state, and the statements that lead on.
const WAYS: [(TaskState, &[Statement]); 17] = {
    use Statement as S;
    let (scheduled, waiting) = (TaskState::Scheduled, TaskState::Waiting);
    [
        (waiting, &[]),
        (waiting, &[S::Cancel]),
        (scheduled, &[]),
        (scheduled, &[S::ClaimInClosedLane]),
        (scheduled, &[S::Claim]),
        (scheduled, &[S::Claim, S::Deliver]),
        (scheduled, &[S::Claim, S::Extend]),
        (scheduled, &[S::Claim, S::Retry]),
        (scheduled, &[S::Claim, S::Retry, S::ClaimInClosedLane]),
        (scheduled, &[S::Claim, S::Retry, S::Claim]),
        (scheduled, &[S::Claim, S::Retry, S::Cancel]),
        (scheduled, &[S::Claim, S::FinishByConfirm]),
        (scheduled, &[S::Claim, S::FinishAsDead]),
        (scheduled, &[S::Claim, S::FinishAsDead, S::Revive]),
        (scheduled, &[S::Cancel]),
        (scheduled, &[S::Supersede]),
        (scheduled, &[S::Expire]),
    ]
};

/// The task as `transition` predicts it.
#[derive(Clone, Copy, Debug)]
struct Model {
    state: TaskState,
    attempt: i32,
    /// The attempts of former budgets.
    base: i32,
    /// Whether a claim or a rescue has returned the task, so that it may have been published.
    handed_out: bool,
}

impl Model {
    fn after(self, statement: Statement, named: i32) -> Option<TaskState> {
        let event = statement.event()?;
        let is_of_it = named == self.attempt && named > self.base;
        let applies = statement.is_meant_for(self.state) && (!statement.names_an_attempt() || is_of_it);
        if applies { transition(self.state, event).ok() } else { None }
    }

    /// Picks a statement, mostly one that changes the state. It prefers statements that lead to a
    /// state from which others lead on.
    fn pick(self, dice: &mut StdRng) -> Statement {
        let leads_on = |s: &Statement| self.after(*s, self.attempt.max(1)).is_some();
        let on: Vec<Statement> = Statement::ALL.into_iter().filter(leads_on).collect();
        if on.is_empty() || dice.random_bool(0.3) {
            return *Statement::ALL.choose(dice).expect("there are some");
        }
        let first = *on.choose(dice).expect("it is not empty");
        let ends = self.after(first, self.attempt).is_some_and(TaskState::is_final);
        if ends { *on.choose(dice).expect("it is not empty") } else { first }
    }
}

/// A row of the live table or of the archive.
#[derive(Debug)]
struct Found {
    archived: bool,
    state: TaskState,
    attempt: i32,
}

async fn find(pool: &PgPool, id: TaskId) -> Vec<Found> {
    let rows: Vec<(bool, String, i32)> = sqlx::query_as(
        "SELECT false, state::text, attempt FROM duetime.task WHERE id = $1
         UNION ALL SELECT true, state::text, attempt FROM duetime.archive WHERE id = $1",
    )
    .bind(id.uuid())
    .fetch_all(pool)
    .await
    .unwrap();
    rows.into_iter()
        .map(|(archived, state, attempt)| Found { archived, state: TaskState::parse(&state).unwrap(), attempt })
        .collect()
}

/// A task, its predicted state, and the statements put to it so far.
struct Trial<'a> {
    subject: Subject<'a>,
    model: Model,
    story: String,
}

impl<'a> Trial<'a> {
    async fn new(test: &'a TestDatabase, shard: ShardId, first: TaskState, title: &str) -> Self {
        let subject = Subject::new(test, shard).await;
        if first == TaskState::Waiting {
            subject.wait().await;
        }
        let model = Model { state: first, attempt: 0, base: 0, handed_out: false };
        Self { subject, model, story: format!("{title}: {first}") }
    }

    /// Puts one statement to the task, and compares the row and the answer with the prediction.
    async fn put(&mut self, statement: Statement, named: i32) {
        let before = self.model;
        let after = before.after(statement, named);
        let answer = self.subject.put(statement, named).await;
        let found = find(&self.subject.test.pool, self.subject.id).await;
        self.story.push_str(&format!(" > {statement:?}({named}) {}", after.unwrap_or(before.state)));
        let said = format!("it answered {answer:?} and left {found:?}\n{}", self.story);

        assert_eq!(found.len(), 1, "in exactly one of the two tables: {said}");
        let row = &found[0];
        assert_eq!(row.state, after.unwrap_or(before.state), "the state: {said}");
        assert_eq!(row.archived, row.state.is_final(), "what is final is archived: {said}");
        assert!(row.attempt >= before.attempt, "an attempt never goes back: {said}");
        let claimed = i32::from(after.is_some() && statement.event() == Some(Event::Claim));
        assert_eq!(row.attempt, before.attempt + claimed, "a claim and nothing else counts an attempt: {said}");
        if let Some(done) = answer.done {
            assert_eq!(done, after.is_some(), "it says what it did: {said}");
        }
        if let Some(attempt) = answer.handed_out {
            assert_eq!(attempt, row.attempt, "the attempt that is published is the row's: {said}");
        }
        let handed_out = before.handed_out || answer.handed_out.is_some();
        assert_eq!(handed_out, row.attempt > 0, "what may have been published shows in the attempt: {said}");
        if let Some(promised) = answer.promised {
            let kept = if handed_out { CancelOutcome::NoFurtherAttempts } else { CancelOutcome::Cancelled };
            assert_eq!(promised, kept, "a cancel promises no more than it can keep: {said}");
        }
        let is_revived = after.is_some() && statement.event() == Some(Event::Revive);
        let base = if is_revived { row.attempt } else { before.base };
        self.model = Model { state: row.state, attempt: row.attempt, base, handed_out };
    }
}

/// Puts every statement to a task that has gone this way. A statement that names an attempt is put for the task's
/// own attempt, an earlier and a later one.
async fn meet_all(test: &TestDatabase, shard: ShardId, first: TaskState, way: &[Statement]) -> TaskState {
    let mut reached = first;
    for statement in Statement::ALL {
        let others: &[i32] = if statement.names_an_attempt() { &[0, -1, 1] } else { &[0] };
        for other in others {
            let mut trial = Trial::new(test, shard, first, "by hand").await;
            for part in way {
                trial.put(*part, trial.model.attempt.max(1)).await;
            }
            reached = trial.model.state;
            trial.put(statement, (trial.model.attempt + other).max(1)).await;
        }
    }
    reached
}

async fn walk_at_random(test: &TestDatabase, shard: ShardId, seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let first = if dice.random_bool(0.15) { TaskState::Waiting } else { TaskState::Scheduled };
    let mut trial = Trial::new(test, shard, first, &format!("seed {seed}")).await;
    for _ in 0..STEPS {
        let statement = trial.model.pick(&mut dice);
        let other = [0, 0, 0, 0, 0, 0, 0, 0, -1, 1].choose(&mut dice).expect("there are some");
        trial.put(statement, (trial.model.attempt + other).max(1)).await;
    }
}

#[test]
fn every_transition_has_a_statement_that_writes_it() {
    for state in TaskState::ALL {
        let model = Model { state, attempt: 1, base: 0, handed_out: true };
        for event in Event::ALL {
            let writes = |s: &Statement| s.event() == Some(event) && model.after(*s, 1).is_some();
            let written = Statement::ALL.iter().any(writes);
            assert_eq!(written, transition(state, event).is_ok(), "{event} of a {state} task");
        }
    }
}

#[tokio::test]
async fn every_statement_does_to_every_state_what_the_state_machine_says() {
    let test = fixture::database().await;
    let shards = (0..).map(ShardId::new);
    let meetings = WAYS.iter().zip(shards).map(|((first, way), shard)| meet_all(&test, shard, *first, way));
    let reached: BTreeSet<TaskState> = futures::future::join_all(meetings).await.into_iter().collect();
    let missed: Vec<_> = TaskState::ALL.into_iter().filter(|state| !reached.contains(state)).collect();
    assert!(missed.is_empty(), "no way leads to {missed:?}");
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "a failure is run again with it")]
async fn whatever_happens_to_a_task_its_row_is_where_the_state_machine_says() {
    let seed: u64 =
        std::env::var("SEED").ok().map_or_else(rand::random, |seed| seed.parse().expect("a seed that was printed"));
    println!("seed {seed}");
    let test = fixture::database().await;
    let lane = async |lane: u16| {
        for list in 0..LISTS_OF_A_LANE {
            let seed = seed.wrapping_add(u64::from(lane) * LISTS_OF_A_LANE + list);
            walk_at_random(&test, ShardId::new(lane), seed).await;
        }
    };
    futures::future::join_all((0..LANES).map(lane)).await;
}
