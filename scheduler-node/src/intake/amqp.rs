//! Receives submissions over AMQP: reads a message, has the task stored, then acks the message.
//!
//! Many messages share one insert, and several inserts are under way at a time. A message that cannot be a task is
//! set aside with the reason. A message whose task was not stored, or may not have been, is given back after a
//! pause. One that fails alone as with a bug is kept here, tried once more after a while, and set aside if it fails
//! again: given back, it would come before all others for ever. If this loop stops, messages wait at the broker.

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    ids::QueueName,
    queue::{QueuePolicy, Settle},
    task::envelope::Text,
    wire::{Message, Problem, amqp::SUBMIT},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    audit::{Audit, AuditEvent},
    broker::{Broker, IntakeSource, Received},
    desk::{Desk, ReceiveOutcome},
    metrics::Metrics,
    store::Store,
    supervise::{at_work, spawn_child},
    working_set::{
        delay_rules::{DelayRules, RuleSet},
        failures::Failures,
        retry::{Refused, until_done},
        set_aside::{Kept, Kind, SetAside, for_log, why},
        suspects::BESIDE_OTHERS,
    },
};

/// The most messages of one pass, which share an insert.
const BATCH: usize = 500;

/// Passes under way at a time: one commits while the next is filled.
const PASSES: usize = 4;

/// The longest time in which a batch begins to set messages aside. The others are given back: the queue of messages
/// that were set aside may be silent, and each message would wait for it anew.
const ASIDE_WITHIN: Duration = Duration::from_secs(10);

/// The pause before messages that could not be stored are given back. Each pass waits that long, so that an outage
/// causes no busy loop.
const PAUSE: Duration = Duration::from_secs(1);

const BY_NAME: &str =
    "it came through the default exchange, which `amqp.default_door` = `false` forbids; publish to `duetime.in`";

const NO_RULE: &str = "its delay exchange is no longer in the configuration";

/// Whether the source of the message is still configured. A message of another one goes back to its queue, where it
/// waits until a node takes it again.
fn is_known(source: &IntakeSource, rules: &RuleSet) -> bool {
    match source {
        IntakeSource::Submit => true,
        IntakeSource::Delay(exchange) => rules.route(exchange).is_some(),
    }
}

/// The messages of a batch that are not stored, each with the reason.
#[derive(Default)]
struct Unstored {
    /// Those that cannot be tasks.
    unfit: Vec<(Received, String)>,
    /// Those that must be delivered again.
    again: Vec<(Received, String)>,
    /// Those for which alone the database fails, as with a bug.
    in_doubt: Vec<InDoubt>,
}

struct InDoubt {
    received: Received,
    why: String,
    /// Whether the database stored others meanwhile.
    others_pass: bool,
}

/// Why a message cannot be a task. A node may die after the commit and before its ack: the message comes again then,
/// and finds the task that it has become itself.
fn explained(problem: &Problem, message: &Message) -> String {
    if problem.slug() == "duplicate" && message.redelivered {
        return format!("{problem}; this message was delivered before, so that task may be its own");
    }
    problem.to_string()
}

#[derive(Clone, Debug)]
pub struct AmqpIntake {
    pub desk: Desk,
    pub broker: Broker,
    pub store: Store,
    pub delay_rules: DelayRules,
    /// Whether messages may arrive by the names of their queues.
    pub default_exchange: bool,
    pub audit: Audit,
    pub metrics: Arc<Metrics>,
    pub set_aside: SetAside,
    /// The passes that returned messages.
    pub returned: Failures,
    /// The passes that set messages aside, which cannot be tasks.
    pub unfit: Failures,
}

impl AmqpIntake {
    /// Runs until `stop`; passes that have begun are finished.
    pub async fn run(self, mut received: mpsc::Receiver<Received>, stop: CancellationToken) {
        let (naming, stopped) = (self.clone(), stop.clone());
        spawn_child(async move { stopped.run_until_cancelled(naming.keep_queues_named()).await });
        let (passes, asides) = (Arc::new(Semaphore::new(PASSES)), Arc::new(Semaphore::new(PASSES)));
        loop {
            let pass = Arc::clone(&passes).acquire_owned().await.expect("the semaphore is never closed");
            let mut batch = Vec::with_capacity(BATCH);
            tokio::select! {
                count = received.recv_many(&mut batch, BATCH) => if count == 0 { break },
                () = stop.cancelled() => break,
            }
            let (this, asides, stop) = (self.clone(), Arc::clone(&asides), stop.clone());
            spawn_child(async move { this.receive(batch, pass, &asides, &stop).await });
        }
        let all = u32::try_from(PASSES).expect("a small number");
        let _ = passes.acquire_many(all).await;
        let _ = asides.acquire_many(all).await;
    }

