//! The line of one database: applies the reports on its tasks, a batch at a time, and acks each after the write.
//!
//! A report whose row another transaction holds leaves the line and waits without an ack. It is tried again at
//! intervals, so an application's open transaction delays the reports on its own tasks and no others. A report that
//! fails alone with what looks like a bug waits with them. One that counts without a value is acked once the quarantine
//! has it whole, beside the line.
//!
//! A report on a closed shard waits with them too: its move has come to the last part, and no database takes writes for
//! it. One such report has the database refuse all that are written with it, so those are written again without it. A
//! node that cannot read where the shard is gives the report back after a while: the shard may be open.
//!
//! In an outage of the database the reports go back to the broker after a while: another node may reach the database.
//! While none does, or none can write to it, the node holds more of them than usual, so that reports on tasks of other
//! databases come too.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, TaskId},
    shard::map::ShardMap,
    task::report::ReportStatus,
};
use tokio::sync::{mpsc, watch};

use super::{
    AWAY_LONGEST, AttemptEvent, HELD_LONGEST, Reported, Reporter, finished,
    incoming::{ReadReport, ToQuarantine, name_of},
};
use crate::{
    broker::Incoming,
    clock,
    store::{Error, Patience, Statements, StoreOp},
    supervise::{at_work, spawn_child},
    working_set::{
        database::{Aside, DatabaseIndex, NodeDatabase, held_again},
        retry::{Done, Refused, until_done_or_held},
        set_aside::{Kept, Kind, why},
    },
};

/// Messages of one pass. All of them together need one read and at most three writes in each database. While a pass is
/// delayed, the deadlines need one more read and one more write. So do those of reports that come meanwhile.
pub(super) const BATCH: usize = 500;

/// The most reports that wait to be tried again, of one database. They take places in the prefetch, which is mostly 500
/// for all databases. Those beyond it go back to the broker once in each pause: they may come again as often as
/// `OWN_DELIVERY_LIMIT` says, which is more than a week at this pace.
pub(super) const HELD_MOST: usize = 100;

/// How long reports behind a batch wait for a database that is away, before they go back to the broker with it: another
/// node may reach it by now. While none does, most of them go and come only once in this time.
pub(super) const KEPT_LONGEST: Duration = Duration::from_secs(60);

/// The pause before a report is given back that the database refuses in every form. Until then the broker delivers
/// others in its place.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(10);

/// The name of these writes in the log. The broker keeps messages without an ack.
const WHAT: &str = "consumers' reports";

/// The answers to a batch of reports.
#[derive(Default)]
struct Answers {
    /// By their places in the batch. The others are settled.
    fates: HashMap<usize, Fate>,
    /// The tasks whose consumers must stop.
    stopping: HashSet<TaskId>,
    /// The tasks that have ended, or that were never here.
    missing: HashSet<TaskId>,
}

/// What a batch leaves.
struct Pass {
    /// The reports that another transaction or a closed shard holds up.
    held: Vec<ReadReport>,
    /// The reports that were refused together with one on a closed shard. That one is in `held` now.
    again: Vec<ReadReport>,
    /// Whether the database is away, and reports went back to the broker.
    is_away: bool,
    /// The tasks whose reports went back to the broker: [`BATCH`] at most.
    back: HashSet<TaskId>,
    /// The tasks whose reports failed alone.
    failed_alone: HashSet<TaskId>,
}

/// The tasks whose reports failed alone, each with the last time. A pass that writes nothing tries few reports alone,
/// as where the archive lacks the partition of most of them. So the next one begins with others, also among those that
/// went back to the broker and have come again.
#[derive(Debug, Default)]
pub(super) struct FailedAlone(HashMap<TaskId, Instant>);

impl FailedAlone {
    pub(super) fn note(&mut self, tasks: HashSet<TaskId>) {
        let now = clock::instant();
        self.0.retain(|_, at| now.saturating_duration_since(*at) < HELD_LONGEST);
        self.0.extend(tasks.into_iter().map(|id| (id, now)));
    }

