//! A consumer that needs no code: it takes a queue's tasks and turns each into an HTTP call ([`callback`]) or a run of a command
//! ([`command`]), and answers for it by how that ended.
//!
//! Tasks wait in RabbitMQ, not here: as many are taken as may be worked on, and none while the target is down. What is not
//! answered comes again, to this relay or another. What an end means is decided in `common::relay`.

mod callback;
mod command;
mod guard;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    relay::{
        answer::Answer,
        breaker::{Breaker, Room},
    },
    wire::report::{ReportStatus, ResultBody},
};
use secrecy::SecretString;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::broker::{Handed, Reply, Worker};

pub use self::{
    callback::{Callback, Secret},
    command::Command,
};

/// Between two tries to connect: the first, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Reports that are out when the last call has ended get this long to be confirmed.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// What a relay does with tasks.
#[derive(Debug)]
pub enum Target {
    Callback(Callback),
    Command(Command),
}

#[derive(Debug)]
pub struct Settings {
    pub amqp_url: SecretString,
    pub queue: QueueName,
    pub target: Target,
    /// Calls at a time; as many tasks are taken from the broker.
    pub concurrency: u16,
    /// Failures in a row after which the target is left alone for a while.
    pub break_after: u32,
    /// Between two reports that a call is still at it.
    pub heartbeat: Duration,
    /// How long a stop waits for the calls that are out.
    pub grace: Duration,
}

/// How one call ended.
#[derive(Debug)]
struct Ended {
    report: ResultBody,
    /// It says nothing against the target.
    is_well: bool,
}

impl Ended {
    fn new(answer: Answer) -> Self {
        let report = ResultBody { retry_in_ms: answer.retry_in_ms, ..ResultBody::new(answer.status) };
        Self { report, is_well: answer.is_well }
    }

    /// The target could not even be asked.
    fn not_called(why: String) -> Self {
        let report = ResultBody { status_msg: Some(why), ..ResultBody::new(Answer::NONE.status) };
        Self { report, is_well: Answer::NONE.is_well }
    }
}

/// Runs until told to stop; connects again whenever the connection or the subscription goes.
pub async fn run(settings: Settings, stop: CancellationToken) {
    let mut relay = Relay { breaker: Breaker::new(settings.break_after), settings: Arc::new(settings) };
    let mut wait = FIRST_WAIT;
    loop {
        let since = Instant::now();
        let Err(reason) = relay.serve(&stop).await else { return };
        if since.elapsed() > LONGEST_WAIT {
            wait = FIRST_WAIT;
        }
        tracing::warn!(queue = %relay.settings.queue, reason, "no tasks can be taken; trying until there is a way");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))) => {}
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

struct Relay {
    settings: Arc<Settings>,
    breaker: Breaker,
}

/// The calls over one connection. Dropped, they are broken off: the broker gives their tasks to somebody else.
#[derive(Default)]
struct Calls {
    out: JoinSet<(Reply, Ended, Room)>,
    answers: JoinSet<()>,
}

impl Relay {
    /// Takes tasks over one connection until it is lost or told to stop.
    async fn serve(&mut self, stop: &CancellationToken) -> Result<(), String> {
        let mut worker = tokio::select! {
            worker = Worker::open(&self.settings.amqp_url, self.settings.queue.as_str()) => worker?,
            () = stop.cancelled() => return Ok(()),
        };
        let mut calls = Calls::default();
        self.take(&mut worker, &mut calls, stop).await?;
        worker.unsubscribe().await?;
        calls.finish(self.settings.grace).await;
        worker.close().await;
        Ok(())
    }

