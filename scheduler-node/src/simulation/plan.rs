//! What happens in one run: the tasks, their cancels and changes, and the faults, each with its time.

use std::{fmt, time::Duration};

use super::dice::Dice;

/// The nodes of a run.
pub const NODES: usize = 2;

/// The shards of a run.
pub const SHARDS: u16 = 3;

/// The queues of a run; each has a rule of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A task is done when its message is confirmed.
    Confirm,
    /// A task is done when its consumer reports.
    Report,
    /// As `Report`, one task of a partition key after the other.
    Ordered,
    /// As `Report`, two tasks at a time.
    Limited,
}

impl Rule {
    pub const ALL: [Self; 4] = [Self::Confirm, Self::Report, Self::Ordered, Self::Limited];

    pub const fn queue(self) -> &'static str {
        match self {
            Self::Confirm => "confirm",
            Self::Report => "report",
            Self::Ordered => "ordered",
            Self::Limited => "limited",
        }
    }
}

/// A task, and what its client does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedTask {
    pub number: u64,
    pub rule: Rule,
    pub shard: u16,
    pub submit_at_ms: u64,
    /// From the submission on.
    pub due_in_ms: u64,
    pub expires: bool,
    pub cancel_at_ms: Option<u64>,
    pub move_at_ms: Option<u64>,
}

/// A fault, from `at_ms` for `for_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at_ms: u64,
    pub for_ms: u64,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The database refuses the node's statements.
    Refused { node: usize },
    /// Answers to the node's statements are lost. Some statements run, some do not, and some run late.
    AnswersLost { node: usize },
    /// Statements take up to two seconds.
    Slow,
    /// Nudges do not arrive.
    NudgesLost,
    /// The database's clock is set forward, at once.
    ClockForward { by_ms: u64 },
    /// The database's clock is set back, at once.
    ClockBack { by_ms: u64 },
    /// The broker is away.
    BrokerAway,
    /// Messages arrive late, some after their publisher has given up.
    PublishesLate,
    /// Messages arrive, and their confirms do not.
    ConfirmsLost,
    /// Confirms come after seconds.
    ConfirmsLate,
    /// The broker refuses messages, although some of several queues have taken them.
    Nacked,
    /// No queue is bound.
    Returned,
    /// Another node acquires a shard, and its owner does not know.
    TakenOver { shard: u16 },
    /// The owner gives a shard up in order.
    HandedOver { shard: u16 },
    /// The node's process stands still, and goes on afterwards.
    Frozen { node: usize },
    /// The node's process ends, and starts anew afterwards.
    Killed { node: usize },
    /// The database's server is silent until another one takes its place. Then statements under way end without an
    /// answer, and the nodes forget the clock.
    Promoted,
    /// The owner of a shard stops its claims for a cut and gives the cut up, again and again.
    CutGivenUp { shard: u16 },
}

impl Kind {
    fn roll(dice: &Dice) -> Self {
        let node = dice.index(NODES);
        let shard = dice.one_of(&[0, 1, 2]);
        match dice.index(18) {
            0 => Self::Refused { node },
            1 => Self::AnswersLost { node },
            2 => Self::Slow,
            3 => Self::NudgesLost,
            4 => Self::ClockForward { by_ms: dice.between(1, 3_000) },
            5 => Self::BrokerAway,
            6 => Self::PublishesLate,
            7 => Self::ConfirmsLost,
            8 => Self::ConfirmsLate,
            9 => Self::Nacked,
            10 => Self::Returned,
            11 => Self::TakenOver { shard },
            12 => Self::HandedOver { shard },
            13 => Self::Frozen { node },
            14 => Self::Killed { node },
            15 => Self::Promoted,
            16 => Self::CutGivenUp { shard },
            _ => Self::ClockBack { by_ms: dice.between(1, 3_000) },
        }
    }
}

/// The course of one run. Whatever it leaves open follows from the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub tasks: Vec<PlannedTask>,
    pub faults: Vec<Fault>,
}

/// The time within which the tasks of a run are submitted and its faults begin.
const COURSE_MS: u64 = 12_000;

impl Plan {
    pub fn of(seed: u64) -> Self {
        let dice = Dice::new(seed);
        let tasks = (0..dice.between(3, 10)).map(|number| PlannedTask::roll(&dice, number)).collect();
        // Every eighth run has no fault, and so no copies.
        let faults = if seed.is_multiple_of(8) { 0 } else { dice.between(1, 6) };
        let fault =
            |_| Fault { at_ms: dice.between(0, COURSE_MS), for_ms: dice.between(200, 9_000), kind: Kind::roll(&dice) };
        Self { seed, tasks, faults: (0..faults).map(fault).collect() }
    }

    /// The moment by which everything has begun and every fault is over.
    pub fn healed_at(&self) -> Duration {
        let faults = self.faults.iter().map(|fault| fault.at_ms + fault.for_ms);
        let tasks = self.tasks.iter().map(|task| task.submit_at_ms + task.due_in_ms);
        Duration::from_millis(faults.chain(tasks).max().unwrap_or(0).max(COURSE_MS))
    }
}

impl PlannedTask {
    fn roll(dice: &Dice, number: u64) -> Self {
        let rule = dice.one_of(&Rule::ALL);
        let submit_at_ms = dice.between(0, COURSE_MS);
        let due_in_ms = match dice.between(0, 99) {
            0..30 => 0,
            30..95 => dice.between(1, 6_000),
            // Beyond what a node reads ahead.
            _ => dice.between(10_000, 14_000),
        };
        let later = |percent| dice.is_percent(percent).then(|| submit_at_ms + dice.between(1, due_in_ms + 3_000));
        let (cancel_at_ms, move_at_ms) = (later(15), later(10));
        // The tasks of a key, and those of a limited queue, live on one shard.
        let shard = if matches!(rule, Rule::Confirm | Rule::Report) { dice.one_of(&[0, 1, 2]) } else { 1 };
        let expires = dice.is_percent(10);
        Self { number, rule, shard, submit_at_ms, due_in_ms, expires, cancel_at_ms, move_at_ms }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        for task in &self.tasks {
            writeln!(f, "  {task:?}")?;
        }
        for fault in &self.faults {
            writeln!(f, "  {fault:?}")?;
        }
        Ok(())
    }
}
