//! Decides the schedules of a look: one statement writes the decisions about many of them.
//!
//! The statement skips a schedule that another transaction holds. Mostly this is one statement of another node. The
//! first of these schedules is written by a statement of its own, which waits for it, and the others together after it.
//! What is held still, as by an open transaction, this node leaves alone for a while: waits for each would make the
//! look last long, and the other schedules wait for its end. After a wait in vain it waits for none for some seconds.
//! What the database answers with an error is written by a statement of its own, unless it refuses the values of one
//! schedule. What has waited in vain for another lock is tried once more in halves.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::{
    ids::{ScheduleName, TaskId},
    schedule::{Fire, FireDecision},
    shard::route::bound_to,
    time::UnixMicros,
};
use futures::{StreamExt, stream};

use super::{Firer, HOLD, KEPT_MOST, NO_WAIT_FOR, POSTPONE, POSTPONE_REFUSED, POSTPONE_UNREADABLE, STATEMENTS_AT_ONCE};
use crate::{
    store::{
        Error, Fault,
        schedules::{DueSchedule, DueSchedules, Revision, ScheduleRecord, ScheduleTurn, TurnOutcome, Unreadable},
    },
    working_set::{
        retry::{Refused, Tried, halves, try_each},
        set_aside::{Kept, Kind, why},
    },
};

/// The most schedules, and the most fire times, that one statement decides. One schedule may have as many fire times,
/// and is alone then. With the largest payloads the statement writes 6 MiB.
const DECIDED_TOGETHER: usize = 100;

/// A schedule that was looked at.
#[derive(Debug)]
struct Decided {
    name: ScheduleName,
    /// When it is due again, if that is known.
    wake_at: Option<UnixMicros>,
    /// Fire times that came while no node looked.
    missed: u64,
}

/// What became of a schedule. An error is the revision of one whose decision failed, and how long this node leaves it
/// alone.
type Written = Result<Decided, (Revision, Duration)>;

/// What one statement made of each decision.
type Outcomes<'a> = Vec<(&'a Turn, TurnOutcome)>;

/// A decision, with the ids of the tasks to make.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) record: ScheduleRecord,
    pub(super) decision: FireDecision,
    pub(super) ids: Vec<TaskId>,
}

impl Turn {
    fn asked(&self) -> ScheduleTurn<'_> {
        let ScheduleRecord { name, revision, .. } = &self.record;
        ScheduleTurn { name, read: *revision, decision: &self.decision, ids: &self.ids }
    }

    fn decided(&self, is_written: bool) -> Decided {
        let (name, wake_at) = (self.record.name.clone(), self.decision.wake_at);
        Decided { name, wake_at, missed: if is_written { self.decision.missed } else { 0 } }
    }
}

/// A schedule that this node cannot decide at the moment. `unreadable`: why this version cannot read it; `None`: this
/// node does not know whether its last task is unfinished.
#[derive(Debug)]
struct Undecided {
    name: ScheduleName,
    revision: Revision,
    unreadable: Option<String>,
}

impl Firer {
    /// Decides schedules. Returns when the first of them is due again.
    pub(super) async fn decide_all(&self, due: DueSchedules) -> Option<UnixMicros> {
        let (now, arrived) = (due.now, due.arrived);
        let (mut readable, mut undecided) = (Vec::with_capacity(due.schedules.len()), Vec::new());
        for schedule in due.schedules {
            match schedule {
                Ok(schedule) => readable.push(schedule),
                Err(Unreadable { name, revision, why }) => {
                    undecided.push(Undecided { name, revision, unreadable: Some(why.to_string()) });
                }
            }
        }
        // Those whose last tasks are not known yet delay no other.
        let looked_at: Vec<(Vec<Written>, Vec<Undecided>)> = self
            .with_last_tasks(readable)
            .ready_chunks(DECIDED_TOGETHER)
            .map(|known| self.decide_together(known, now, arrived))
            .buffer_unordered(STATEMENTS_AT_ONCE)
            .collect()
            .await;
        let mut written: Vec<Written> = Vec::new();
        for (of_group, left) in looked_at {
            written.extend(of_group);
            undecided.extend(left);
        }
        // The next look reads those behind them. The back-off begins only now: failures may be slow, and the first
        // ones would stand in the way again.
        for (revision, during) in written.iter().filter_map(|written| written.as_ref().err()) {
            self.leave_alone(*revision, *during);
        }
        self.leave_undecided(&undecided).await;
        let missed: Vec<&Decided> = written.iter().flatten().filter(|decided| decided.missed > 0).collect();
        if let Some(first) = missed.first() {
            let (schedules, fire_times) = (missed.len(), missed.iter().map(|decided| decided.missed).sum::<u64>());
            tracing::warn!(schedules, fire_times, first = %first.name, "fire times were missed and are not made up");
        }
        written.iter().flatten().filter_map(|decided| decided.wake_at).min()
    }

