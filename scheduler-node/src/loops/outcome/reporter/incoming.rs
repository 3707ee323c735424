//! Reads messages that come back from the broker, and passes each to the line of its database. Sets aside what cannot
//! be trusted or read in full.

use std::time::Duration;

use common::{
    ids::{Attempt, MessageId, NotAMessageId, TaskId},
    task::{
        TraceContext,
        report::ResultBody,
        trace::HEADER_TRACEPARENT,
        voucher::{Receipt, Voucher},
    },
    wire::amqp::HEADER_RECEIPT,
};
use futures::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{AWAY_LONGEST, AttemptEvent, HELD_LONGEST, Reporter, Sender};
use crate::{
    audit::AuditEvent,
    broker::{Incoming, MOST_HELD, Source},
    by_database::ByDatabase,
    clock,
    store::{Statements, quarantine::Quarantined},
    supervise::at_work,
    working_set::{database::NodeDatabase, set_aside::for_log},
};

/// Messages that wait for one database: as many as the broker delivers unacked.
const WAITING: usize = MOST_HELD;

/// The most messages of one insert into the quarantine: 8 MiB, as 80 KiB are kept of each at most.
pub(super) const ASIDE_BATCH: usize = 100;

/// How long messages that nothing vouches for wait for the quarantine, before they go back to the broker: another node
/// may reach its database. Each time that they come again, they are noted in the audit again.
const UNTRUSTED_LONGEST: Duration = Duration::from_secs(30);

const BY_NAME: &str = "it came through the default exchange, which `amqp.default_door` = `false` forbids";

/// A message that was read.
#[derive(Debug)]
pub(super) struct ReadReport {
    pub id: TaskId,
    pub event: AttemptEvent,
    /// The message itself, with its ack.
    pub message: Incoming,
    /// Whether the quarantine has it. The event has none of its values then.
    pub is_kept: bool,
    /// The reason why the event lacks a value of the message.
    pub left_out: Option<String>,
}

impl ReadReport {
    /// Whether it came at least `time` ago.
    pub fn has_waited(&self, time: Duration) -> bool {
        self.message.arrived_at.elapsed() >= time
    }
}

/// A message that the quarantine gets before its ack, and why.
pub(super) type ToQuarantine = (Incoming, String);

/// The channels to the loops that apply reports, one for each database.
#[derive(Clone, Debug, Default)]
pub struct ReportLines(ByDatabase<mpsc::Sender<ReadReport>>);

impl<S: Statements> Reporter<S> {
    /// Reads messages that come back from the broker until `stop`, and sends each to the line of its database. Messages
    /// to be set aside have a channel of their own, and so have those of a shard whose database is not known yet.
    pub async fn run(self, incoming: mpsc::Receiver<Incoming>, stop: CancellationToken) {
        let (aside, set_aside) = mpsc::channel(WAITING);
        let (waiting, without_place) = mpsc::channel(WAITING);
        let reading = self.read_all(incoming, waiting, aside.clone());
        let placing = self.place_all(without_place, aside);
        let setting_aside = self.set_all_aside(self.databases.home(), set_aside, UNTRUSTED_LONGEST);
        tokio::select! {
            _ = async { tokio::join!(reading, placing, setting_aside) } => {}
            () = stop.cancelled() => {}
        }
    }