    async fn take(&mut self, worker: &mut Worker, calls: &mut Calls, stop: &CancellationToken) -> Result<(), String> {
        let mut prefetch = 0;
        loop {
            let room = self.breaker.room(Instant::now());
            self.subscribe(worker, room, &mut prefetch).await?;
            let probe_at = match room {
                Room::NoneUntil(until) => Some(until),
                Room::All | Room::Probe => None,
            };
            tokio::select! {
                handed = worker.next() => calls.begin(&self.settings, handed?, room),
                Some(ended) = calls.out.join_next(), if !calls.out.is_empty() => {
                    let (reply, ended, begun_as) = ended.expect("a call does not panic");
                    let now = Instant::now();
                    self.breaker.ended(begun_as, ended.is_well, now);
                    // Before the answer makes room for the next task.
                    self.subscribe(worker, self.breaker.room(now), &mut prefetch).await?;
                    calls.answer(reply, ended);
                }
                Some(_) = calls.answers.join_next(), if !calls.answers.is_empty() => {}
                () = reached(probe_at) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Has the broker hand out what there is room for.
    async fn subscribe(&self, worker: &mut Worker, room: Room, prefetch: &mut u16) -> Result<(), String> {
        let wanted = match room {
            Room::All => self.settings.concurrency,
            Room::Probe => 1,
            Room::NoneUntil(_) => 0,
        };
        // A lone place is all there is and a probe as well.
        if wanted == *prefetch {
            return Ok(());
        }
        let queue = &self.settings.queue;
        match room {
            Room::All => tracing::info!(%queue, calls = wanted, "taking tasks"),
            Room::Probe => tracing::info!(%queue, "one task shows whether the target is back"),
            Room::NoneUntil(_) => tracing::warn!(%queue, "the target is down: tasks are left to wait in RabbitMQ"),
        }
        *prefetch = wanted;
        if wanted == 0 { worker.unsubscribe().await } else { worker.subscribe(wanted).await }
    }
}

impl Calls {
    fn begin(&mut self, settings: &Arc<Settings>, handed: Handed, room: Room) {
        if handed.task.is_none() {
            tracing::warn!(queue = %settings.queue, "a message without a readable correlation id is no task; it is rejected");
            return handed.reply.reject();
        }
        let settings = Arc::clone(settings);
        self.out.spawn(async move {
            let ended = call(&settings, &handed).await;
            (handed.reply, ended, room)
        });
    }

    fn answer(&mut self, reply: Reply, ended: Ended) {
        self.answers.spawn(answer(reply, ended));
    }

    /// Waits for what is out, so long and no longer.
    async fn finish(mut self, grace: Duration) {
        let ended = async {
            while let Some(ended) = self.out.join_next().await {
                let (reply, ended, _) = ended.expect("a call does not panic");
                self.answers.spawn(answer(reply, ended));
            }
        };
        if tokio::time::timeout(grace, ended).await.is_err() {
            tracing::warn!(calls = self.out.len(), "calls are broken off; their tasks come again");
        }
        let answered = async { while self.answers.join_next().await.is_some() {} };
        // What is not confirmed by then comes again.
        let _ = tokio::time::timeout(REPORTED_WITHIN, answered).await;
    }
}

/// Calls the target, and says in a rhythm that it is still at it.
async fn call(settings: &Settings, handed: &Handed) -> Ended {
    let called = async {
        match &settings.target {
            Target::Callback(callback) => callback.call(settings.queue.as_str(), handed).await,
            Target::Command(command) => command.call(settings.queue.as_str(), handed).await,
        }
    };
    let beat = async {
        loop {
            tokio::time::sleep(settings.heartbeat).await;
            // One that is lost is made up for by the next.
            let _ = handed.reply.report(&ResultBody::new(ReportStatus::Running)).await;
        }
    };
    let ended = tokio::select! {
        ended = called => ended,
        () = beat => unreachable!("the rhythm has no end"),
    };
    let report = &ended.report;
    tracing::debug!(task = handed.task, attempt = handed.attempt, status = ?report.status, code = report.status_code, said = report.status_msg, "called");
    ended
}

/// Reports and acks; where nobody wants a report, an ack is a success and a rejection a failure.
async fn answer(reply: Reply, ended: Ended) {
    if !reply.wants_report() {
        match ended.report.status {
            ReportStatus::Succeeded => reply.ack().await,
            _ => reply.reject(),
        }
        return;
    }
    match reply.report(&ended.report).await {
        Ok(()) => reply.ack().await,
        Err(reason) => {
            tracing::warn!(reason, "a report is not known to be kept; its task comes again");
            reply.requeue();
        }
    }
}

async fn reached(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}
