//! The work on one move, from step to step.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use common::{
    ids::{DatabaseIndex, Epoch, ShardId},
    shard::{MoveStep, ShardStatus, move_progress::MovePhase},
    time::UnixMicros,
    wire::shard::MoveOutcome,
};
use tokio_util::sync::CancellationToken;

use super::{Fences, LOOK_EVERY, Resting, Shared};
use crate::{
    clock,
    store::{
        Error,
        move_requests::{MoveNote, MoveRow},
        move_rows::{PageCursor, WritePaces},
        moves::MoveFence,
    },
    supervise,
    working_set::database::NodeDatabase,
};

/// Progress is for display; the page in it saves work after a crash.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// The pause after a step failed. It doubles with each further failure, up to the longest.
const RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(10);

/// A shard is leaving for this long before its cut: by then each node's map says so, and its lists leave the copy out.
pub(super) const LEAVING_AT_LEAST: Duration = Duration::from_secs(2);

/// The rounds over the changes of a shard, a second each, after which other moves have their turn. A shard that was
/// held up for a while has as many to write as came meanwhile.
pub(super) const LONG_ROUNDS: u32 = 60;

/// What the problem of a move tells while the tasks of its shard wait.
pub(super) const STAYS_CLOSED: &str = "the shard stays closed";

/// The problem of a move whose first page cannot be noted.
const NO_COPY: &str = "the first database does not answer, so no copy begins";

/// The result of a step.
#[derive(Debug)]
pub(super) enum Stepped {
    /// Look at the rows again at once.
    On,
    /// There is nothing to do for this node, or not yet.
    Ended,
    /// It does not get on for now.
    HeldUp(String),
}

/// The work on the move of one shard.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: ShardId,
    /// With the shard, it names the move: the shard may have ended this one and begun another.
    pub(super) requested_at: UnixMicros,
    pub(super) stop: CancellationToken,
    pub(super) page: PageCursor,
    /// The last turn of a queue that this node has noted in the target: its revision, and the queue.
    pub(super) turns_until: (i64, String),
    pub(super) rows_total: Option<i64>,
    pub(super) rows_copied: i64,
    pub(super) bytes_copied: i64,
    /// They outlive its rests: a write that was late comes again with fewer rows.
    pub(super) write_paces: WritePaces,
    /// Whether the last round has left changes over.
    pub(super) is_behind: bool,
    /// The rounds in a row that have left changes over.
    pub(super) long_rounds: u32,
    /// Since when this node has seen the shard leaving.
    pub(super) leaving_since: Option<Instant>,
    /// The cuts that were given up because tasks in flight did not end in time. Each lets the next one wait longer.
    pub(super) late_drains: u32,
    /// The cuts that were given up because their last changes were not written in time. Each gives the next one more.
    pub(super) late_writes: u32,
    /// The epoch since which no other node has owned the shard.
    pub(super) own_since: Option<Epoch>,
    /// The epoch of a close after which the source was told to open again. It may do so late, so the target must not
    /// open under this epoch.
    pub(super) reopening: Option<Epoch>,
    /// What watches whether it gets on. `None`: it rests.
    pub(super) unit: Option<supervise::Work>,
    noted: Option<Instant>,
    problem: Option<String>,
    retry: Duration,
}

/// The two databases of a move.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) source: NodeDatabase,
    pub(super) source_index: DatabaseIndex,
    pub(super) target: NodeDatabase,
    pub(super) target_index: DatabaseIndex,
}

impl Work {
    pub(super) fn new(shared: Arc<Shared>, plan: &MoveRow, stop: CancellationToken) -> Self {
        Self {
            own_since: shared.own_since(plan),
            shared,
            shard: plan.shard,
            requested_at: plan.requested_at,
            stop,
            page: plan.page.clone().unwrap_or(PageCursor::FIRST),
            turns_until: Default::default(),
            rows_total: None,
            rows_copied: plan.rows_copied,
            bytes_copied: plan.bytes_copied,
            write_paces: WritePaces::default(),
            is_behind: false,
            long_rounds: 0,
            leaving_since: None,
            late_drains: 0,
            late_writes: 0,
            reopening: None,
            unit: None,
            noted: None,
            problem: None,
            retry: RETRY,
        }
    }

    /// Works until the move has ended, belongs to another node, or does not get on.
    pub(super) async fn run(mut self) -> Resting {
        while let Some(plan) = self.plan().filter(|_| !self.stop.is_cancelled()) {
            self.beat();
            let problem = match self.step(&plan).await {
                Ok(Stepped::On) => {
                    (self.problem, self.retry) = (None, RETRY);
                    self.shared.held_up.lock().remove(&self.shard);
                    continue;
                }
                Ok(Stepped::Ended) => break,
                Ok(Stepped::HeldUp(problem)) => problem,
                Err(error) if self.shared.is_closed(self.shard) => format!("{STAYS_CLOSED}: {}", explained(&error)),
                Err(error) => explained(&error),
            };
            return self.held_up(problem).await;
        }
        self.shared.held_up.lock().remove(&self.shard);
        Resting { shard: self.shard, until: Instant::now() + LOOK_EVERY, work: None }
    }

