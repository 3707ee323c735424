//! What the database refuses is set aside, with its reason: counted, logged, kept in `duetime.quarantine` and named by `/readyz`.
//!
//! Its neighbours go on. A task whose own row cannot be written is neither published again nor forgotten: see `task_set_aside.sql`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::{Attempt, TaskId};
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};

use super::retry::{Done, until_done};
use crate::store::{Database, Error};

/// `/readyz` names what was set aside for this long: as long as the alert looks back.
const SHOWN_FOR: Duration = Duration::from_secs(900);

/// The longest reason that `/readyz` shows.
const REASON_CHARS: usize = 200;

/// The longest text of a reason that is kept.
const KEPT_CHARS: usize = 2_000;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),* $(,)?) => {
        /// What was being written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind { $($(#[$doc])* $variant),* }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

kinds! {
    /// A new task over HTTP or AMQP. Its sender has the answer.
    Submission = "submission",
    /// A row of an inbox. It stays there, with the reason.
    Inbox = "inbox",
    /// The claim of a due task.
    Claim = "claim",
    /// The second look at a claimed task.
    Rescue = "rescue",
    /// The broker's confirm of a task.
    Confirm = "confirm",
    /// A consumer's report, or a rejection.
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
    /// Something that not even the quarantine takes.
    Quarantine = "quarantine",
}

/// Counts what was set aside, and remembers what was of late.
#[derive(Clone, Debug)]
pub struct Asides {
    counts: IntCounterVec,
    recent: Arc<Mutex<BTreeMap<Kind, Recent>>>,
}

#[derive(Clone, Debug)]
struct Recent {
    count: u64,
    at: Instant,
    last: String,
}

/// What is kept of something that was set aside.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Whom it concerns: `<task id>:<attempt>` where it is about an attempt.
    pub name: Option<String>,
    pub headers: serde_json::Value,
    pub body: Vec<u8>,
}

impl Kept {
    pub fn task(id: TaskId) -> Self {
        Self { name: Some(id.to_string()), ..Self::default() }
    }

    pub fn attempt(id: TaskId, attempt: Attempt) -> Self {
        Self { name: Some(format!("{id}:{attempt}")), ..Self::default() }
    }
}

impl Default for Asides {
    fn default() -> Self {
        let counts = IntCounterVec::new(
            Opts::new(
                "duetime_set_aside_total",
                "what a database refused, set aside with its reason, by what was being written",
            ),
            &["kind"],
        );
        let counts = counts.expect("the name and the label are valid");
        for kind in Kind::ALL {
            let _ = counts.with_label_values(&[kind.text()]);
        }
        Self { counts, recent: Arc::default() }
    }
}

impl Asides {
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let asides = Self::default();
        registry.register(Box::new(asides.counts.clone()))?;
        Ok(asides)
    }

    /// Counts it, logs it and shows it.
    pub fn note(&self, kind: Kind, name: &str, reason: &str) {
        tracing::error!(kind = kind.text(), name, reason, "the database refuses it; it is set aside");
        self.counts.with_label_values(&[kind.text()]).inc();
        let last = format!("{name}: {reason}").chars().take(REASON_CHARS).collect();
        let mut recent = self.recent.lock();
        let count = recent.get(&kind).filter(|recent| recent.at.elapsed() < SHOWN_FOR).map_or(0, |recent| recent.count);
        recent.insert(kind, Recent { count: count + 1, at: Instant::now(), last });
    }

    /// The same, and keeps it in the quarantine of `database`. Returns when it is durable.
    pub async fn keep(&self, database: &Database, kind: Kind, kept: Kept, reason: &str) {
        self.note(kind, kept.name.as_deref().unwrap_or_default(), reason);
        self.quarantine(database, kind.text(), kept, reason).await;
    }

    /// Keeps something in the quarantine of `database`, in a form that it takes.
    pub async fn quarantine(&self, database: &Database, source: &'static str, kept: Kept, reason: &str) {
        let reason: String = storable(reason).chars().take(KEPT_CHARS).collect();
        let kept = Kept { name: kept.name.map(|name| storable(&name)), headers: storable_json(kept.headers), ..kept };
        // What is refused all the same is kept without what came from outside.
        let bare = Kept { name: None, ..Kept::default() };
        for form in [kept, bare] {
            let forms = [form];
            let written: Done<'_, Kept, ()> = until_done("the quarantine", &forms, |forms| {
                let Kept { name, headers, body } = forms[0].clone();
                database.quarantine_add(source, reason.clone(), name, headers, body)
            })
            .await;
            match written.refused.first() {
                None => return,
                Some(refused) => self.note(Kind::Quarantine, source, &refused.error.reason()),
            }
        }
    }

    pub fn count(&self, kind: Kind) -> u64 {
        self.counts.with_label_values(&[kind.text()]).get()
    }

    /// What `/readyz` says of it.
    pub fn reasons(&self) -> Vec<String> {
        let recent = self.recent.lock();
        let shown = recent.iter().filter(|(_, recent)| recent.at.elapsed() < SHOWN_FOR);
        shown
            .map(|(kind, Recent { count, last, .. })| {
                format!("{count} set aside ({}), the last is {last}", kind.text())
            })
            .collect()
    }
}

/// As PostgreSQL keeps text.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// As PostgreSQL keeps JSON: what holds a NUL anywhere is kept as text.
fn storable_json(value: serde_json::Value) -> serde_json::Value {
    let text = value.to_string();
    if text.contains("\\u0000") { serde_json::json!({ "as_text": text }) } else { value }
}

/// Why the database refuses it, for a person.
pub fn why(error: &Error) -> String {
    format!("{}: {}", error.op, error.reason())
}
