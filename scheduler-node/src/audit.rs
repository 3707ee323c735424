//! The audit log, noted when the answer to a request is known. A note costs the request next to nothing: a loop
//! writes notes in batches ([`crate::loops::upkeep::auditor`]). Notes for which there is no room are dropped, counted
//! and logged.

mod action;

use std::{
    array,
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use common::access::Caller;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tokio::sync::mpsc;
use uuid::Uuid;

pub(crate) use self::action::AuditAction;
use crate::{address, failures::Failures};

/// The most notes that wait to be written while the database is unreachable. That is some seconds of a program
/// that cancels as fast as it can, or hours of people's actions. A note takes about 300 bytes.
const WAITING: usize = 16_384;

/// The requests of one caller that are refused or change nothing (4xx), and are noted in a second; a program with the
/// wrong token or old ids would fill the disk otherwise. A caller is a token, or an address without one. A flood of
/// one caller's refusals thus does not hide another's.
const REFUSALS_PER_S: u32 = 20;
/// The answers with payloads to one caller that are noted in a second. A program that polls would fill the disk
/// otherwise.
const READS_PER_S: u32 = 20;
/// The part of [`WAITING`] that notes of reads may take, so that no number of readers crowds out changes and
/// refusals.
const READS_WAITING: usize = WAITING / 2;
/// The part of [`WAITING`] that notes of reads and refusals may take together. The rest is for changes.
const REFUSALS_WAITING: usize = WAITING / 4 * 3;
/// No more refusals of callers without a valid token are noted while so many notes wait. Strangers have as many
/// addresses as they like, so while the database is away they would take all places of reads and refusals.
const STRANGERS_WAITING: usize = WAITING / 4;
/// The callers that are counted separately in a second, with a token and without one. All others share one count.
const CALLERS_APART: usize = 256;

/// Dropped notes are in the log again when none was dropped for this long: they come in bursts, as while the database
/// is away.
const DROPS_OVER_AFTER: Duration = Duration::from_secs(600);

/// The status of a request that ended without an answer; no answer of a node has it. Proxies use it in their logs.
pub(crate) const UNANSWERED: u16 = 499;

/// The length at which texts of a note are cut off.
const TEXT_BYTES: usize = 2_000;
/// The length at which target and request id of a refusal are cut off. A stranger chooses both.
const REFUSAL_BYTES: usize = 256;

/// An action that was taken or refused.
#[derive(Clone, Debug)]
pub(crate) struct AuditEvent {
    /// The name of the caller's token.
    pub(crate) caller: Arc<str>,
    /// The id of that token, if it was created over the API.
    pub(crate) caller_id: Option<i64>,
    pub(crate) action: AuditAction,
    /// The object of the action: an id or a name.
    pub(crate) target: String,
    pub(crate) address: Option<IpAddr>,
    /// The HTTP status of the answer.
    pub(crate) status: u16,
    pub(crate) detail: Option<String>,
    pub(crate) request_id: Option<String>,
}

/// An event on its way into the database.
#[derive(Clone, Debug)]
pub struct AuditRecord {
    pub(crate) id: Uuid,
    pub(crate) event: AuditEvent,
    pub(crate) at: Instant,
}

common::labelled! {
    /// The reason why an event is not recorded.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum DropReason {
        /// Too many notes wait to be written.
        Full = "full",
        /// Too many requests were refused or changed nothing in this second, or too many notes of them wait.
        Refusals = "refusals",
        /// Too many answers with payloads were given in this second, or too many notes of them wait.
        Reads = "reads",
        /// The database could not be reached before the node stopped.
        Stopped = "stopped",
        /// The database refused the note.
        Unwritable = "unwritable",
    }
}

/// The counts of events that were recorded and that were not.
#[derive(Clone, Debug)]
pub struct AuditMetrics {
    pub(crate) written: IntCounter,
    dropped: IntCounterVec,
    /// When notes were dropped last, for each reason.
    drops: [Failures; DropReason::ALL.len()],
}