    /// Creates the queues under which messages of the delay exchanges are listed, also those of exchanges that are
    /// added later.
    async fn keep_queues_named(&self) {
        let mut rules = self.delay_rules.subscribe();
        loop {
            let queues = rules.borrow_and_update().queues().cloned().collect();
            self.name_queues(queues).await;
            if rules.changed().await.is_err() {
                return;
            }
        }
    }

    /// The confirm finishes a task of such a queue, even if the policy changes later.
    async fn name_queues(&self, queues: Vec<QueueName>) {
        let policy = QueuePolicy { settle: Settle::Confirm, ..QueuePolicy::default() };
        let home = self.store.home();
        let write = |part| home.queue_add(part, &policy, None);
        let done = until_done("the queues of the delay exchanges", &queues, write).await;
        for Refused { item, error } in done.refused {
            let kept = Kept { name: Some(item.to_string()), ..Kept::default() };
            self.set_aside.keep(home, Kind::Queue, kept, &why(&error)).await;
        }
    }

    /// Stores the tasks of a batch. A batch with messages to set aside ends its pass before that, so that the next
    /// tasks do not wait for it; `asides` bounds how many batches do so at a time.
    async fn receive(
        &self,
        batch: Vec<Received>,
        pass: OwnedSemaphorePermit,
        asides: &Arc<Semaphore>,
        stop: &CancellationToken,
    ) {
        let _work = at_work();
        let (troubled, whole): (Vec<_>, Vec<_>) = batch.into_iter().partition(|received| received.trouble.is_some());
        let (mut batch, mut barred) = (Vec::new(), Vec::new());
        for received in whole {
            match self.refusal(&received) {
                None => batch.push(received),
                Some(why) => barred.push((received, why)),
            }
        }
        let Unstored { mut unfit, mut again, in_doubt } = self.store(batch).await;
        let (suspects, others): (Vec<_>, Vec<_>) = in_doubt.into_iter().partition(|one| one.others_pass);
        again.extend(others.into_iter().map(|one| (one.received, one.why)));
        if !suspects.is_empty() {
            let (this, asides, stop) = (self.clone(), Arc::clone(asides), stop.clone());
            spawn_child(async move { this.try_apart(suspects, &asides, &stop).await });
        }
        for received in troubled {
            unfit.extend(self.reject_if_cut(received).await);
        }
        for (received, why) in barred {
            let user = received.message.properties.user_id.as_ref().and_then(Text::as_str);
            self.audit.record(AuditEvent::refused_message(user, SUBMIT.to_owned(), why));
            unfit.push((received, why.to_owned()));
        }
        if unfit.is_empty() || !again.is_empty() {
            self.give_back(again).await;
        }
        if unfit.is_empty() {
            if self.unfit.end() {
                tracing::info!("submitted messages are no longer set aside");
            }
            return;
        }
        drop(pass);
        let until = Instant::now() + ASIDE_WITHIN;
        let _turn = tokio::time::timeout_at(until.into(), asides.acquire()).await;
        let again = self.set_all_aside(unfit, until).await;
        if !again.is_empty() {
            self.give_back(again).await;
        }
    }

    /// Stores the tasks of messages, and acks those that are stored.
    async fn store(&self, batch: Vec<Received>) -> Unstored {
        let mut unstored = Unstored::default();
        let rules = self.delay_rules.now();
        let (batch, unknown): (Vec<Received>, Vec<Received>) =
            batch.into_iter().partition(|received| is_known(&received.source, &rules));
        unstored.again.extend(unknown.into_iter().map(|received| (received, NO_RULE.to_owned())));
        let route = |received: &Received| match &received.source {
            IntakeSource::Submit => None,
            IntakeSource::Delay(exchange) => rules.route(exchange),
        };
        let messages: Vec<_> = batch.iter().map(|received| (route(received), &received.message)).collect();
        let taken = self.desk.receive(&messages).await;
        fail::fail_point!("after_receive", |_| std::process::abort());
        for (received, taken) in batch.into_iter().zip(taken) {
            match taken {
                ReceiveOutcome::Durable => received.ack.ack().await,
                ReceiveOutcome::Refused(problem) => {
                    let why = explained(&problem, &received.message);
                    unstored.unfit.push((received, why));
                }
                ReceiveOutcome::Again(why) => unstored.again.push((received, why)),
                ReceiveOutcome::InDoubt { why, others_pass } => {
                    unstored.in_doubt.push(InDoubt { received, why, others_pass });
                }
            }
        }
        unstored
    }