    /// `None`: the move has ended, although the shard may move again.
    pub(super) fn plan(&self) -> Option<MoveRow> {
        self.shared.plans.load().get(&self.shard).filter(|plan| plan.requested_at == self.requested_at).cloned()
    }

    /// Says that it gets on. A step of many pages does so for each.
    pub(super) fn beat(&self) {
        if let Some(unit) = &self.unit {
            unit.beat();
        }
    }

    async fn held_up(mut self, problem: String) -> Resting {
        if self.problem.as_ref() != Some(&problem) {
            tracing::warn!(shard = %self.shard, problem, "the move of a shard does not get on; retrying");
        }
        self.problem = Some(problem);
        self.shared.held_up.lock().insert(self.shard);
        self.note(None, None).await;
        self.unit = None;
        let until = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(LONGEST_RETRY);
        Resting { shard: self.shard, until, work: Some(self) }
    }

    /// The next step after a round that has left changes over: another one, or after many a rest. The rest does not
    /// become longer each time, because more changes would come meanwhile.
    pub(super) fn behind(&mut self) -> Stepped {
        self.long_rounds += 1;
        if self.long_rounds < LONG_ROUNDS {
            return Stepped::On;
        }
        (self.long_rounds, self.retry) = (0, RETRY);
        Stepped::HeldUp("the shard changes faster than it can be copied".to_owned())
    }

    /// Looks at the rows and does what comes next.
    pub(super) async fn step(&mut self, plan: &MoveRow) -> Result<Stepped, Error> {
        let Some(ends) = self.ends(plan) else {
            return Ok(Stepped::HeldUp("this node's configuration has no such database".to_owned()));
        };
        let source = ends.source.sql.move_fence(self.shard).await?;
        // A shard that is leaving is open, so its target is not: a call-off does not wait until that one answers.
        let is_given_back =
            plan.called_off_at.is_some() && source.as_ref().is_some_and(|fence| fence.status == ShardStatus::Leaving);
        let target = if is_given_back { None } else { ends.target.sql.move_fence(self.shard).await? };
        let fences = Fences { source, target };
        // After a failover that lost an acquire, an epoch comes twice, and its first owner may have had higher numbers.
        let last = [&fences.source, &fences.target].into_iter().flatten().map(MoveFence::last_write).max();
        self.shared.writes.fetch_max(last.unwrap_or(0), Ordering::Relaxed);
        let is_copied = self.page == PageCursor::Done;
        let step = fences.next(plan.called_off_at.is_some(), is_copied);
        if self.is_elsewhere(&ends, &fences).await? {
            return match plan.called_off_at {
                Some(_) => self.end(&ends, MoveOutcome::CalledOff).await,
                None => Ok(Stepped::HeldUp(stuck(&fences))),
            };
        }
        match step {
            MoveStep::Stuck => return Ok(Stepped::HeldUp(stuck(&fences))),
            MoveStep::CleanSource => return self.clean_source(&ends, &fences).await,
            MoveStep::EndCalledOff => return self.end(&ends, MoveOutcome::CalledOff).await,
            _ => {}
        }
        let Some(source) = fences.source.filter(|fence| self.is_mine(&ends, fence)) else { return Ok(Stepped::Ended) };
        let epoch = source.epoch;
        if matches!(step, MoveStep::Arrive | MoveStep::Cut)
            && let Some(problem) = self.shared.is_not_ready(ends.target.name())
        {
            return Ok(Stepped::HeldUp(problem));
        }
        // A shard that is closed already goes on: its tasks wait, and its source keeps the rows (`clean_source`).
        if matches!(step, MoveStep::Arrive | MoveStep::Leave | MoveStep::Copy | MoveStep::Cut)
            && let Some(problem) = ends.target.sql.may_receive_no_shard()
        {
            return Ok(Stepped::HeldUp(problem));
        }
        match step {
            MoveStep::Arrive => self.arrive(plan, &ends, &source, fences.target.as_ref()).await,
            MoveStep::Leave => self.leave(plan, &ends, epoch).await,
            MoveStep::Copy => self.copy(&ends, epoch).await,
            MoveStep::Cut => self.cut(&ends, epoch).await,
            MoveStep::FinishCut => self.finish_cut(&ends, epoch).await,
            MoveStep::Reopen => Ok(if self.undo_cut(&ends, epoch).await? { Stepped::On } else { Stepped::Ended }),
            MoveStep::Return => self.give_back(&ends, &source).await,
            MoveStep::CleanTarget => self.clean_target(&ends, &source).await,
            MoveStep::CleanSource | MoveStep::EndCalledOff | MoveStep::Stuck => Ok(Stepped::Ended),
        }
    }

