//! A consumer that needs no code. It takes a queue's tasks, turns each into an HTTP call ([`callback`]) or a
//! run of a command ([`command`]), and reports how that ended.
//!
//! Tasks wait in RabbitMQ, not here: the relay takes as many as it may work on, and none while the target is
//! down. The end of a call is kept until the broker has confirmed the report ([`works`]): the relay repeats the
//! report of finished work, never the work. `common::relay` decides what an end means.

mod callback;
mod command;
mod finished_call;
mod guard;
mod identity;
mod place;
mod reporting;
#[cfg(test)]
mod tests;
mod works;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    outcome::Outcome,
    relay::breaker::{Breaker, Room},
    task::report::{ReportStatus, ResultBody},
};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    finished_call::FinishedCall,
    place::place,
    reporting::{RightMissing, answer, note_right},
    works::{Key, Known, Works},
};
use crate::{
    broker::{Handed, Login, ReportRefusal, Reports, Task, Worker},
    failures::Failures,
};

pub use self::{
    callback::{Callback, Secret},
    command::Command,
    identity::{Identity, close_to_others},
};

/// The first and the longest pause between two tries to connect.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The most characters of a failure's reason in a warning: enough for its beginning, and a target chooses the text.
const REASON_CHARS: usize = 1_000;
/// The most tasks taken at a time to probe a target that may be down.
const PROBES: u16 = 1;
/// The time that unconfirmed reports get after the end of the last call.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// The way in which a relay handles tasks.
#[derive(Debug)]
pub enum Target {
    Callback(Callback),
    Command(Command),
}

#[derive(Debug)]
pub struct Settings {
    pub amqp: Login,
    pub queue: QueueName,
    pub target: Target,
    /// The most calls at a time, and the most tasks taken from the broker.
    pub concurrency: u16,
    /// The failures in a row after which the relay leaves the target alone for a while.
    pub break_after: u32,
    /// The pause between two reports that a call is still running.
    pub heartbeat: Duration,
    /// The longest time for which a stop waits for running calls.
    pub grace: Duration,
}

/// Runs until told to stop. `cut_off` ends it at once, with its calls: commands are killed with all that they started.
pub async fn run(settings: Settings, stop: CancellationToken, cut_off: CancellationToken) {
    let mut relay = Relay::new(settings);
    tokio::select! {
        () = relay.run(&stop) => {}
        () = cut_off.cancelled() => {}
    }
    // Returns when each call that is left has been dropped, which kills its command.
    relay.calls.shutdown().await;
}

/// The state that outlives connections.
struct Relay {
    settings: Arc<Settings>,
    breaker: Breaker,
    works: Works,
    /// Each ends with its work and the room that it was begun with. `None`: it was given up before it began.
    calls: JoinSet<Option<(Key, FinishedCall, Room)>>,
    /// Limits the calls at a time, also when tasks are taken again after the loss of a connection.
    places: Arc<Semaphore>,
    /// Reports on their way. Each ends when it is confirmed (`true`) or refused.
    answers: JoinSet<(Key, bool)>,
    /// The handle for reports over the present connection.
    reports: watch::Sender<Option<Reports>>,
    right_missing: RightMissing,
    /// The reason of the present outage that the log has. Most tries of an outage fail for the same one.
    logged: Option<String>,
    /// Why the last call failed that counts for the breaker.
    fault: String,
    /// Failures that say nothing against the target. Each call is in the log at level debug.
    failures: Failures,
}

impl Relay {
    fn new(settings: Settings) -> Self {
        Self {
            breaker: Breaker::new(settings.break_after),
            works: Works::default(),
            calls: JoinSet::new(),
            places: Arc::new(Semaphore::new(settings.concurrency.into())),
            answers: JoinSet::new(),
            reports: watch::channel(None).0,
            right_missing: Arc::new(watch::channel(false).0),
            logged: None,
            fault: String::new(),
            failures: Failures::default(),
            settings: Arc::new(settings),
        }
    }