    /// Tries messages once more, each by itself, after the time in which a trouble of the server ends. One that fails
    /// again as with a bug is set aside: others passed beside its first try. The prefetch bounds how many wait here.
    /// After `stop` they come again by themselves, once the connection is closed.
    async fn try_apart(&self, suspects: Vec<InDoubt>, asides: &Semaphore, stop: &CancellationToken) {
        if stop.run_until_cancelled(tokio::time::sleep(BESIDE_OTHERS)).await.is_none() {
            return;
        }
        let _turn = asides.acquire().await;
        let work = at_work();
        let (mut unfit, mut again) = (Vec::new(), Vec::new());
        for InDoubt { received, why, .. } in suspects {
            work.beat();
            // With its connection it comes again by itself.
            if received.ack.is_lost() {
                continue;
            }
            // Once one has to come again, the database is away.
            if stop.is_cancelled() || !again.is_empty() {
                again.push((received, why));
                continue;
            }
            let unstored = self.store(vec![received]).await;
            unfit.extend(unstored.unfit);
            again.extend(unstored.again);
            for InDoubt { received, why, .. } in unstored.in_doubt {
                let why = format!("the database failed for this task twice, and stored others beside it: {why}");
                self.set_aside.note(Kind::Submission, &format!("{:?}", received.source), &why);
                unfit.push((received, why));
            }
        }
        again.extend(self.set_all_aside(unfit, Instant::now() + ASIDE_WITHIN).await);
        if !again.is_empty() {
            self.give_back(again).await;
        }
    }

    /// Rejects a message that did not arrive whole. Returns one that is only unreadable, with the reason.
    async fn reject_if_cut(&self, received: Received) -> Option<(Received, String)> {
        let trouble = received.trouble.clone()?;
        self.set_aside.note(trouble.kind.into(), &format!("{:?}", received.source), &trouble.reason);
        if trouble.is_cut {
            // Only the broker has the whole message. After a reject it moves the message to the queue where
            // set-aside messages go.
            tracing::debug!(door = ?received.source, "rejected a message that is cut; the broker sets it aside");
            self.metrics.submissions_invalid.inc();
            received.ack.reject().await;
            return None;
        }
        Some((received, trouble.reason))
    }

    /// Why a message may not come the way it came. Without `amqp.default_door` a task must come through `duetime.in`; a
    /// delay exchange is a source of its own.
    fn refusal(&self, received: &Received) -> Option<&'static str> {
        let is_by_name = received.source == IntakeSource::Submit && received.message.addressed_to.is_none();
        received.astray.or_else(|| (is_by_name && !self.default_exchange).then_some(BY_NAME))
    }

    /// Sets messages aside that cannot be tasks, and begins none at or after `until`. Returns those that must be
    /// delivered again, with the reason.
    async fn set_all_aside(&self, unfit: Vec<(Received, String)>, until: Instant) -> Vec<(Received, String)> {
        let (mut again, mut messages, mut first) = (Vec::new(), 0_usize, None);
        for (received, reason) in unfit {
            if Instant::now() >= until {
                again.push((received, "messages before it took too long to set aside".to_owned()));
                continue;
            }
            if let Err(why) = self.broker.set_aside(&received, &reason).await {
                again.push((received, why));
                continue;
            }
            let (door, logged) = (&received.source, for_log(&reason));
            tracing::debug!(?door, reason = logged, "set aside a message that cannot be a task");
            self.metrics.submissions_invalid.inc();
            messages += 1;
            first.get_or_insert_with(|| (received.source.clone(), reason));
            received.ack.ack().await;
        }
        if let Some((door, reason)) = first
            && self.unfit.begin()
        {
            let reason = for_log(&reason);
            tracing::warn!(
                messages,
                ?door,
                reason,
                "set messages aside that cannot be tasks, and maybe more; the first one has this reason"
            );
        }
        again
    }

    async fn give_back(&self, again: Vec<(Received, String)>) {
        let Some((_, why)) = again.first() else {
            if self.returned.end() {
                tracing::info!("submitted messages are no longer returned to the broker");
            }
            return;
        };
        if self.returned.begin() {
            tracing::warn!(why, "submitted messages are returned to the broker, again and again until they are taken");
        }
        tracing::debug!(messages = again.len(), why, "returned submitted messages to the broker for redelivery");
        tokio::time::sleep(PAUSE).await;
        for (received, _) in again {
            received.ack.requeue().await;
        }
    }
}