    /// Puts reports on these tasks last, those that failed most recently at the end. The reports on one task stay in
    /// their order.
    pub(super) fn put_last(&self, reports: &mut [ReadReport]) {
        if !self.0.is_empty() {
            reports.sort_by_key(|report| self.0.get(&report.id).copied());
        }
    }
}

/// The fate of a report.
enum Fate {
    /// Its outcome is written, or a person finds it. `is_kept`: the quarantine has the report.
    Settled { is_kept: bool },
    /// No database takes it, because a shard is moving, or its database is away.
    Untaken,
    /// Another transaction holds its row, its shard is closed, or it is in doubt. It is tried again.
    Held,
    /// It was refused together with one on a closed shard.
    Again,
    /// The database refuses its values. Its outcome is still to be written by this event without them. `is_kept`: the
    /// quarantine has the report.
    Open { bare: AttemptEvent, is_kept: bool },
    /// The database neither writes nor keeps it: the broker has the only copy.
    Unkept,
    /// Nothing vouches for it.
    Untrusted(String),
}

impl<S: Statements> Reporter<S> {
    /// Applies and acks the messages for one database, a batch at a time. Those that nothing vouches for go `aside`.
    /// Those that count without a value are `incomplete`.
    pub(super) async fn apply_all(
        &self,
        index: DatabaseIndex,
        mut line: mpsc::Receiver<ReadReport>,
        (aside, incomplete): (mpsc::Sender<ToQuarantine>, mpsc::Sender<ToQuarantine>),
    ) {
        let (mut batch, mut held) = (Vec::with_capacity(BATCH), Vec::<ReadReport>::new());
        let (mut again, mut failed_alone) = (held_again(), FailedAlone::default());
        // What came during a pass that met a lock, and whether held reports have met one that lasts.
        let (mut coming, mut is_delayed) = (Vec::new(), false);
        loop {
            let is_wary = !held.is_empty();
            if batch.is_empty() {
                tokio::select! {
                    biased;
                    _ = again.tick(), if is_wary => {
                        failed_alone.put_last(&mut held);
                        return_surplus(&mut held).await;
                        batch.append(&mut held);
                    }
                    any = have_come(&mut line, &mut coming) => if any { batch.append(&mut coming) } else { return },
                }
            }
            let _work = at_work();
            let (is_repeated, began) = (is_wary && held.is_empty(), clock::instant());
            // First, as the question which rows are locked would be in vain for them.
            self.hold_closed(&mut batch, &mut held).await;
            if is_wary {
                self.hold_back(&mut batch, &mut held).await;
            }
            failed_alone.put_last(&mut batch);
            if is_delayed {
                self.prolong(&batch).await;
            }
            let met = watch::Sender::new(false);
            let pass = self.apply_and_ack(index, std::mem::take(&mut batch), (&aside, &incomplete), &met);
            let pass = self.with_coming(pass, (&mut line, &mut coming), (is_delayed, &met)).await;
            failed_alone.note(pass.failed_alone);
            held.extend(pass.held);
            // A pass over the held ones shows whether it lasts.
            is_delayed = !held.is_empty() && (*met.borrow() || (is_delayed && !is_repeated));
            // Each time, reports on a closed shard have left the batch.
            batch.extend(pass.again);
            if pass.is_away {
                self.databases[index].leave_messages();
                return_old(&mut line, &mut coming, pass.back).await;
            }
            if is_repeated {
                // Each report that a lock delays may take seconds. So new reports have at least half of the time.
                let took = clock::instant().saturating_duration_since(began);
                again.reset_after(took.max(again.period()));
            }
        }
    }

    /// Moves the reports whose rows another transaction holds from `batch` to `held`. A report stays behind an earlier
    /// one on its task.
    async fn hold_back(&self, batch: &mut Vec<ReadReport>, held: &mut Vec<ReadReport>) {
        let mut ids: HashSet<TaskId> = held.iter().map(|report| report.id).collect();
        ids.extend(self.databases.held(batch.iter().map(|report| report.id)).await);
        held.extend(batch.extract_if(.., |report| ids.contains(&report.id)));
    }

