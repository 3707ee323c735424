//! Sets aside rows and messages that the database refuses, with the reason: counted, logged, kept in
//! `duetime.quarantine` and named by `/readyz`.
//!
//! Their neighbours go on. A task whose own row cannot be written is neither published again nor forgotten: see
//! `task_set_aside.sql`.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::{Attempt, DatabaseName, TaskId},
    wire::screen::TroubleKind,
};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use tracing::field::display;

use super::{failures::Failures, retry::until_done};
use crate::{
    clock,
    store::{Error, Statements, quarantine::Quarantined},
};

/// `/readyz` names what was set aside during this time, which is as far back as the alert looks.
const SHOWN_FOR: Duration = Duration::from_secs(900);

/// The longest reason that `/readyz` shows.
const REASON_CHARS: usize = 200;

/// The longest reason in the log: a reason may repeat what a sender wrote.
const LOGGED_CHARS: usize = 1_000;

/// The most attempts that are remembered as kept: more than the reports and confirms that a node holds while their
/// rows are locked. Beyond it all are forgotten, and some are kept twice.
const OPEN_MOST: usize = 10_000;

common::labelled! {
    /// The kind of write, message or row that was set aside.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        /// A new task over HTTP or AMQP. Its sender gets the answer.
        Submission = "submission",
        /// A row of an inbox. It stays there, with the reason.
        Inbox = "inbox",
        /// The claim of a due task.
        Claim = "claim",
        /// The rescue of a claimed task.
        Rescue = "rescue",
        /// The broker's confirm of a task.
        Confirm = "confirm",
        /// A consumer's report, a rejection, or the end of an attempt whose message reaches no consumer.
        Report = "report",
        /// A deadline that has passed.
        Deadline = "deadline",
        /// A task that waits for others.
        Release = "release",
        /// A task that expired before it was claimed.
        Expiry = "expiry",
        /// The decision about a schedule's fire times.
        Schedule = "schedule",
        /// The task of a fire time.
        Fire = "fire",
        /// A note of the audit.
        Audit = "audit",
        /// The name of a queue.
        Queue = "queue",
        /// An entry that even the quarantine refuses.
        Quarantine = "quarantine",
        /// A task that died because no queue is bound for its message, or the broker refuses it. Its own row has the
        /// reason.
        Unroutable = "unroutable",
        /// A message that no AMQP client can parse.
        UnreadableMessage = "unreadable_message",
        /// A message whose body is larger than anything Duetime takes.
        LargeMessage = "large_message",
    }
}

impl From<TroubleKind> for Kind {
    fn from(kind: TroubleKind) -> Self {
        match kind {
            TroubleKind::Unreadable => Self::UnreadableMessage,
            TroubleKind::TooLarge => Self::LargeMessage,
        }
    }
}

/// Counts what was set aside, and remembers the recent reasons.
#[derive(Clone, Debug)]
pub struct SetAside {
    counts: IntCounterVec,
    recent: Arc<Mutex<BTreeMap<Kind, Recent>>>,
    /// Of each kind the log has the first: a sender may cause thousands.
    said: Arc<BTreeMap<Kind, Failures>>,
    /// The attempts that are kept in the quarantine, but whose rows are not set aside yet.
    open: Arc<Mutex<HashSet<(TaskId, Attempt)>>>,
}

#[derive(Clone, Debug)]
struct Recent {
    count: u64,
    at: Instant,
    last: String,
}

impl Recent {
    fn is_shown(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < SHOWN_FOR
    }
}

/// A message or row as the quarantine keeps it.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The name of what it concerns, such as a task's id; `<task id>:<attempt>` when it concerns one attempt.
    pub name: Option<String>,
    /// The task and the attempt that it concerns, for the log.
    pub task: Option<TaskId>,
    pub attempt: Option<Attempt>,
    pub headers: serde_json::Value,
    pub body: Vec<u8>,
}

impl Kept {
    pub fn task(id: TaskId) -> Self {
        Self { name: Some(id.to_string()), task: Some(id), ..Self::default() }
    }