    fn ends(&self, plan: &MoveRow) -> Option<Ends> {
        let (source_index, source) = self.shared.named(&plan.source)?;
        let (target_index, target) = self.shared.named(&plan.target)?;
        Some(Ends { source: source.clone(), source_index, target: target.clone(), target_index })
    }

    /// Whether neither end of the plan has the shard open, and this node holds its fence in a third database. One end
    /// may still await the shard, as after a begin that came late: then the fences look like those of a cut.
    async fn is_elsewhere(&self, ends: &Ends, fences: &Fences) -> Result<bool, Error> {
        let is_open = |fence: &MoveFence| fence.status.is_open();
        if [&fences.source, &fences.target].into_iter().flatten().any(is_open) {
            return Ok(false);
        }
        let has_it = |database: &NodeDatabase| database.owned_shards.own_since(self.shard).is_some();
        let is_third = |index: &DatabaseIndex| ![ends.source_index, ends.target_index].contains(index);
        let third = self.shared.databases.indexed().find(|(index, database)| is_third(index) && has_it(database));
        let Some((_, database)) = third else { return Ok(false) };
        let fence = database.sql.move_fence(self.shard).await?;
        Ok(fence.is_some_and(|fence| fence.status.is_open() && fence.is_of(&self.shared.me)))
    }

    /// Whether this node holds the fence of the source. It may have changed its epoch without an answer.
    fn is_mine(&self, ends: &Ends, fence: &MoveFence) -> bool {
        let owned_shards = &ends.source.owned_shards;
        let Some(own_since) = owned_shards.own_since(self.shard).filter(|_| fence.is_of(&self.shared.me)) else {
            return false;
        };
        let held = owned_shards.owned().get(&self.shard).copied();
        if fence.status.is_open() && held.is_some_and(|held| held < fence.epoch) {
            hear_first(&ends.source);
            owned_shards.adopt_own(self.shard, fence.epoch, own_since);
        }
        true
    }

    /// `source` and `target`: their fences, read in this order.
    pub(super) async fn arrive(
        &mut self,
        plan: &MoveRow,
        ends: &Ends,
        source: &MoveFence,
        target: Option<&MoveFence>,
    ) -> Result<Stepped, Error> {
        // With a page of an earlier copy in the note, the next owner would take this one for further than it is.
        if !self.begin_copy().await {
            return Ok(Stepped::HeldUp(NO_COPY.to_owned()));
        }
        ends.target.sql.move_guard(&self.shared.planned(&plan.target), false).await?;
        // This node may have stood still between the two reads, while others moved the shard there and away again. Then
        // the source has another fence. What comes after this read, the target knows by its own fence.
        let is_as_before =
            seeded!(BlindBegin) || ends.source.sql.move_fence(self.shard).await?.as_ref() == Some(source);
        if !is_as_before {
            return Ok(Stepped::Ended);
        }
        let last = self.shared.writes.load(Ordering::Relaxed);
        if !ends.target.sql.move_arrive(self.shard, source.epoch, last, target).await? {
            return Ok(Stepped::Ended);
        }
        fail::fail_point!("after_move_arrive", |_| std::process::abort());
        Ok(Stepped::On)
    }

    /// Notes that nothing is copied. `false`: the first database does not answer.
    async fn begin_copy(&mut self) -> bool {
        self.page = PageCursor::FIRST;
        (self.rows_copied, self.bytes_copied) = (0, 0);
        self.note(Some(MovePhase::Planned), None).await
    }

    /// Has the target accept writes of this owner and no earlier one. This node's writes of earlier moves do nothing
    /// any more, however late they come.
    pub(super) async fn fill_target(&self, ends: &Ends, epoch: Epoch) -> Result<bool, Error> {
        ends.target.sql.move_fill(self.shard, epoch, self.shared.writes.load(Ordering::Relaxed)).await
    }

