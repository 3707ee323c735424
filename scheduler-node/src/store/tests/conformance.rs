//! The state machine against the SQL: lists of random statements are put to tasks, and after each one the row is in the state that
//! `transition` says, or as it was where `transition` refuses.
//!
//! Only the state and the attempt decide here: every task is due, its owner holds the fence, and it expires when it is told to. What
//! due times, fences and expiry decide is in the tests beside this one.

mod statement;

use std::collections::BTreeMap;

use common::{
    ids::{ShardId, TaskId},
    task::{
        TaskState,
        state::{CancelOutcome, Event, transition},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use sqlx::PgPool;

use self::statement::{Statement, Subject};
use super::{fixture, fixture::TestDatabase};

/// Lists that run beside one another, each on a shard of its own.
const LANES: u16 = 16;
const LISTS_OF_A_LANE: u64 = 12;
const STEPS: usize = 14;

/// No statement writes these yet.
const NOT_WRITTEN: [Event; 3] = [Event::Unblock, Event::Stop, Event::Supersede];

/// How often a statement has led on, by the state it was put to.
type LedOn = BTreeMap<(Statement, TaskState), usize>;

/// The task as `transition` has it.
#[derive(Clone, Copy, Debug)]
struct Model {
    state: TaskState,
    attempt: i32,
    /// A claim or a rescue has returned it, so it may have been published.
    handed_out: bool,
}

impl Model {
    fn after(self, statement: Statement, named: i32) -> Option<TaskState> {
        let event = statement.event()?;
        let applies = statement.is_meant_for(self.state) && (!statement.names_an_attempt() || named == self.attempt);
        if applies { transition(self.state, event).ok() } else { None }
    }

    /// Mostly a statement that leads on, more often than not to where others follow.
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

/// A row of either table.
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

/// One list on one task.
async fn walk(test: &TestDatabase, shard: ShardId, seed: u64, led_on: &mut LedOn) {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut subject = Subject::new(test, shard).await;
    let mut model = Model { state: TaskState::Scheduled, attempt: 0, handed_out: false };
    if dice.random_bool(0.15) {
        model.state = TaskState::Waiting;
        subject.wait().await;
    }
    let mut story = format!("seed {seed}: {}", model.state);
    for _ in 0..STEPS {
        let statement = model.pick(&mut dice);
        let named = match dice.random_range(0..10) {
            0 => model.attempt - 1,
            1 => model.attempt + 1,
            _ => model.attempt,
        };
        model = step(&mut subject, model, statement, named.max(1), &mut story, led_on).await;
    }
}

/// Puts one statement to the task, and compares.
async fn step(
    subject: &mut Subject<'_>,
    before: Model,
    statement: Statement,
    named: i32,
    story: &mut String,
    led_on: &mut LedOn,
) -> Model {
    let after = before.after(statement, named);
    let answer = subject.put(statement, named).await;
    let found = find(&subject.test.pool, subject.id).await;
    story.push_str(&format!(" > {statement:?}({named}) {}", after.unwrap_or(before.state)));
    let said = format!("it answered {answer:?} and left {found:?}\n{story}");

    assert_eq!(found.len(), 1, "in exactly one of the two tables: {said}");
    let row = &found[0];
    assert_eq!(row.state, after.unwrap_or(before.state), "the state: {said}");
    assert_eq!(row.archived, row.state.is_final(), "what is final is archived: {said}");
    assert!(row.attempt >= before.attempt, "an attempt never goes back: {said}");
    let claimed = after.is_some() && statement.event() == Some(Event::Claim);
    assert_eq!(row.attempt, before.attempt + i32::from(claimed), "a claim and nothing else counts an attempt: {said}");
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
    if after.is_some() {
        *led_on.entry((statement, before.state)).or_default() += 1;
    }
    Model { state: row.state, attempt: row.attempt, handed_out }
}

/// Every state a statement leads on from.
fn ways() -> impl Iterator<Item = (Statement, TaskState)> {
    let from = |statement: Statement| TaskState::ALL.into_iter().map(move |state| (statement, state));
    Statement::ALL.into_iter().flat_map(from).filter(|(statement, state)| {
        let model = Model { state: *state, attempt: 1, handed_out: true };
        model.after(*statement, 1).is_some()
    })
}

#[test]
fn every_transition_has_a_statement_that_writes_it() {
    for state in TaskState::ALL {
        for event in Event::ALL.into_iter().filter(|event| !NOT_WRITTEN.contains(event)) {
            let written = ways().any(|(statement, from)| from == state && statement.event() == Some(event));
            assert_eq!(written, transition(state, event).is_ok(), "{event} of a {state} task");
        }
    }
}

#[tokio::test]
async fn whatever_happens_to_a_task_its_row_is_where_the_state_machine_says() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let test = fixture::database().await;
    let lane = async |lane: u16| {
        let mut led_on = LedOn::new();
        for list in 0..LISTS_OF_A_LANE {
            let seed = seed.wrapping_add(u64::from(lane) * LISTS_OF_A_LANE + list);
            walk(&test, ShardId::new(lane), seed, &mut led_on).await;
        }
        led_on
    };
    let mut led_on = LedOn::new();
    for lane in futures::future::join_all((0..LANES).map(lane)).await {
        for (way, times) in lane {
            *led_on.entry(way).or_default() += times;
        }
    }
    let untried: Vec<_> = ways().filter(|way| !led_on.contains_key(way)).collect();
    assert!(untried.is_empty(), "these were never tried: {untried:?}");
}