    /// Runs until told to stop. Reconnects whenever the connection or the subscription is lost.
    async fn run(&mut self, stop: &CancellationToken) {
        let mut wait = FIRST_WAIT;
        loop {
            let since = Instant::now();
            let Err(reason) = self.serve(stop).await else { return };
            // Another relay may take the messages of calls that wait, before these have a place.
            self.works.forget_waiting();
            if since.elapsed() > LONGEST_WAIT {
                wait = FIRST_WAIT;
            }
            let queue = &self.settings.queue;
            if self.logged.as_ref() == Some(&reason) {
                tracing::debug!(%queue, reason, "the next try failed too; retrying");
            } else if !stop.is_cancelled() {
                tracing::warn!(%queue, reason, "no tasks can be received; retrying");
                self.logged = Some(reason);
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.pass(wait.mul_f64(rand::random_range(0.5..1.0))) => {}
            }
            if stop.is_cancelled() {
                self.finish().await;
                if let Some(last) = self.reports.send_replace(None) {
                    let _ = last.end().await;
                }
                return;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Takes tasks over one connection until it is lost or a stop is requested.
    async fn serve(&mut self, stop: &CancellationToken) -> Result<(), String> {
        let mut worker = tokio::select! {
            worker = Worker::open(&self.settings.amqp, self.settings.queue.as_str()) => worker?,
            () = stop.cancelled() => return Err("stop requested".to_owned()),
        };
        if let Some(former) = self.reports.send_replace(Some(worker.reports())) {
            former.end();
        }
        let since = Instant::now();
        let taken = self.take(&mut worker, stop).await;
        if since.elapsed() > LONGEST_WAIT {
            self.logged = None;
        }
        taken?;
        worker.unsubscribe().await?;
        self.finish().await;
        worker.close().await;
        Ok(())
    }

    async fn take(&mut self, worker: &mut Worker, stop: &CancellationToken) -> Result<(), String> {
        let mut prefetch = 0;
        loop {
            let room = self.breaker.room(Instant::now());
            self.subscribe(worker, room, &mut prefetch).await?;
            let probe_at = match room {
                Room::NoneUntil(until) => Some(until),
                Room::All | Room::Probe => None,
            };
            tokio::select! {
                handed = worker.next() => {
                    let known = self.begin(handed?, room).await;
                    if known == Some(Known::Unanswered) && room == Room::Probe {
                        // The message keeps the only place of this subscription. A new one has a place for the probe.
                        worker.subscribe(PROBES).await?;
                    }
                }
                Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                    let Some((key, ended, begun_as)) = ended.expect("a call does not panic") else { continue };
                    let now = Instant::now();
                    self.judge(&key, &ended, begun_as, now);
                    // The subscription changes before the answer makes room for the next task.
                    self.subscribe(worker, self.breaker.room(now), &mut prefetch).await?;
                    self.ended(key, ended).await;
                }
                Some(reported) = self.answers.join_next(), if !self.answers.is_empty() => {
                    self.reported(reported).await;
                }
                () = reached(probe_at) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Sets the prefetch to the room that the breaker leaves.
    async fn subscribe(&self, worker: &mut Worker, room: Room, prefetch: &mut u16) -> Result<(), String> {
        let calls = match room {
            Room::All => self.settings.concurrency,
            Room::Probe => PROBES,
            Room::NoneUntil(_) => 0,
        };
        // With a concurrency of 1, full service and a probe have the same prefetch.
        if calls == *prefetch {
            return Ok(());
        }
        let queue = &self.settings.queue;
        match room {
            Room::All => tracing::info!(%queue, calls, "receiving tasks"),
            Room::Probe => tracing::info!(%queue, "probing the target with one task"),
            Room::NoneUntil(_) => {
                tracing::warn!(%queue, reason = self.fault, "the target is down; its tasks wait in RabbitMQ");
            }
        }
        *prefetch = calls;
        if calls == 0 { worker.unsubscribe().await } else { worker.subscribe(calls).await }
    }

    /// Begins the work of a message. `None`: the message is rejected.
    async fn begin(&mut self, mut handed: Handed, room: Room) -> Option<Known> {
        let queue = &self.settings.queue;
        if !handed.task.is_whole {
            tracing::warn!(%queue, "rejected a message that cannot be read");
            handed.reply.reject();
            return None;
        }
        // A receiver tells calls apart by their ids.
        let id = handed.task.id.get_or_insert_with(|| Uuid::now_v7().to_string()).clone();
        if handed.task.is_foreign {
            tracing::warn!(%queue, task = id, "rejected a message that is not of this cluster: its reply_to is \
                                               another queue");
            handed.reply.reject();
            return None;
        }
        let key = self.works.key(id, handed.task.attempt);
        let Handed { task, reply } = handed;
        let (give_up, given_up) = oneshot::channel();
        let known = self.works.take(&key, task.subject.clone(), reply, room, give_up).await;
        if known != Known::New {
            tracing::debug!(task = key.task, attempt = key.attempt, "received before; not called again");
            return Some(known);
        }
        let (settings, places) = (Arc::clone(&self.settings), Arc::clone(&self.places));
        let reports = self.reports.subscribe();
        self.calls.spawn(async move {
            let ended = call(&settings, &places, &task, &reports, given_up).await?;
            Some((key, ended, room))
        });
        Some(known)
    }

    /// Tells the breaker how a call ended, and keeps or logs why it failed.
    fn judge(&mut self, key: &Key, ended: &FinishedCall, begun_as: Room, now: Instant) {
        self.breaker.ended(begun_as, ended.is_healthy, now);
        if ended.report.status == ReportStatus::Succeeded {
            return;
        }
        let reason: String = ended.report.status_msg.iter().flat_map(|said| said.chars()).take(REASON_CHARS).collect();
        if ended.is_healthy {
            if self.failures.begin() {
                let queue = &self.settings.queue;
                tracing::warn!(%queue, task = key.task, reason, "an attempt failed; the log has others at level debug");
            }
        } else {
            self.fault = reason;
        }
    }

    async fn ended(&mut self, key: Key, ended: FinishedCall) {
        if let Some(subject) = self.works.ended(&key, ended.report.status).await {
            let (reports, right_missing) = (self.reports.subscribe(), Arc::clone(&self.right_missing));
            self.answers.spawn(answer(key, subject, ended.report, reports, right_missing));
        }
    }

    async fn reported(&mut self, reported: Result<(Key, bool), JoinError>) {
        let (key, is_confirmed) = reported.expect("a report does not panic");
        self.works.reported(&key, is_confirmed).await;
    }

    /// Collects ended calls and ended reports while there is no connection.
    async fn pass(&mut self, time: Duration) {
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return,
                Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                    let Some((key, ended, begun_as)) = ended.expect("a call does not panic") else { continue };
                    self.judge(&key, &ended, begun_as, Instant::now());
                    self.ended(key, ended).await;
                }
                Some(reported) = self.answers.join_next(), if !self.answers.is_empty() => {
                    self.reported(reported).await;
                }
            }
        }
    }

    /// Waits for running calls and unconfirmed reports, up to the time limit of each.
    async fn finish(&mut self) {
        let grace = self.settings.grace;
        let ended = async {
            while !self.calls.is_empty() {
                tokio::select! {
                    Some(ended) = self.calls.join_next() => {
                        let Some((key, ended, _)) = ended.expect("a call does not panic") else { continue };
                        self.ended(key, ended).await;
                    }
                    // Until its ack, a task would be done again after the loss of the connection.
                    Some(reported) = self.answers.join_next(), if !self.answers.is_empty() => {
                        self.reported(reported).await;
                    }
                }
            }
        };
        if tokio::time::timeout(grace, ended).await.is_err() {
            tracing::warn!(calls = self.calls.len(), "cut calls off; their tasks are delivered again");
        }
        // The right to report may have been granted in the pauses.
        note_right(&self.right_missing);
        let answered = async {
            while let Some(reported) = self.answers.join_next().await {
                self.reported(reported).await;
            }
        };
        if tokio::time::timeout(REPORTED_WITHIN, answered).await.is_err() {
            tracing::warn!(reports = self.answers.len(), "reports are unconfirmed; their tasks are delivered again");
        }
    }
}

/// Calls the target once there is a place, and reports at regular intervals that the attempt is still running. `None`:
/// the call was given up before it began.
async fn call(
    settings: &Settings,
    places: &Semaphore,
    handed: &Task,
    reports: &watch::Receiver<Option<Reports>>,
    given_up: oneshot::Receiver<()>,
) -> Option<FinishedCall> {
    let called = async {
        let _place = place(places, given_up).await?;
        Some(match &settings.target {
            Target::Callback(callback) => callback.call(settings.queue.as_str(), handed).await,
            Target::Command(command) => command.call(settings.queue.as_str(), handed).await,
        })
    };
    let beat = async {
        loop {
            tokio::time::sleep(settings.heartbeat).await;
            let current = reports.borrow().clone();
            if let (Some(subject), Some(current)) = (&handed.subject, current) {
                // The next report makes up for a lost one.
                let sent = current.send(subject, &ResultBody::new(ReportStatus::Running)).await;
                if let Outcome::Refused(ReportRefusal::OfReport(_)) = sent {
                    return std::future::pending().await;
                }
            }
        }
    };
    let ended = tokio::select! {
        ended = called => ended?,
        () = beat => unreachable!("the rhythm has no end"),
    };
    let report = &ended.report;
    tracing::debug!(task = handed.id, attempt = handed.attempt, status = ?report.status, code = report.status_code, said = report.status_msg, "called");
    Some(ended)
}

async fn reached(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