    /// Moves the reports on closed shards from `batch` to `held`. Those that came [`AWAY_LONGEST`] ago go back to the
    /// broker instead, if the place of their shard is not known or may have changed since it was read: another node may
    /// know it.
    pub(super) async fn hold_closed(&self, batch: &mut Vec<ReadReport>, held: &mut Vec<ReadReport>) {
        let places = self.databases.places();
        let is_old = |report: &ReadReport| report.has_waited(AWAY_LONGEST);
        let (mut map, mut is_certain) = (places.load(), true);
        if batch.iter().any(|report| is_old(report) && is_closed(&map, report)) {
            is_certain = places.is_current().await || places.refresh().await.is_ok();
            map = places.load();
        }
        let is_known = |report: &ReadReport| is_certain && map.of(report.id.shard()).is_some();
        let goes_back = |report: &&ReadReport| is_closed(&map, report) && is_old(report) && !is_known(report);
        // With the later ones of their tasks, which would go first otherwise.
        let back: HashSet<TaskId> = batch.iter().filter(goes_back).map(|report| report.id).collect();
        if !back.is_empty() {
            tracing::debug!(tasks = back.len(), "reports on shards that may be open elsewhere go back to RabbitMQ");
        }
        for report in batch.extract_if(.., |report| is_closed(&map, report)) {
            if back.contains(&report.id) {
                report.message.ack.requeue().await;
            } else {
                held.push(report);
            }
        }
    }

    /// Applies a batch and acks what is written. `met` learns when it meets a lock or lacks a partition.
    async fn apply_and_ack(
        &self,
        index: DatabaseIndex,
        mut reports: Vec<ReadReport>,
        (aside, incomplete): (&mpsc::Sender<ToQuarantine>, &mpsc::Sender<ToQuarantine>),
        met: &watch::Sender<bool>,
    ) -> Pass {
        let database = &self.databases[index];
        let id = |report: &ReadReport| report.id;
        let first_suspect = database.suspects.put_last(StoreOp::TaskStanding, &mut reports, id);
        for (place, report) in reports.iter_mut().enumerate() {
            report.event.number(place);
        }
        let (others, known) = reports.split_at(first_suspect);
        let are_held = |part: &[ReadReport]| self.databases.are_held(part.iter().map(id).collect());
        let write = |part: &[ReadReport]| {
            let events = part.iter().map(|report| (report.id, report.event.clone())).collect();
            self.apply_or_prolong(events, (&reports, met))
        };
        let (patience, without_partition) = (Some(AWAY_LONGEST), &database.without_partition);
        let done = until_done_or_held(WHAT, others, patience, without_partition, are_held, write).await;
        let done = database
            .suspects
            .try_known(StoreOp::TaskStanding, done, known, id, |answers| finished(answers), write)
            .await;
        let is_away = !done.away.is_empty();
        let failed_alone = done.doubtful.iter().filter_map(|(part, _)| alone(part)).collect();
        let mut pass = Pass { held: Vec::new(), again: Vec::new(), is_away, back: HashSet::new(), failed_alone };
        let mut answers = self.answers(database, &reports, done).await;
        // The broker delivers no more unacked messages than each channel holds, so nothing waits for room there.
        for (place, mut report) in reports.into_iter().enumerate() {
            match answers.fates.remove(&place).unwrap_or(Fate::Settled { is_kept: report.is_kept }) {
                Fate::Settled { is_kept } => {
                    let ReadReport { id, event, message, left_out, .. } = report;
                    let has_ended = answers.missing.contains(&id) && self.expects_reports(&message);
                    if has_ended || answers.stopping.contains(&id) {
                        order_stop(id, &event, &message);
                    }
                    match left_out.filter(|_| !is_kept) {
                        Some(why) => drop(incomplete.send((message, why)).await),
                        None => message.ack.ack().await,
                    }
                }
                Fate::Untaken => {
                    pass.back.insert(report.id);
                    report.message.ack.requeue().await;
                }
                Fate::Held => pass.held.push(report),
                Fate::Again => pass.again.push(report),
                Fate::Open { bare, is_kept } => {
                    (report.event, report.is_kept) = (bare, is_kept);
                    pass.held.push(report);
                }
                Fate::Unkept => give_back(report.id, report.message),
                Fate::Untrusted(why) => {
                    self.note_refused(&report.message, &why);
                    drop(aside.send((report.message, why)).await);
                }
            }
        }
        pass
    }

