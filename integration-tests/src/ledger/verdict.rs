//! The judge's findings, for people and for tests.

use std::fmt;

/// How many examples of each violation are kept. The first few explain it; the count gives the rest.
const EXAMPLES: usize = 5;

/// The violations of one question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub count: usize,
    pub examples: Vec<String>,
}

impl Findings {
    pub(super) fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
    }
}

/// Milliseconds from due time to arrival, by the consumer's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    pub count: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return f.write_str("nothing measured");
        }
        write!(
            f,
            "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms ({} tasks)",
            self.p50_ms, self.p99_ms, self.max_ms, self.count
        )
    }
}

/// The judge's answer.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    pub submitted: usize,
    pub accepted: usize,
    pub refused: usize,
    pub unknown: usize,
    pub cancelled: usize,
    /// Tasks that have arrived at least once.
    pub delivered: usize,
    pub messages: usize,
    /// Marked copies near a fault, which are allowed.
    pub marked_copies: usize,
    /// Messages that RabbitMQ itself handed out again: not Duetime's copies.
    pub broker_copies: usize,

    /// Accepted, never arrived.
    pub lost: Findings,
    /// Arrived without a submission, or not as submitted.
    pub unexpected: Findings,
    /// Arrived before its due time.
    pub early: Findings,
    /// Arrived long after its due time, of which a long part had no fault.
    pub late: Findings,
    /// Arrived although a cancel was acknowledged as final, or a new attempt although none was to come.
    pub after_cancel: Findings,
    /// An unmarked copy.
    pub unmarked: Findings,
    /// A copy without a fault near it.
    pub outside: Findings,
    /// Attempts with a gap, out of order, without a cause, or more than allowed.
    pub attempts: Findings,
    /// Arrived out of the required order.
    pub order: Findings,
    /// Two owners of one shard in one epoch.
    pub owners: Findings,
    /// More messages of a lane in work than its limit allows.
    pub limits: Findings,
    /// A fire time without a task, or with two; a schedule that begins late or ends early.
    pub fires: Findings,
    /// Rows that are unfinished at the end, or that disagree with answers and arrivals.
    pub tables: Findings,
    /// What the run itself saw, as a node that panicked, and a load that was refused while nothing was broken.
    pub others: Findings,

    pub lateness: Lateness,
}

impl Verdict {
    pub fn holds(&self) -> bool {
        self.questions().iter().all(|(_, findings)| findings.count == 0)
    }

    /// Ends a scenario.
    ///
    /// # Panics
    /// With the whole verdict, when it has any violation.
    pub fn assert_holds(&self) {
        assert!(self.holds(), "{self}");
    }

    /// Each question and its violations.
    pub fn questions(&self) -> [(&'static str, &Findings); 14] {
        [
            ("lost", &self.lost),
            ("unexpected", &self.unexpected),
            ("early", &self.early),
            ("late", &self.late),
            ("after a cancel", &self.after_cancel),
            ("unmarked copies", &self.unmarked),
            ("copies without a fault", &self.outside),
            ("attempts", &self.attempts),
            ("order", &self.order),
            ("two owners", &self.owners),
            ("limits exceeded", &self.limits),
            ("fire times", &self.fires),
            ("rows at the end", &self.tables),
            ("other findings", &self.others),
        ]
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "verdict: {}", if self.holds() { "holds" } else { "DOES NOT HOLD" })?;
        writeln!(
            f,
            "  {:<24}{} submitted: {} accepted, {} refused, {} unknown; {} cancelled",
            "tasks", self.submitted, self.accepted, self.refused, self.unknown, self.cancelled
        )?;
        writeln!(
            f,
            "  {:<24}{} tasks in {} messages ({} marked copies, {} handed out again by the broker)",
            "delivered", self.delivered, self.messages, self.marked_copies, self.broker_copies
        )?;
        for (name, findings) in self.questions() {
            writeln!(f, "  {name:<24}{}", findings.count)?;
            for example in &findings.examples {
                writeln!(f, "    - {example}")?;
            }
            if findings.count > findings.examples.len() {
                writeln!(f, "    - and {} more", findings.count - findings.examples.len())?;
            }
        }
        write!(f, "  {:<24}{}", "lateness", self.lateness)
    }
}