impl AuditMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let written = IntCounter::new("duetime_audit_written_total", "audit records written")?;
        let dropped = IntCounterVec::new(
            Opts::new("duetime_audit_dropped_total", "audit records dropped, by reason"),
            &["reason"],
        )?;
        registry.register(Box::new(written.clone()))?;
        registry.register(Box::new(dropped.clone()))?;
        for reason in DropReason::ALL {
            let _ = dropped.with_label_values(&[reason.text()]);
        }
        Ok(Self { written, dropped, drops: array::from_fn(|_| Failures::over_after(DROPS_OVER_AFTER)) })
    }

    pub(crate) fn dropped(&self, reason: DropReason, count: usize) {
        let is_first = self.drops[reason as usize].begin();
        let reason = reason.text();
        if is_first {
            tracing::warn!(reason, "audit records are dropped from here on; duetime_audit_dropped_total counts them");
        }
        self.dropped.with_label_values(&[reason]).inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

/// The entry point of the audit log.
#[derive(Clone, Debug)]
pub struct Audit {
    sender: mpsc::Sender<AuditRecord>,
    metrics: AuditMetrics,
    refusals: Arc<Mutex<Counts>>,
    /// Refusals of callers without a valid token.
    strangers: Arc<Mutex<Counts>>,
    reads: Arc<Mutex<Counts>>,
}

/// The counts of one kind of event since an instant, by caller.
#[derive(Debug)]
struct Counts {
    /// The limit of one caller in a second.
    most: u32,
    since: Instant,
    by_caller: HashMap<(Arc<str>, Option<IpAddr>), u32>,
    others: u32,
}

impl Counts {
    fn new(most: u32, now: Instant) -> Self {
        Self { most, since: now, by_caller: HashMap::new(), others: 0 }
    }

    fn has_room(&mut self, event: &AuditEvent, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            *self = Self::new(self.most, now);
        }
        // A caller without a valid token has no name of their own, so the address tells them apart.
        let address = event.address.filter(|_| event.is_by_stranger()).map(address::holder);
        let caller = (Arc::clone(&event.caller), address);
        let count = if self.by_caller.len() < CALLERS_APART || self.by_caller.contains_key(&caller) {
            self.by_caller.entry(caller).or_default()
        } else {
            &mut self.others
        };
        *count += 1;
        *count <= self.most
    }
}

impl AuditEvent {
    /// A refused message from the broker. RabbitMQ has checked the user, where the message names one.
    pub(crate) fn refused_message(user: Option<&str>, target: String, why: &str) -> Self {
        Self {
            caller: user.map_or_else(|| "amqp".into(), |user| format!("amqp:{user}").into()),
            caller_id: None,
            action: AuditAction::Refused,
            target,
            address: None,
            // The status that HTTP would have answered.
            status: 403,
            detail: Some(why.to_owned()),
            request_id: None,
        }
    }

    /// Whether the request was refused, or found nothing to change. One that ended without an answer may have changed
    /// something.
    fn is_refusal(&self) -> bool {
        (400..500).contains(&self.status) && self.status != UNANSWERED
    }

    /// Whether the caller has no valid token.
    fn is_by_stranger(&self) -> bool {
        &*self.caller == Caller::ANONYMOUS
    }

    fn is_read(&self) -> bool {
        self.action.shows_data()
    }
}

impl Audit {
    /// Returns the handle, and the receiver of all notes.
    pub(crate) fn new(metrics: AuditMetrics) -> (Self, mpsc::Receiver<AuditRecord>) {
        let (sender, notes) = mpsc::channel(WAITING);
        let counts = |most| Arc::new(Mutex::new(Counts::new(most, Instant::now())));
        let (refusals, strangers) = (counts(REFUSALS_PER_S), counts(REFUSALS_PER_S));
        (Self { sender, metrics, refusals, strangers, reads: counts(READS_PER_S) }, notes)
    }

    /// Records an answer that was just given. Never waits.
    pub(crate) fn record(&self, event: AuditEvent) {
        let now = Instant::now();
        if event.is_refusal() {
            let (counts, waiting) = if event.is_by_stranger() {
                (&self.strangers, STRANGERS_WAITING)
            } else {
                (&self.refusals, REFUSALS_WAITING)
            };
            if !(self.has_room_for(waiting) && counts.lock().has_room(&event, now)) {
                return self.metrics.dropped(DropReason::Refusals, 1);
            }
        } else if event.is_read() && !(self.has_room_for(READS_WAITING) && self.reads.lock().has_room(&event, now)) {
            return self.metrics.dropped(DropReason::Reads, 1);
        }
        let most = if event.is_refusal() { REFUSAL_BYTES } else { TEXT_BYTES };
        let event = AuditEvent {
            target: fit(event.target, most),
            detail: event.detail.map(|detail| fit(detail, TEXT_BYTES)),
            request_id: event.request_id.map(|id| fit(id, most)),
            ..event
        };
        if self.sender.try_send(AuditRecord { id: Uuid::now_v7(), event, at: now }).is_err() {
            self.metrics.dropped(DropReason::Full, 1);
        }
    }