    pub fn attempt(id: TaskId, attempt: Attempt) -> Self {
        let name = Some(format!("{id}:{attempt}"));
        Self { name, task: Some(id), attempt: Some(attempt), ..Self::default() }
    }
}

impl Default for SetAside {
    fn default() -> Self {
        let counts = IntCounterVec::new(
            Opts::new("duetime_set_aside_total", "rows that a database refused, set aside with the reason, by kind"),
            &["kind"],
        );
        let counts = counts.expect("the name and the label are valid");
        for kind in Kind::ALL {
            let _ = counts.with_label_values(&[kind.text()]);
        }
        let said = Kind::ALL.into_iter().map(|kind| (kind, Failures::default())).collect();
        Self { counts, recent: Arc::default(), said: Arc::new(said), open: Arc::default() }
    }
}

impl SetAside {
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let set_aside = Self::default();
        registry.register(Box::new(set_aside.counts.clone()))?;
        Ok(set_aside)
    }

    /// Counts something that is logged and shown elsewhere.
    pub fn counted(&self, kind: Kind) {
        self.counts.with_label_values(&[kind.text()]).inc();
    }

    /// Counts it, logs it and shows it on `/readyz`.
    pub fn note(&self, kind: Kind, name: &str, reason: &str) {
        self.noted(kind, None, &Kept { name: Some(name.to_owned()), ..Kept::default() }, reason);
    }

    /// Counts, logs and shows a task that the database refuses. Its sender or the inbox keeps it.
    pub fn note_task(&self, kind: Kind, database: &DatabaseName, id: TaskId, reason: &str) {
        self.noted(kind, Some(database), &Kept::task(id), reason);
    }

    fn noted(&self, kind: Kind, database: Option<&DatabaseName>, kept: &Kept, reason: &str) {
        let name = kept.name.as_deref().unwrap_or_default();
        let (database, task, attempt) = (database.map(display), kept.task.map(display), kept.attempt.map(display));
        let error = for_log(reason);
        macro_rules! say {
            ($level:ident, $text:literal) => {
                tracing::$level!(kind = kind.text(), database, task, attempt, name, error, $text)
            };
        }
        if self.said[&kind].begin() {
            say!(error, "set aside, and maybe more of this kind; the rest continues");
        } else {
            say!(debug, "set aside; the rest continues");
        }
        self.counted(kind);
        let last = format!("{name}: {reason}").chars().take(REASON_CHARS).collect();
        let (mut recent, now) = (self.recent.lock(), clock::instant());
        let count = recent.get(&kind).filter(|recent| recent.is_shown(now)).map_or(0, |recent| recent.count);
        recent.insert(kind, Recent { count: count + 1, at: now, last });
    }

    /// Counts, logs and shows it, and keeps it in the quarantine of `database`. Returns when it is durable, or `false`
    /// if the database refuses that too.
    pub async fn keep(&self, database: &impl Statements, kind: Kind, kept: Kept, reason: &str) -> bool {
        self.noted(kind, Some(database.name()), &kept, reason);
        let Kept { name, headers, body, .. } = kept;
        self.quarantine(database, vec![Quarantined::new(kind.text(), reason, name.as_deref(), headers, body)]).await
    }

    /// Keeps an attempt whose row is to be set aside. While that fails, the caller comes again and again, but the
    /// attempt is kept once. See [`Self::close`].
    pub async fn keep_attempt(&self, database: &impl Statements, kind: Kind, attempt: (TaskId, Attempt), reason: &str) {
        if self.open.lock().contains(&attempt) {
            return;
        }
        if !self.keep(database, kind, Kept::attempt(attempt.0, attempt.1), reason).await {
            return;
        }
        let mut open = self.open.lock();
        if open.len() >= OPEN_MOST {
            open.clear();
        }
        open.insert(attempt);
    }

    /// Forgets an attempt, because its row is set aside or refuses that too.
    pub fn close(&self, attempt: (TaskId, Attempt)) {
        self.open.lock().remove(&attempt);
    }

    /// Keeps messages in the quarantine of `database`, each in a form that the database accepts. Returns whether there
    /// is one of each.
    pub async fn quarantine(&self, database: &impl Statements, messages: Vec<Quarantined>) -> bool {
        let (mut left, mut are_kept) = (messages, true);
        while !left.is_empty() {
            let written = until_done("quarantined messages", &left, |part| database.quarantine_add(part)).await;
            for refused in &written.refused {
                self.note(Kind::Quarantine, "", &refused.error.reason());
            }
            let reduced: Vec<_> = written.refused.iter().filter_map(|refused| refused.item.clone().reduced()).collect();
            are_kept &= reduced.len() == written.refused.len();
            left = reduced;
        }
        are_kept
    }

    #[cfg(test)]
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.with_label_values(&[kind.text()]).get()
    }

    /// The reasons that `/readyz` shows.
    pub fn reasons(&self) -> Vec<String> {
        self.shown(|kind, Recent { count, last, .. }| {
            format!("{count} set aside ({}), most recently {last}", kind.text())
        })
    }

    /// Like [`Self::reasons`], for those who may not know every queue.
    pub fn reasons_without_names(&self) -> Vec<String> {
        self.shown(|kind, Recent { count, .. }| format!("{count} set aside ({})", kind.text()))
    }

    fn shown(&self, reason: impl Fn(Kind, &Recent) -> String) -> Vec<String> {
        let (recent, now) = (self.recent.lock(), clock::instant());
        let shown = recent.iter().filter(|(_, recent)| recent.is_shown(now));
        shown.map(|(kind, recent)| reason(*kind, recent)).collect()
    }
}