    /// Opens the line of the next database, and returns the loop that applies its reports until `stop`. Each database
    /// has its own, so that an outage of one delays no reports of others. Each also sets its messages aside beside the
    /// line: in its own database what counts without a value, and in the first one what nothing vouches for. The former
    /// has more time: each time that it comes again, it is applied once more.
    pub fn add_line(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send + use<S> {
        let (line, end) = mpsc::channel(WAITING);
        let (aside, set_aside) = mpsc::channel(WAITING);
        let (incomplete, to_keep_whole) = mpsc::channel(WAITING);
        let index = self.lines.0.push(line);
        let this = self.clone();
        async move {
            tokio::select! {
                _ = async {
                    tokio::join!(
                        this.apply_all(index, end, (aside, incomplete)),
                        this.set_all_aside(this.databases.home(), set_aside, UNTRUSTED_LONGEST),
                        this.set_all_aside(&this.databases[index], to_keep_whole, HELD_LONGEST),
                    )
                } => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Reads every message and sends it to its channel. An unreadable message is set aside, never requeued.
    async fn read_all(
        &self,
        mut incoming: mpsc::Receiver<Incoming>,
        waiting: mpsc::Sender<ReadReport>,
        aside: mpsc::Sender<ToQuarantine>,
    ) {
        let Some(held) = self.until_keys(&mut incoming).await else { return };
        let coming = stream::poll_fn(|context| incoming.poll_recv(context));
        let mut messages = stream::iter(held).chain(coming);
        while let Some(message) = messages.next().await {
            if let Some(why) = self.refusal(&message) {
                self.note_refused(&message, why);
                drop(aside.send((message, why.to_owned())).await);
                continue;
            }
            // The broker delivers no more unacked messages than one channel holds, so no send ever waits here.
            match self.read(&message) {
                Ok((id, event, left_out)) => {
                    let report = ReadReport { id, event, message, is_kept: false, left_out };
                    if let Some(report) = self.place(report, &aside).await {
                        drop(waiting.send(report).await);
                    }
                }
                Err(reason) => drop(aside.send((message, reason)).await),
            }
        }
    }

    /// Why a message may not come the way it came.
    fn refusal(&self, message: &Incoming) -> Option<&'static str> {
        if !self.default_exchange && !message.is_by_exchange {
            return Some(BY_NAME);
        }
        message.addressed_to.as_ref().err().filter(|_| message.trouble.is_none()).copied()
    }

    /// Waits for the keys of receipts: without them a genuine receipt cannot be told from a wrong one. Returns the
    /// messages that came meanwhile. Those that wait for [`AWAY_LONGEST`] go back to the broker: another node may have
    /// the keys. So in every database deadlines wait for messages once more. `None`: the keys will never come.
    async fn until_keys(&self, incoming: &mut mpsc::Receiver<Incoming>) -> Option<Vec<Incoming>> {
        if self.receipts.borrow().is_some() {
            return Some(Vec::new());
        }
        let mut receipts = self.receipts.clone();
        // As bounded as the prefetch: the broker delivers no more without acks.
        let mut held: Vec<Incoming> = Vec::new();
        let mut look = tokio::time::interval(AWAY_LONGEST);
        loop {
            let are_known = async { receipts.wait_for(Option::is_some).await.is_ok() };
            tokio::select! {
                biased;
                are_known = are_known => {
                    for database in self.databases.all().iter() {
                        database.hearing.lock().begin_again(clock::instant());
                    }
                    return are_known.then_some(held);
                }
                _ = look.tick() => {
                    for message in held.extract_if(.., |message| message.arrived_at.elapsed() >= AWAY_LONGEST) {
                        message.ack.requeue().await;
                    }
                }
                Some(message) = incoming.recv() => held.push(message),
            }
        }
    }

    /// Sends a report to the line of its database. Returns it if no database has told yet that it has the shard: this
    /// node has just started, and the database does not answer.
    async fn place(&self, report: ReadReport, aside: &mpsc::Sender<ToQuarantine>) -> Option<ReadReport> {
        let shard = report.id.shard();
        if let Some((index, _)) = self.databases.of(shard) {
            drop(self.lines.0[index].send(report).await);
            return None;
        }
        if self.databases.places().shard_count().is_some_and(|count| count <= shard.number()) {
            drop(aside.send((report.message, format!("shard {shard} does not exist"))).await);
            return None;
        }
        Some(report)
    }

    /// Holds reports until the places of their shards are known, for [`AWAY_LONGEST`] at most: another node may know
    /// them. The broker keeps them, because they have no ack yet.
    async fn place_all(&self, mut waiting: mpsc::Receiver<ReadReport>, aside: mpsc::Sender<ToQuarantine>) {
        let mut changes = self.databases.places().changes();
        // As bounded as the channel: the broker delivers no more without acks.
        let mut held: Vec<ReadReport> = Vec::new();
        let mut look = tokio::time::interval(AWAY_LONGEST);
        loop {
            let coming = tokio::select! {
                _ = look.tick() => {
                    for report in held.extract_if(.., |report| report.has_waited(AWAY_LONGEST)) {
                        report.message.ack.requeue().await;
                    }
                    continue;
                }
                report = waiting.recv() => match report {
                    Some(report) => vec![report],
                    None => return,
                },
                _ = changes.changed() => std::mem::take(&mut held),
            };
            for report in coming {
                held.extend(self.place(report, &aside).await);
            }
        }
    }

    fn read(&self, message: &Incoming) -> Result<(TaskId, AttemptEvent, Option<String>), String> {
        if let Some(trouble) = &message.trouble {
            return Err(trouble.reason.clone());
        }
        match message.source {
            Source::Results => {
                let id = message.correlation_id.as_deref().ok_or("it has no correlation_id")?;
                let id: TaskId = id.parse().map_err(|_| format!("its correlation_id `{id}` is not a task id"))?;
                let attempt = message.attempt_header.ok_or("it has no header duetime-attempt with a whole number")?;
                let attempt = i32::try_from(attempt).map_err(|_| format!("attempt {attempt} does not exist"))?;
                let parsed = ResultBody::parse_message(&message.body);
                let (mut body, left_out) = parsed.map_err(|problem| problem.to_string())?;
                body.trace = message.headers[HEADER_TRACEPARENT].as_str().and_then(TraceContext::parse);
                let attempt = Attempt::new(attempt);
                let from = Some(self.sender(message, MessageId { id, attempt }));
                let event = AttemptEvent::Reported { attempt, body: Box::new(body), from };
                Ok((id, event, left_out.map(|why| why.detail)))
            }
            Source::Rejected => {
                let name = message.message_id.as_deref().ok_or("it has no message_id")?;
                let MessageId { id, attempt } = name.parse().map_err(|error: NotAMessageId| error.to_string())?;
                let event = AttemptEvent::Rejected {
                    attempt,
                    from: Some(self.sender(message, MessageId { id, attempt })),
                    reason: message.reason.clone().unwrap_or_else(|| "rejected".to_owned()),
                };
                Ok((id, event, None))
            }
        }
    }

    fn sender(&self, message: &Incoming, about: MessageId) -> Sender {
        let receipt = match message.headers[HEADER_RECEIPT].as_str() {
            None => Receipt::Absent,
            Some(receipt) => match &*self.receipts.borrow() {
                Some(keys) if keys.is_genuine(about, receipt) => Receipt::Genuine,
                _ => Receipt::Wrong,
            },
        };
        let queue = message.addressed_to.clone().ok().flatten();
        let voucher = Voucher { queue, receipt, user: message.user.clone() };
        Sender { place: 0, voucher }
    }

    /// Notes in the audit a message that nothing vouches for, with its sender.
    pub(super) fn note_refused(&self, message: &Incoming, why: &str) {
        let about = message.correlation_id.as_ref().or(message.message_id.as_ref());
        let target = format!("{} {}", message.source.text(), about.map_or("", String::as_str));
        self.audit.record(AuditEvent::refused_message(message.user.as_deref(), target, why));
    }

    /// Sets messages aside, as many together as have come meanwhile. If the database does not take some of them within
    /// `patience`, they go back to the broker, and so do those that wait behind them.
    pub(super) async fn set_all_aside(
        &self,
        database: &NodeDatabase<S>,
        mut line: mpsc::Receiver<ToQuarantine>,
        patience: Duration,
    ) {
        let mut batch = Vec::with_capacity(ASIDE_BATCH);
        while line.recv_many(&mut batch, ASIDE_BATCH).await > 0 {
            if self.set_aside(database, std::mem::take(&mut batch), patience).await {
                continue;
            }
            while let Ok((message, _)) = line.try_recv() {
                message.ack.requeue().await;
            }
        }
    }

    /// Keeps messages in the quarantine of a database and acks them. Those whose connection is gone come again, and so
    /// do all if the database does not take them within `patience`. Of what it has taken then, it gets a second copy.
    /// Returns whether it has taken them.
    async fn set_aside(&self, database: &NodeDatabase<S>, mut messages: Vec<ToQuarantine>, patience: Duration) -> bool {
        let _work = at_work();
        messages.retain(|(message, _)| !message.ack.is_lost());
        let Some((first, first_reason)) = messages.first() else { return true };
        let (count, first_source, first_reason) = (messages.len(), first.source.text(), first_reason.clone());
        let (mut copies, mut acks, mut troubles) = (Vec::with_capacity(count), Vec::with_capacity(count), Vec::new());
        for (message, reason) in messages {
            let (source, name) = (message.source.text(), name_of(&message));
            let Incoming { headers, body, trouble, ack, .. } = message;
            let mut copy = Quarantined::new(source, &reason, name.as_deref(), headers, body);
            if let Some(trouble) = trouble {
                troubles.push((trouble.kind, source, reason));
                copy = copy.with_properties(trouble.properties);
            }
            copies.push(copy);
            acks.push((source, ack));
        }
        if tokio::time::timeout(patience, database.set_aside.quarantine(&database.sql, copies)).await.is_err() {
            tracing::debug!(database = %database.name(), messages = count, "the quarantine table takes no writes; giving these messages back to the broker");
            database.leave_messages();
            for (_, ack) in acks {
                ack.requeue().await;
            }
            return false;
        }
        tracing::warn!(
            messages = count,
            source = first_source,
            reason = for_log(&first_reason),
            "stored messages that cannot be trusted or read in full in the quarantine table; the first one has this reason"
        );
        for (kind, source, reason) in troubles {
            database.set_aside.note(kind.into(), source, &reason);
        }
        for (source, ack) in acks {
            self.metrics.quarantined.with_label_values(&[source]).inc();
            ack.ack().await;
        }
        true
    }
}

/// The name of a message in the quarantine.
pub(super) fn name_of(message: &Incoming) -> Option<String> {
    message.message_id.clone().or_else(|| message.correlation_id.clone())
}
