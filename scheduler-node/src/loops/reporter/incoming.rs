//! What comes back from the broker: read, put in its database's line, applied, and acked once that is written.

use std::collections::HashSet;

use common::{
    ids::{Attempt, TaskId},
    task::TraceContext,
    wire::{
        amqp::{HEADER_TRACEPARENT, MessageId, NotAMessageId},
        report::{ReportStatus, ResultBody},
    },
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Happening, Reported, Reporter};
use crate::{
    broker::{Incoming, Source},
    loops::{
        aside::{Kept, Kind, why},
        retry::{Refused, until_done},
        site::Site,
    },
    store::{Error, quarantine::Quarantined},
};

/// Messages of one pass: one read and at most three writes a database for all of them.
const BATCH: usize = 500;

/// Messages that wait for one database: more than the broker hands out unacked, over both of its queues.
const WAITING: usize = 1_024;

/// As the log calls what is written here. The broker keeps what is not acked.
const WHAT: &str = "what consumers reported";

const STOPPING: Reported = Reported::Applied { stopping: true };

/// A message that was read: whom it is about, what it says, and its ack.
type Told = (TaskId, Happening, Incoming);

impl Reporter {
    /// What comes back from the broker, until told to stop. Each database has its own line, so that one that is away
    /// holds up no other's reports; so has what is set aside.
    pub async fn run(self, incoming: mpsc::Receiver<Incoming>, stop: CancellationToken) {
        let (lines, ends): (Vec<_>, Vec<_>) = self.sites.all().iter().map(|_| mpsc::channel(WAITING)).unzip();
        let applying = ends.into_iter().enumerate().map(|(index, end)| self.apply_all(index, end));
        let applying = futures::future::join_all(applying);
        let (aside, set_aside) = mpsc::channel(WAITING);
        let reading = self.read_all(incoming, lines, aside);
        tokio::select! {
            _ = async { tokio::join!(reading, applying, self.set_all_aside(set_aside)) } => {}
            () = stop.cancelled() => {}
        }
    }

    /// Reads every message and puts it in its line. What cannot be read is set aside, never requeued.
    async fn read_all(
        &self,
        mut incoming: mpsc::Receiver<Incoming>,
        lines: Vec<mpsc::Sender<Told>>,
        aside: mpsc::Sender<(Incoming, String)>,
    ) {
        while let Some(message) = incoming.recv().await {
            // The lines end after this, and the broker hands out fewer unacked messages than one of them holds: none ever waits here.
            match self.read(&message) {
                Ok((index, id, happening)) => drop(lines[index].send((id, happening, message)).await),
                Err(reason) => drop(aside.send((message, reason)).await),
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
        if let Some(trouble) = &message.trouble {
            return Err(trouble.reason.clone());
        }
        let (id, happening) = match message.source {
            Source::Results => {
                let id = message.correlation_id.as_deref().ok_or("it has no correlation_id")?;
                let id: TaskId = id.parse().map_err(|_| format!("its correlation_id `{id}` is not a task id"))?;
                let attempt = message.attempt_header.ok_or("it has no header duetime-attempt")?;
                let attempt = i32::try_from(attempt).map_err(|_| format!("attempt {attempt} does not exist"))?;
                let text = std::str::from_utf8(&message.body).map_err(|_| "its body is not UTF-8")?;
                let mut body = ResultBody::parse(text).map_err(|problem| problem.to_string())?;
                body.trace = message.headers[HEADER_TRACEPARENT].as_str().and_then(TraceContext::parse);
                (id, Happening::Reported { attempt: Attempt::new(attempt), body: Box::new(body) })
            }
            Source::Rejected => {
                let name = message.message_id.as_deref().ok_or("it has no message_id")?;
                let MessageId { id, attempt } = name.parse().map_err(|error: NotAMessageId| error.to_string())?;
                (
                    id,
                    Happening::Rejected {
                        attempt,
                        reason: message.reason.clone().unwrap_or_else(|| "rejected".to_owned()),
                    },
                )
            }
        };
        let (index, _) = self.sites.of(id.shard()).ok_or_else(|| format!("shard {} does not exist", id.shard()))?;
        Ok((index, id, happening))
    }

    /// Keeps what could not be read, one message after the other.
    async fn set_all_aside(&self, mut line: mpsc::Receiver<(Incoming, String)>) {
        let home = &self.sites.all()[0];
        while let Some((message, reason)) = line.recv().await {
            let source = source(&message);
            tracing::warn!(source, reason, "a message could not be read; it is kept in the quarantine table");
            let Incoming { message_id, headers, body, trouble, ack, .. } = message;
            let mut kept = Quarantined::new(source, &reason, message_id.as_deref(), headers, body);
            if let Some(trouble) = trouble {
                home.asides.note(trouble.kind.into(), source, &reason);
                kept = kept.with_properties(trouble.properties);
            }
            home.asides.quarantine(&home.database, kept).await;
            self.metrics.quarantined.with_label_values(&[source]).inc();
            ack.ack().await;
        }
    }

    /// What the database refuses of a message is kept. Its outcome counts without what came from outside; when that is refused too, the
    /// task is set aside: its deadline must not take a rejection for a success.
    async fn refused(&self, site: &Site, told: &Told, error: &Error) {
        let (id, happening, message) = told;
        site.asides.keep(&site.database, Kind::Report, kept(message), &why(error)).await;
        let bare = [happening.bare()];
        let done = until_done(WHAT, &bare, |bare| self.apply(site, vec![(*id, bare[0].clone())])).await;
        if let (Some(refused), Some(attempt)) = (done.refused.first(), happening.attempt()) {
            site.set_attempt_aside(Kind::Report, *id, attempt, &refused.error).await;
        }
    }

    /// What the database refuses of a message is kept. Its outcome counts without what came from outside; when that is refused too, the
    /// task is set aside: its deadline must not take a rejection for a success.
    async fn refused(&self, site: &Site, told: &Told, error: &Error) {
        let (id, happening, message) = told;
        site.asides.keep(&site.database, Kind::Report, kept(message), &why(error)).await;
        let bare = [happening.bare()];
        let done = until_done(WHAT, &bare, |bare| self.apply(site, vec![(*id, bare[0].clone())])).await;
        if let (Some(refused), Some(attempt)) = (done.refused.first(), happening.attempt()) {
            site.set_attempt_aside(Kind::Report, *id, attempt, &refused.error).await;
        }
    }

    async fn apply_and_ack(&self, index: usize, messages: Vec<Told>) {
        let site = &self.sites.all()[index];
        let done = until_done(WHAT, &messages, |part| {
            let happenings = part.iter().map(|(id, happening, _)| (*id, happening.clone())).collect();
            self.apply(site, happenings)
        })
        .await;
        for Refused { item, error } in &done.refused {
            self.refused(site, item, error).await;
        }
        let answers = done.answers.into_iter().flatten();
        let stopping: HashSet<TaskId> = answers.filter(|(_, answer)| *answer == STOPPING).map(|(id, _)| id).collect();
        for (id, happening, message) in messages {
            if stopping.contains(&id)
                && let Happening::Reported { attempt, body } = &happening
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

fn source(message: &Incoming) -> &'static str {
    match message.source {
        Source::Results => "results",
        Source::Rejected => "rejected",
    }
}

fn kept(message: &Incoming) -> Kept {
    let name = message.message_id.clone().or_else(|| message.correlation_id.clone());
    Kept { name, headers: message.headers.clone(), body: message.body.clone() }
}