/// The part of a reason that the log has.
pub fn for_log(reason: &str) -> &str {
    reason.char_indices().nth(LOGGED_CHARS).map_or(reason, |(end, _)| &reason[..end])
}

/// The reason of a refusal, for a person.
pub fn why(error: &Error) -> String {
    format!("{}: {}", error.op, error.reason())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::working_set::failures::tests::Log;

    /// Another alert has a page of its own for what is unroutable.
    #[test]
    fn the_runbook_explains_every_kind_that_its_alert_counts() {
        let page = include_str!("../../../docs/runbooks/DuetimeSetAside.md");
        let table = page.split_once("| kind | what was refused |").expect("the table of kinds").1;
        let table = table.split_once("\n\n").expect("its end").0;
        let cells = table.lines().filter_map(|line| line.split('|').nth(1));
        let mut listed: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        let mut counted: Vec<&str> =
            Kind::ALL.into_iter().filter(|kind| *kind != Kind::Unroutable).map(Kind::text).collect();
        listed.sort_unstable();
        counted.sort_unstable();
        assert_eq!(listed, counted);
    }

    #[test]
    fn the_log_names_the_database_the_task_and_the_attempt() {
        let (log, id) = (Log::keep(), TaskId::from_uuid(uuid::Uuid::from_u128(7)));
        let (database, kept) = (DatabaseName::new("main"), Kept::attempt(id, Attempt::new(2)));
        SetAside::default().noted(Kind::Report, Some(&database), &kept, "it is refused");
        assert_eq!(log.count(&format!("database=main task={id} attempt=2 name=\"{id}:2\" error=\"it is refused\"")), 1);
    }

    #[test]
    fn of_each_kind_the_log_has_one_error_and_no_more_of_a_long_reason_than_its_beginning() {
        let (log, set_aside) = (Log::keep(), SetAside::default());
        for _ in 0..10 {
            set_aside.note(Kind::LargeMessage, "result", &"é".repeat(100_000));
            set_aside.note(Kind::UnreadableMessage, "result", "it nests too deep");
        }
        assert_eq!((log.count("ERROR"), log.count("DEBUG")), (2, 18));
        assert!(log.longest() < 8 << 10, "{}", log.longest());
        assert_eq!(set_aside.count(Kind::LargeMessage), 10);
    }
}