    /// Sorts the answers to `reports`, and sets aside what the database refuses.
    async fn answers(
        &self,
        database: &NodeDatabase<S>,
        reports: &[ReadReport],
        done: Done<'_, ReadReport, Vec<(TaskId, Reported)>>,
    ) -> Answers {
        // The refusal had the places read again.
        let map = self.databases.places().load();
        let (closed, moved): (Vec<_>, Vec<_>) = done.moved.into_iter().partition(|report| is_closed(&map, report));
        if !closed.is_empty() {
            tracing::warn!(
                reports = closed.len(),
                "a shard is in the last part of its move; trying the reports on its tasks again at intervals"
            );
        } else if !moved.is_empty() {
            tracing::warn!(reports = moved.len(), "no database takes these reports, because a shard is moving");
        }
        if !done.held.is_empty() {
            let database = database.name();
            tracing::warn!(%database, reports = done.held.len(), "other transactions lock the tasks of these reports; trying them again at intervals");
        }
        if !done.away.is_empty() {
            let database = database.name();
            tracing::debug!(%database, reports = done.away.len(), "the database is away; giving these reports back to the broker, for any node that reaches it");
        }
        let place_of = |report: &ReadReport| reports.iter().position(|one| std::ptr::eq(one, report));
        let mut answers = Answers::default();
        let is_beside_closed = !closed.is_empty();
        let of_moved = |place| (place, if is_beside_closed { Fate::Again } else { Fate::Untaken });
        answers.fates.extend(moved.into_iter().filter_map(place_of).map(of_moved));
        answers.fates.extend(done.away.into_iter().filter_map(place_of).map(|place| (place, Fate::Untaken)));
        let doubtful = done.doubtful.into_iter().flat_map(|(part, _)| part);
        let held = done.held.into_iter().chain(doubtful).chain(closed).filter_map(place_of);
        answers.fates.extend(held.map(|place| (place, Fate::Held)));
        for Refused { item, error } in done.refused {
            let fate = self.refused(database, item, &error).await;
            answers.fates.extend(place_of(item).map(|place| (place, fate)));
        }
        for (id, answer) in done.answers.into_iter().flatten() {
            match answer {
                Reported::Applied { stopping: true, .. } => drop(answers.stopping.insert(id)),
                Reported::Missing => drop(answers.missing.insert(id)),
                Reported::Untrusted { place, why } => drop(answers.fates.insert(place, Fate::Untrusted(why))),
                _ => {}
            }
        }
        answers
    }

    /// Whether a consumer's report ends the tasks of the queue that the message is addressed to. The work on a task of
    /// another queue may go on after its end: a confirm has ended it, or the silence of its consumer.
    fn expects_reports(&self, message: &Incoming) -> bool {
        let Ok(Some(queue)) = &message.addressed_to else { return false };
        self.books.load().find(&QueueName::new(queue)).is_some_and(|queue| queue.policy.settle.needs_report())
    }

    /// Quarantines a message whose values the database refuses, and applies its outcome without them. If the
    /// database refuses that too, the task is set aside: its deadline must not take a rejection for a success.
    /// Each is tried once. What another transaction, a move or an outage keeps from being written comes again.
    async fn refused(&self, database: &NodeDatabase<S>, report: &ReadReport, error: &Error) -> Fate {
        let ReadReport { id, event, message, is_kept, .. } = report;
        let copy = || Kept { task: Some(*id), attempt: event.attempt(), ..kept(message) };
        let is_kept = *is_kept || database.set_aside.keep(&database.sql, Kind::Report, copy(), &why(error)).await;
        let bare = event.bare();
        match self.apply_in_place(vec![(*id, bare.clone())], Patience::Short).await {
            Ok(_) => return Fate::Settled { is_kept },
            // A row at fault refuses any form of a report.
            Err(again) if again.blames_row_after(error) => {}
            Err(_) => return Fate::Open { bare, is_kept },
        }
        let Some(attempt) = event.attempt() else { return Fate::Settled { is_kept } };
        match database.set_attempt_aside(Kind::Report, *id, attempt, error).await {
            Aside::Open => Fate::Open { bare, is_kept },
            Aside::Refused if !is_kept => Fate::Unkept,
            Aside::Done | Aside::Refused => Fate::Settled { is_kept },
        }
    }
}