    /// Decides schedules. Each comes with whether its last task is unfinished, or with `None` where that cannot be
    /// learned now. Returns also those that are undecided.
    async fn decide_together(
        &self,
        known: Vec<(DueSchedule, Option<bool>)>,
        now: UnixMicros,
        arrived: Instant,
    ) -> (Vec<Written>, Vec<Undecided>) {
        // The database that told of the schedules has told the number before.
        let Some(shard_count) = self.store.places().shard_count() else { return Default::default() };
        let (mut turns, mut undecided) = (Vec::with_capacity(known.len()), Vec::new());
        for (due, unfinished) in known {
            match self.decide(due.record, unfinished, now.plus(arrived.elapsed()), shard_count) {
                Ok(turn) => turns.push(turn),
                Err(one) => undecided.push(one),
            }
            // One that has missed very many fire times takes two milliseconds.
            tokio::task::yield_now().await;
        }
        // What one group waits for delays no other.
        let writing: Vec<_> = in_groups(turns).into_iter().map(|group| self.write_all(group)).collect();
        let written: Vec<Vec<Written>> = stream::iter(writing).buffer_unordered(STATEMENTS_AT_ONCE).collect().await;
        (written.into_iter().flatten().collect(), undecided)
    }

    /// Leaves the schedules that this node cannot decide to the others.
    async fn leave_undecided(&self, undecided: &[Undecided]) {
        let (mut unreadable, mut unknown) = (Vec::new(), Vec::new());
        for Undecided { name, revision, unreadable: why } in undecided {
            match why {
                Some(why) => {
                    self.tell_unreadable(name, why);
                    unreadable.push((name, *revision));
                }
                None => unknown.push((name, *revision)),
            }
        }
        self.leave_to_others(&unknown, POSTPONE).await;
        self.leave_to_others(&unreadable, POSTPONE_UNREADABLE).await;
    }

    /// Decides a schedule, unless it is unknown whether its last task is unfinished.
    fn decide(
        &self,
        record: ScheduleRecord,
        unfinished: Option<bool>,
        now: UnixMicros,
        shard_count: u16,
    ) -> Result<Turn, Undecided> {
        let undecided = |unreadable| Undecided { name: record.name.clone(), revision: record.revision, unreadable };
        let calendar = record.rules.when.calendar().map_err(|error| undecided(Some(error.to_string())))?;
        let unfinished = unfinished.ok_or_else(|| undecided(None))?;
        let decision = FireDecision::decide(&record.rules, &calendar, record.standing, unfinished, now);
        let ids = decision.fires.iter().map(|fire| self.mint(&record, *fire, shard_count)).collect();
        Ok(Turn { record, decision, ids })
    }

    /// Writes decisions of one statement, and makes their tasks at once.
    async fn write_all(&self, turns: Vec<Turn>) -> Vec<Written> {
        let (mut written, mut alone) = (Vec::with_capacity(turns.len()), Vec::new());
        let may_wait = self.waits_for_holders();
        // One has nothing to gain from a statement that does not wait, unless the wait is likely in vain.
        if turns.len() > 1 || !may_wait {
            let (mut held, failed) = self.write_together(turns, &mut written).await;
            alone.extend(failed);
            // Some of them may have waited in vain meanwhile, for a lock that a trigger waits for.
            let may_wait = self.waits_for_holders();
            if may_wait && held.len() > 2 {
                // Mostly one statement of another node holds all of them. The first waits for its end.
                written.push(self.write(held.remove(0)).await);
                let (still_held, failed) = self.write_together(held, &mut written).await;
                alone.extend(failed);
                held = still_held;
            } else if may_wait {
                alone.append(&mut held);
            }
            if let Some(first) = held.first() {
                tracing::debug!(schedules = held.len(), first = %first.record.name, "transactions hold schedules; retrying");
            }
            written.extend(held.iter().map(|turn| Err((turn.record.revision, POSTPONE))));
        } else {
            alone = turns;
        }
        let alone: Vec<_> = alone.into_iter().map(|turn| self.write(turn)).collect();
        written.extend(stream::iter(alone).buffer_unordered(STATEMENTS_AT_ONCE).collect::<Vec<_>>().await);
        written
    }

