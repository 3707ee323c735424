//! What comes back from the broker: read, put in its database's line, applied, and acked once that is written.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use common::{
    ids::{Attempt, TaskId},
    task::{
        TraceContext,
        voucher::{Receipt, Voucher},
    },
    wire::{
        amqp::{HEADER_RECEIPT, HEADER_TRACEPARENT, MessageId, NotAMessageId},
        report::{ReportStatus, ResultBody},
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Happening, Reported, Reporter, Sender};
use crate::{
    audit::Deed,
    broker::{Incoming, Source},
};

/// Messages of one pass: one read and at most three writes a database for all of them.
const BATCH: usize = 500;

/// Messages that wait for one database: more than the broker hands out unacked, over both of its queues.
const WAITING: usize = 1_024;

/// Between two tries to write while the database is away. The broker keeps what is not acked.
const PAUSE: Duration = Duration::from_millis(500);

const BY_NAME: &str = "it came by the name of its queue, which `amqp.default_door` = `false` does not allow";

const STOPPING: Reported = Reported::Applied { stopping: true };

/// A message that was read: whom it is about, what it says, and its ack.
type Told = (TaskId, Happening, Incoming);

impl Reporter {
    /// What comes back from the broker, until told to stop. Each database has its own line, so that one that is away
    /// holds up nobody else's reports.
    pub async fn run(self, incoming: mpsc::Receiver<Incoming>, stop: CancellationToken) {
        let (lines, ends): (Vec<_>, Vec<_>) = self.sites.all().iter().map(|_| mpsc::channel(WAITING)).unzip();
        let applying = ends.into_iter().enumerate().map(|(index, end)| self.apply_all(index, end));
        tokio::select! {
            _ = async { tokio::join!(self.read_all(incoming, lines), futures::future::join_all(applying)) } => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reads every message and puts it in its line. What cannot be read is set aside, never requeued.
    async fn read_all(&self, mut incoming: mpsc::Receiver<Incoming>, lines: Vec<mpsc::Sender<Told>>) {
        // Until the keys are known no receipt can be told from a wrong one.
        if self.receipts.clone().wait_for(Option::is_some).await.is_err() {
            return;
        }
        while let Some(message) = incoming.recv().await {
            if !self.default_door && !message.is_by_exchange {
                self.refuse(message, BY_NAME.to_owned()).await;
                continue;
            }
            match self.read(&message) {
                // The lines end after this, and the broker hands out fewer unacked messages than one of them holds.
                Ok((index, id, happening)) => drop(lines[index].send((id, happening, message)).await),
                Err(reason) => self.set_aside(message, reason).await,
            }
        }
    }

    /// Applies and acks what one database's tasks are told, a batch at a time.
    async fn apply_all(&self, index: usize, mut line: mpsc::Receiver<Told>) {
        let mut batch = Vec::with_capacity(BATCH);
        while line.recv_many(&mut batch, BATCH).await > 0 {
            self.apply_and_ack(index, std::mem::take(&mut batch)).await;
        }
    }

    fn read(&self, message: &Incoming) -> Result<(usize, TaskId, Happening), String> {
        let (id, happening) = match message.source {
            Source::Results => {
                let id = message.correlation_id.as_deref().ok_or("it has no correlation_id")?;
                let id: TaskId = id.parse().map_err(|_| format!("its correlation_id `{id}` is not a task id"))?;
                let attempt = message.attempt_header.ok_or("it has no header duetime-attempt")?;
                let attempt = i32::try_from(attempt).map_err(|_| format!("attempt {attempt} does not exist"))?;
                let text = std::str::from_utf8(&message.body).map_err(|_| "its body is not UTF-8")?;
                let mut body = ResultBody::parse(text).map_err(|problem| problem.to_string())?;
                body.trace = message.headers[HEADER_TRACEPARENT].as_str().and_then(TraceContext::parse);
                let attempt = Attempt::new(attempt);
                let from = Some(self.sender(message, MessageId { id, attempt }));
                (id, Happening::Reported { attempt, body: Box::new(body), from })
            }
            Source::Rejected => {
                let name = message.message_id.as_deref().ok_or("it has no message_id")?;
                let MessageId { id, attempt } = name.parse().map_err(|error: NotAMessageId| error.to_string())?;
                (
                    id,
                    Happening::Rejected {
                        attempt,
                        from: Some(self.sender(message, MessageId { id, attempt })),
                        reason: message.reason.clone().unwrap_or_else(|| "rejected".to_owned()),
                    },
                )
            }
        };
        let (index, _) = self.sites.of(id.shard()).ok_or_else(|| format!("shard {} does not exist", id.shard()))?;
        Ok((index, id, happening))
    }

    fn sender(&self, message: &Incoming, about: MessageId) -> Sender {
        let receipt = match message.headers[HEADER_RECEIPT].as_str() {
            None => Receipt::Absent,
            Some(receipt) => match &*self.receipts.borrow() {
                Some(keys) if keys.is_genuine(about, receipt) => Receipt::Genuine,
                _ => Receipt::Wrong,
            },
        };
        let voucher = Voucher { queue: message.addressed_to.clone(), receipt, user: message.user.clone() };
        Sender { place: 0, voucher }
    }

    /// Quarantines a message that nothing vouches for, and notes who sent it.
    async fn refuse(&self, message: Incoming, why: String) {
        let about = message.correlation_id.as_ref().or(message.message_id.as_ref());
        let target = format!("{} {}", message.source.text(), about.map_or("", String::as_str));
        self.audit.note(Deed::refused_message(message.user.as_deref(), target, &why));
        self.set_aside(message, why).await;
    }

    async fn set_aside(&self, message: Incoming, reason: String) {
        let source = message.source.text();
        let home = &self.sites.all()[0].database;
        tracing::warn!(source, reason, "a message could not be read; it is kept in the quarantine table");
        while let Err(error) = home
            .quarantine_add(
                source,
                reason.clone(),
                message.message_id.clone(),
                message.headers.clone(),
                message.body.clone(),
            )
            .await
        {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "the quarantine could not be written; trying again"
            );
            tokio::time::sleep(PAUSE).await;
        }
        self.metrics.quarantined.with_label_values(&[source]).inc();
        message.ack.ack().await;
    }

    async fn apply_and_ack(&self, index: usize, mut messages: Vec<Told>) {
        for (place, (_, happening, _)) in messages.iter_mut().enumerate() {
            happening.number(place);
        }
        let site = &self.sites.all()[index];
        let mut told = false;
        let answers = loop {
            let happenings = messages.iter().map(|(id, happening, _)| (*id, happening.clone())).collect();
            match self.apply(site, happenings).await {
                Ok(answers) => break answers,
                Err(error) => {
                    if !told {
                        told = true;
                        tracing::warn!(database = %site.name(), messages = messages.len(), error = &error as &dyn std::error::Error, "what consumers reported could not be written; trying until it is");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        let stopping: HashSet<TaskId> =
            answers.iter().filter(|(_, answer)| *answer == STOPPING).map(|(id, _)| *id).collect();
        let mut untrusted: HashMap<usize, String> = HashMap::new();
        for (_, answer) in answers {
            if let Reported::Untrusted { place, why } = answer {
                untrusted.insert(place, why);
            }
        }
        for (place, (id, happening, message)) in messages.into_iter().enumerate() {
            if let Some(why) = untrusted.remove(&place) {
                self.refuse(message, why).await;
                continue;
            }
            if stopping.contains(&id)
                && let Happening::Reported { attempt, body, .. } = &happening
                && body.status == ReportStatus::Running
                && let Some(reply_to) = &message.reply_to
            {
                let order = serde_json::json!({ "id": id, "attempt": attempt, "stopping": true });
                message.ack.reply(reply_to, &id.to_string(), order.to_string().as_bytes());
            }
            message.ack.ack().await;
        }
    }
}