/// Whether no database takes writes for the report's shard, as far as this node knows.
pub(super) fn is_closed(map: &ShardMap, report: &ReadReport) -> bool {
    map.of(report.id.shard()).is_none_or(|place| !place.status.is_open())
}

/// The task of a part of one report.
fn alone(part: &[ReadReport]) -> Option<TaskId> {
    if let [report] = part { Some(report.id) } else { None }
}

/// Gives a message back to the broker after a pause, beside the others.
fn give_back(id: TaskId, message: Incoming) {
    tracing::error!(task = %id, pause_s = GIVE_BACK_AFTER.as_secs(), "the database neither writes nor keeps this report; it goes back to the broker");
    spawn_child(async move {
        tokio::time::sleep(GIVE_BACK_AFTER).await;
        message.ack.requeue().await;
    });
}

/// Waits for reports, unless some have come already. Returns whether there are any: the line may have ended.
async fn have_come(line: &mut mpsc::Receiver<ReadReport>, coming: &mut Vec<ReadReport>) -> bool {
    !coming.is_empty() || line.recv_many(coming, BATCH).await > 0
}

/// Fills the next batch from the line, behind what has come already. Reports that have waited for [`KEPT_LONGEST`] go
/// back to the broker instead. So do those on the tasks in `back`, whose earlier reports have just gone back: they
/// would go first otherwise. Those whose connection is gone come again by themselves, and only take the places of
/// others.
pub(super) async fn return_old(
    line: &mut mpsc::Receiver<ReadReport>,
    coming: &mut Vec<ReadReport>,
    mut back: HashSet<TaskId>,
) {
    // What the broker delivers again meanwhile waits for the next call.
    let mut left = line.len();
    let in_line = std::iter::from_fn(|| {
        left = left.checked_sub(1)?;
        line.try_recv().ok()
    });
    let mut reports = std::mem::take(coming).into_iter().chain(in_line);
    while coming.len() < BATCH
        && let Some(report) = reports.next()
    {
        if report.has_waited(KEPT_LONGEST) || back.contains(&report.id) {
            back.insert(report.id);
            report.message.ack.requeue().await;
        } else if !report.message.ack.is_lost() {
            coming.push(report);
        }
    }
}

/// Returns the reports that have waited for [`HELD_LONGEST`] to the broker, and the last beyond [`HELD_MOST`].
pub(super) async fn return_surplus(held: &mut Vec<ReadReport>) {
    let old = held.iter().filter(|report| report.has_waited(HELD_LONGEST));
    // With the later ones of their tasks, which would go first otherwise.
    let back: HashSet<TaskId> = old.map(|report| report.id).collect();
    let mut room = HELD_MOST;
    let goes_back = |report: &mut ReadReport| {
        let is_kept = room > 0 && !back.contains(&report.id);
        room -= usize::from(is_kept);
        !is_kept
    };
    // In their order, in which the broker delivers them again.
    for report in held.extract_if(.., goes_back) {
        report.message.ack.requeue().await;
    }
}

/// Answers a heartbeat with the order to stop. An attempt that was only given up for another one gets none: its success
/// still counts, unless the task's content was changed since.
fn order_stop(id: TaskId, event: &AttemptEvent, message: &Incoming) {
    if let AttemptEvent::Reported { attempt, body, .. } = event
        && body.status == ReportStatus::Running
        && let Some(reply_to) = &message.reply_to
    {
        let order = serde_json::json!({ "id": id, "attempt": attempt, "stopping": true });
        reply_to.send(&id.to_string(), order.to_string().as_bytes());
    }
}

fn kept(message: &Incoming) -> Kept {
    Kept { name: name_of(message), headers: message.headers.clone(), body: message.body.clone(), ..Kept::default() }
}