    /// Whether fewer than `most` notes wait.
    fn has_room_for(&self, most: usize) -> bool {
        self.sender.capacity() > WAITING - most
    }
}

/// The text in a form that PostgreSQL stores, cut off after `most` bytes.
fn fit(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::{
        AuditAction::{QueueDelete, Refused, ScheduleRead, TaskCancel, TaskList, TaskRead},
        *,
    };
    use crate::failures::tests::Log;

    fn event(status: u16) -> AuditEvent {
        AuditEvent {
            caller: "ops".into(),
            caller_id: None,
            action: AuditAction::TaskCancel,
            target: "x\0".repeat(TEXT_BYTES),
            address: None,
            status,
            detail: None,
            request_id: None,
        }
    }

    fn audit() -> (Audit, mpsc::Receiver<AuditRecord>, Registry) {
        let registry = Registry::new();
        let (audit, notes) = Audit::new(AuditMetrics::register(&registry).expect("registered once"));
        (audit, notes, registry)
    }

    fn dropped(audit: &Audit, reason: DropReason) -> u64 {
        audit.metrics.dropped.with_label_values(&[reason.text()]).get()
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped_and_counted() {
        let (audit, mut notes, _registry) = audit();
        for _ in 0..WAITING + 3 {
            audit.record(event(200));
        }
        assert_eq!(dropped(&audit, DropReason::Full), 3);
        let target = notes.try_recv().expect("noted").event.target;
        assert!(target.len() <= TEXT_BYTES * 2 && !target.contains('\0'));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_notes_are_in_the_log_once_for_each_reason_and_again_after_a_while_without_any() {
        let (log, (audit, _notes, _registry)) = (Log::keep(), audit());
        let lines_after = |reason| {
            audit.metrics.dropped(reason, 1);
            log.count("audit records are dropped")
        };
        for _ in 0..5 {
            assert_eq!(lines_after(DropReason::Full), 1);
            tokio::time::advance(DROPS_OVER_AFTER / 2).await;
        }
        assert_eq!(lines_after(DropReason::Stopped), 2);
        tokio::time::advance(DROPS_OVER_AFTER).await;
        assert_eq!(lines_after(DropReason::Full), 3);
        assert_eq!(dropped(&audit, DropReason::Full), 6);
    }

    #[test]
    fn one_callers_refusals_do_not_hide_those_of_others() {
        let (audit, mut notes, _registry) = audit();
        let flood = |caller: &str, address: &str| {
            for _ in 0..REFUSALS_PER_S * 10 {
                let address = Some(address.parse().expect("an address"));
                audit.record(AuditEvent { caller: caller.into(), address, status: 401, ..event(401) });
            }
        };
        flood("shop", "192.0.2.1");
        flood(Caller::ANONYMOUS, "192.0.2.1");
        let record = |caller: &str, address: &str, times: u32| {
            let address = Some(address.parse().expect("an address"));
            for _ in 0..times {
                audit.record(AuditEvent { caller: caller.into(), address, target: "t".to_owned(), ..event(403) });
            }
        };
        for nth in 0..300 {
            record(Caller::ANONYMOUS, &format!("2001:db8::{nth:x}"), REFUSALS_PER_S + 1);
        }
        record(Caller::ANONYMOUS, "192.0.2.2", 1);
        for nth in 0..300 {
            record(Caller::ANONYMOUS, &format!("198.51.{}.{}", nth / 100, nth % 100), REFUSALS_PER_S + 1);
        }
        record("mail", "192.0.2.1", 1);
        let noted: Vec<_> = std::iter::from_fn(|| notes.try_recv().ok()).collect();
        let of = |caller: &str, last: &str| {
            let is = |noted: &&AuditRecord| {
                &*noted.event.caller == caller && noted.event.address.is_some_and(|ip| ip.to_string() == last)
            };
            noted.iter().filter(is).count()
        };
        assert_eq!((of("mail", "192.0.2.1"), of(Caller::ANONYMOUS, "192.0.2.2")), (1, 1));
        assert!(of("shop", "192.0.2.1") >= REFUSALS_PER_S as usize);
    }

    #[test]
    fn reads_of_one_caller_hide_neither_its_changes_nor_what_others_read() {
        let (audit, mut notes, _registry) = audit();
        let record = |caller: &str, action: AuditAction, status| {
            audit.record(AuditEvent { caller: caller.into(), action, target: "t".to_owned(), ..event(status) });
        };
        for _ in 0..READS_PER_S * 10 {
            record("shop", TaskRead, 200);
        }
        for (caller, action, status) in
            [("shop", TaskCancel, 200), ("shop", Refused, 403), ("mail", TaskRead, 200), ("mail", TaskList, 200)]
        {
            record(caller, action, status);
        }
        assert!(dropped(&audit, DropReason::Reads) > 0);
        let noted: Vec<_> = std::iter::from_fn(|| notes.try_recv().ok()).collect();
        let of = |caller: &str, action: AuditAction| {
            noted.iter().filter(|n| &*n.event.caller == caller && n.event.action == action).count()
        };
        assert!((READS_PER_S as usize..READS_PER_S as usize * 10).contains(&of("shop", TaskRead)));
        assert_eq!((of("shop", TaskCancel), of("shop", Refused)), (1, 1));
        assert_eq!((of("mail", TaskRead), of("mail", TaskList)), (1, 1));
    }

    #[test]
    fn reads_of_many_callers_leave_room_for_changes_and_refusals() {
        let (audit, notes, _registry) = audit();
        for nth in 0..WAITING {
            let caller: Arc<str> = format!("u{}", nth / READS_PER_S as usize).into();
            audit.record(AuditEvent { caller, action: ScheduleRead, target: "t".to_owned(), ..event(200) });
        }
        assert!(notes.len() <= READS_WAITING);
        audit.record(event(403));
        audit.record(event(200));
        assert_eq!((dropped(&audit, DropReason::Full), dropped(&audit, DropReason::Refusals)), (0, 0));
    }

    #[test]
    fn strangers_leave_room_for_the_reads_and_refusals_of_callers_with_tokens() {
        let (audit, notes, _registry) = audit();
        // As many seconds as fill the places of all refusals.
        for _ in 0..=REFUSALS_WAITING / (CALLERS_APART * REFUSALS_PER_S as usize) {
            *audit.strangers.lock() = Counts::new(REFUSALS_PER_S, Instant::now());
            for network in 0..CALLERS_APART {
                let address = Some(format!("2001:db8:0:{network:x}::1").parse().expect("an address"));
                for _ in 0..REFUSALS_PER_S {
                    let target = "t".to_owned();
                    let caller = Caller::ANONYMOUS.into();
                    audit.record(AuditEvent { caller, action: Refused, target, address, ..event(401) });
                }
            }
        }
        let noted = notes.len();
        assert_eq!(noted, STRANGERS_WAITING);
        audit.record(AuditEvent { action: TaskRead, ..event(200) });
        audit.record(AuditEvent { action: Refused, ..event(403) });
        assert_eq!(notes.len(), noted + 2);
    }

    #[test]
    fn changes_of_nothing_leave_room_for_the_changes_of_others() {
        let (audit, notes, _registry) = audit();
        for _ in 0..WAITING * 2 {
            audit.record(AuditEvent { target: "t".to_owned(), ..event(404) });
        }
        let noted = notes.len();
        assert!((REFUSALS_PER_S as usize..REFUSALS_WAITING).contains(&noted), "{noted}");
        audit.record(AuditEvent { caller: "shop".into(), action: QueueDelete, ..event(200) });
        audit.record(AuditEvent { caller: "shop".into(), ..event(UNANSWERED) });
        assert_eq!((notes.len(), dropped(&audit, DropReason::Full)), (noted + 2, 0));
    }

    #[test]
    fn the_last_places_are_for_changes() {
        let (audit, notes, _registry) = audit();
        for _ in 0..REFUSALS_WAITING {
            audit.record(AuditEvent { target: "t".to_owned(), ..event(200) });
        }
        audit.record(AuditEvent { caller: "shop".into(), ..event(404) });
        audit.record(AuditEvent { caller: "shop".into(), ..event(200) });
        assert_eq!((notes.len(), dropped(&audit, DropReason::Refusals)), (REFUSALS_WAITING + 1, 1));
    }

    #[test]
    fn refused_attempts_cannot_flood_the_audit() {
        let (audit, mut notes, _registry) = audit();
        for _ in 0..REFUSALS_PER_S * 10 {
            audit.record(event(403));
        }
        assert!(notes.len() >= REFUSALS_PER_S as usize);
        let target = notes.try_recv().expect("noted").event.target;
        assert!(target.len() <= REFUSAL_BYTES * 2, "{}", target.len());
        assert!(dropped(&audit, DropReason::Refusals) > 0);
    }
}