    /// Writes decisions that no other transaction is in the way of. Returns those that are held, and those that failed
    /// with others.
    async fn write_together(&self, turns: Vec<Turn>, written: &mut Vec<Written>) -> (Vec<Turn>, Vec<Turn>) {
        let tried = self.try_together(&turns).await;
        if !tried.answers.is_empty() {
            self.note_answer();
        }
        let outcomes: Outcomes<'_> = tried.answers.into_iter().flatten().collect();
        let with =
            |asked: TurnOutcome| outcomes.iter().filter(move |(_, outcome)| *outcome == asked).map(|(turn, _)| *turn);
        self.take_effect(&with(TurnOutcome::Written).collect::<Vec<_>>());
        written.extend(with(TurnOutcome::Written).map(|turn| Ok(turn.decided(true))));
        written.extend(with(TurnOutcome::Overtaken).map(|turn| Ok(overtaken(turn))));
        let held: BTreeSet<ScheduleName> = with(TurnOutcome::Held).map(|turn| turn.record.name.clone()).collect();
        let mut failed = BTreeSet::new();
        for Refused { item, error } in tried.refused {
            written.push(Ok(self.refused(item, &error).await));
        }
        for (part, error) in tried.left {
            if part.len() > 1 && error.sqlstate().is_some() && !error.has_waited_in_vain() {
                failed.extend(part.iter().map(|turn| turn.record.name.clone()));
            } else {
                written.extend(part.iter().map(|turn| Err(self.failed(turn, &error))));
            }
        }
        let left =
            turns.into_iter().filter(|turn| held.contains(&turn.record.name) || failed.contains(&turn.record.name));
        left.partition(|turn| held.contains(&turn.record.name))
    }