    /// The number of the next write.
    pub(super) fn next_write(&self) -> i64 {
        self.shared.writes.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn leave(&mut self, plan: &MoveRow, ends: &Ends, epoch: Epoch) -> Result<Stepped, Error> {
        // After a failover in which the source lost the leave, the note may call the copy complete. The target is empty
        // below, and the shard may leave without an answer: with that note the next step would be the cut.
        if !self.begin_copy().await {
            return Ok(Stepped::HeldUp(NO_COPY.to_owned()));
        }
        ends.source.sql.move_guard(&self.shared.planned(&plan.source), false).await?;
        // The target has no tasks of the shard, unless a clean-up was cut off, as by a restore. Such a task may end in
        // the source before its changes are noted, and would fire after the cut. Of the archive nothing fires.
        if !self.fill_target(ends, epoch).await? || !self.empty_target(ends, epoch, &[]).await? {
            return Ok(Stepped::Ended);
        }
        if !ends.source.sql.move_leave(self.shard, epoch, self.next_write()).await? {
            return Ok(Stepped::Ended);
        }
        fail::fail_point!("after_move_leave", |_| std::process::abort());
        // The shard leaves already, and an estimate is only shown.
        self.rows_total = ends.source.sql.move_estimate(self.shard).await.ok();
        self.note(Some(MovePhase::Copying), None).await;
        Ok(Stepped::On)
    }

    /// Opens a leaving shard in its source as before. Most notes of changes go first: after a long hold-up they are too
    /// many for the statement that holds the fence.
    async fn give_back(&mut self, ends: &Ends, source: &MoveFence) -> Result<Stepped, Error> {
        if !self.forget_changes(ends, source).await? {
            return Ok(Stepped::Ended);
        }
        if !ends.source.sql.move_return(self.shard, source.epoch, self.next_write()).await? {
            return Ok(Stepped::Ended);
        }
        self.page = PageCursor::FIRST;
        Ok(Stepped::On)
    }

    pub(super) async fn end(&mut self, ends: &Ends, outcome: MoveOutcome) -> Result<Stepped, Error> {
        fail::fail_point!("before_move_end", |_| std::process::abort());
        self.beat();
        self.shared.databases.home().sql.move_end(self.shard, self.requested_at, outcome).await?;
        tracing::info!(shard = %self.shard, outcome = outcome.text(), rows = self.rows_copied, "the move of a shard has ended");
        self.shared.look().await;
        for database in [&ends.source, &ends.target] {
            // The gate costs each write of the shards that it guards, so those that have arrived leave it. What cannot
            // leave now does so later (`gates.rs`).
            if self.shared.planned(database.name()).is_empty()
                && let Err(error) = database.sql.move_guard(&[], true).await
            {
                tracing::debug!(database = %database.name(), error = &error as &dyn std::error::Error, "could not take shards that no longer move out of the write gate");
            }
        }
        Ok(Stepped::Ended)
    }

    /// Notes how far the move is, at most once a second.
    pub(super) async fn note_progress(&mut self) {
        if self.noted.is_none_or(|noted| noted.elapsed() >= NOTE_EVERY) {
            self.note(Some(MovePhase::Copying), None).await;
        }
    }

    /// `step`: `None`, if it is not known; the page tells it. Returns whether it is noted.
    pub(super) async fn note(&mut self, step: Option<MovePhase>, cut_ms: Option<i64>) -> bool {
        self.noted = Some(Instant::now());
        self.beat();
        let by_page = if self.page == PageCursor::FIRST { MovePhase::Planned } else { MovePhase::Copying };
        let note = MoveNote {
            step: step.unwrap_or(by_page),
            page: Some(&self.page),
            rows_total: self.rows_total,
            rows_copied: self.rows_copied,
            bytes_copied: self.bytes_copied,
            problem: self.problem.as_deref(),
            cut_ms,
        };
        let home = &self.shared.databases.home().sql;
        home.move_note(self.shard, self.requested_at, &self.shared.me, &note).await.unwrap_or_else(|error| {
            tracing::debug!(shard = %self.shard, error = &error as &dyn std::error::Error, "could not note how far a move is");
            false
        })
    }
}

/// Has reports that were held while a shard was closed come before the deadlines that have passed meanwhile. Call it
/// before the statement that opens the shard in this database: without an answer it lets deadlines end attempts, too.
/// Call it once more after the answer, which may take as long as reports come first. A cut that is quick until the
/// statement does only the latter, if it has become a long one by then.
///
/// Deadlines of the other shards that this node has there wait as well: some 10 s, and up to 30 minutes while RabbitMQ
/// holds many reports. Where moves fail again and again, they have their turn after some minutes
/// ([`common::delay::Hearing::shard_opens`]).
pub(super) fn hear_first(database: &NodeDatabase) {
    database.hearing.lock().shard_opens(clock::instant());
}

fn stuck(fences: &Fences) -> String {
    let status = |fence: &Option<MoveFence>| fence.as_ref().map(|fence| fence.status);
    format!(
        "the fences of the shard contradict the move: {:?} in the source, {:?} in the target",
        status(&fences.source),
        status(&fences.target)
    )
}

pub(super) fn explained(error: &Error) -> String {
    if error.is_out_of_time() {
        return format!("a statement takes too long, or waits for another one ({}: {})", error.op, error.reason());
    }
    if error.is_contention() {
        return format!("an open transaction holds a lock for too long ({}: {})", error.op, error.reason());
    }
    format!("{error}: {}", error.reason())
}