    /// Tries decisions together. Where they wait in vain although the statement skips what is held, the lock is mostly
    /// one that a trigger on one of the schedules waits for. So they are tried once more in halves. Each look leaves
    /// the half with that schedule alone for some seconds. Where no others are due by then, the next one divides it
    /// further.
    async fn try_together<'a>(&self, turns: &'a [Turn]) -> Tried<'a, Turn, Outcomes<'a>> {
        let mut tried = try_each(turns, |part| self.turn_all(part)).await;
        let waited = |(part, error): &(&'a [Turn], Error)| part.len() > 1 && error.has_waited_in_vain();
        let (late, left): (Vec<_>, Vec<_>) = std::mem::take(&mut tried.left).into_iter().partition(waited);
        tried.left = left;
        for (part, _) in late {
            for half in halves(part) {
                let mut again = try_each(half, |part| self.turn_all(part)).await;
                tried.answers.append(&mut again.answers);
                tried.refused.append(&mut again.refused);
                tried.left.append(&mut again.left);
            }
        }
        tried
    }

    async fn turn_all<'a>(&self, turns: &'a [Turn]) -> Result<Outcomes<'a>, Error> {
        let asked: Vec<ScheduleTurn<'_>> = turns.iter().map(Turn::asked).collect();
        let _one = self.statement().await;
        let outcomes = self.store.home().schedule_turns(&asked, HOLD).await?;
        Ok(turns.iter().zip(outcomes).collect())
    }

    /// Writes a decision, and makes its tasks at once. Waits for a transaction that holds the schedule.
    async fn write(&self, turn: Turn) -> Written {
        let Turn { record, decision, ids } = &turn;
        let one = self.statement().await;
        let turned = self.store.home().schedule_turn(&record.name, record.revision, decision, ids, HOLD).await;
        drop(one);
        if turned.is_ok() {
            self.note_answer();
        }
        match turned {
            Ok(Some(_)) => {
                self.take_effect(&[&turn]);
                Ok(turn.decided(true))
            }
            Ok(None) => Ok(overtaken(&turn)),
            Err(error) if error.fault() == Fault::Data => Ok(self.refused(&turn, &error).await),
            Err(error) => Err(self.failed(&turn, &error)),
        }
    }

    /// Notes that decisions can be written.
    fn note_answer(&self) {
        if self.unknown.end() {
            tracing::info!("decisions about schedules are written again");
        }
    }

    /// Keeps a schedule whose decision the database refuses, the first time until it changes, and postpones it.
    async fn refused(&self, turn: &Turn, error: &Error) -> Decided {
        let ScheduleRecord { name, revision, .. } = &turn.record;
        let is_kept = self.kept.lock().contains(revision);
        if !is_kept {
            let kept = Kept { name: Some(name.to_string()), ..Kept::default() };
            if self.set_aside.keep(self.store.home(), Kind::Schedule, kept, &why(error)).await {
                self.note_kept(*revision);
            }
        }
        self.postpone(&[(name, *revision)], POSTPONE_REFUSED).await;
        turn.decided(false)
    }

    fn note_kept(&self, revision: Revision) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MOST {
            kept.clear();
        }
        kept.insert(revision);
    }

    /// Notes that a decision failed. If the statement was committed, a node takes the fire times on after the hold, and
    /// the schedule has another revision; otherwise it is still due. What has waited in vain would have each look wait.
    fn failed(&self, turn: &Turn, error: &Error) -> (Revision, Duration) {
        let has_waited = error.has_waited_in_vain();
        if has_waited {
            *self.waits_again_at.lock() = Some(Instant::now() + NO_WAIT_FOR);
        }
        if self.unknown.begin() {
            tracing::warn!(schedule = %turn.record.name, error = error as &dyn std::error::Error, "outcome of a schedule decision unknown; retrying, together with any other decision that fails");
        }
        (turn.record.revision, if has_waited { NO_WAIT_FOR } else { POSTPONE })
    }

    /// Whether statements may wait for transactions that hold schedules. Just after a wait in vain none does, except
    /// one for a single schedule that failed together with others, by another error.
    fn waits_for_holders(&self) -> bool {
        self.waits_again_at.lock().is_none_or(|at| at <= Instant::now())
    }

    /// Counts decisions that were written, and makes their tasks.
    fn take_effect(&self, turns: &[&Turn]) {
        for turn in turns {
            self.note(&turn.record, &turn.decision);
        }
        if turns.iter().all(|turn| turn.ids.is_empty()) {
            return;
        }
        fail::fail_point!("after_fire", |_| std::process::abort());
        self.make_decided(turns);
    }

    fn note(&self, record: &ScheduleRecord, turn: &FireDecision) {
        let made = u64::try_from(turn.fires.len()).unwrap_or(u64::MAX);
        for (outcome, count) in [("made", made), ("skipped", turn.skipped), ("missed", turn.missed)] {
            self.metrics.schedule_fires.with_label_values(&[outcome]).inc_by(count);
        }
        if turn.missed > 0 {
            tracing::debug!(schedule = %record.name, missed = turn.missed, "a schedule has missed fire times");
        }
        for fire in &turn.fires {
            tracing::debug!(schedule = %record.name, fire_at = %fire.at, buffered = fire.buffered, "fire time decided");
        }
    }

    fn mint(&self, record: &ScheduleRecord, fire: Fire, shard_count: u16) -> TaskId {
        let rules = &record.rules;
        let key = common::schedule::key_of(&record.name, fire.at);
        let placement = self.books.load().get(&rules.queue).policy.placement;
        let partition_key = rules.partition_key.as_deref();
        let shard = bound_to(&rules.queue, placement, partition_key, Some(&key), shard_count.into());
        let shard = shard.expect("a key binds to a shard");
        TaskId::mint(uuid::Uuid::now_v7(), shard)
    }
}

fn overtaken(turn: &Turn) -> Decided {
    tracing::debug!(schedule = %turn.record.name, "a schedule was changed, or decided by another node, meanwhile");
    turn.decided(false)
}

/// Divides decisions into those of one statement each.
fn in_groups(turns: Vec<Turn>) -> Vec<Vec<Turn>> {
    let (mut groups, mut fires): (Vec<Vec<Turn>>, usize) = (Vec::new(), 0);
    for turn in turns {
        let more = turn.ids.len();
        match groups.last_mut() {
            Some(group) if fires + more <= DECIDED_TOGETHER => {
                group.push(turn);
                fires += more;
            }
            _ => {
                groups.push(vec![turn]);
                fires = more;
            }
        }
    }
    groups
}
