//! The cut: the moment at which a shard changes its database. Its tasks are not claimed meanwhile.

use std::time::{Duration, Instant};

use common::{
    ids::{Epoch, ShardId},
    shard::{ShardStatus, move_progress::MovePhase},
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout_at,
};

use super::{
    copy::Round,
    work::{Ends, LEAVING_AT_LEAST, STAYS_CLOSED, Stepped, Work, explained, hear_first},
};
use crate::{
    store::{
        Effect, Error,
        move_rows::PageCursor,
        moves::{CloseWait, MoveFence},
    },
    working_set::owned_shards::Stop,
};

/// The longest wait for a moment without a task in flight, before claims stop. Most shards have one within this time,
/// and then the cut waits for no publish. A busy shard has none, and its cut waits.
const IDLE_WITHIN: Duration = Duration::from_millis(500);

/// The longest wait of a first cut for tasks in flight. Beyond it claims go on, and the cut comes again later.
const DRAIN_WITHIN: Duration = Duration::from_millis(250);

/// The longest such wait of any cut: publishes end within this time, or hang for as long as their queue does. The
/// release of tasks that wait for a success may take longer; the cut then comes again.
const DRAIN_LONGEST: Duration = Duration::from_secs(1);

/// The longest time without claims at a first cut. Each late cut gives the next one as much again, so that slow
/// databases do not keep a shard from moving for ever.
const CUT_WITHIN: Duration = Duration::from_millis(450);

/// The longest time without claims at any cut: about as long as one statement may take.
const CUT_LONGEST: Duration = Duration::from_millis(4_500);

/// The last changes have at least this long after the wait for tasks in flight, as at a first cut.
const WRITES_AT_LEAST: Duration = CUT_WITHIN.saturating_sub(DRAIN_WITHIN);

/// After a cut that took this long, reports that were held come before deadlines, as after one that was interrupted:
/// the nodes try such reports again only after as long. A shorter cut delays them no more than a slow statement does.
pub(super) const LONG_CUT: Duration = Duration::from_secs(1);

/// A cut that takes this long, half of [`LONG_CUT`], until its statement opens the target may well be long by the
/// answer. The node may take the shard there before that, so reports come first from the statement on. A cut whose
/// statement goes out earlier, and is answered late, leaves deadlines the moment between the two.
pub(super) const SOON_LONG: Duration = Duration::from_millis(500);

/// [`Work::finish_cut`] waits this long to learn whether the move is called off: the tasks of the shard wait meanwhile.
const CALLED_OFF_WITHIN: Duration = Duration::from_millis(450);

/// While a shard has not been leaving for long enough, the rows are looked at again after this long.
const LEAVING_LOOK: Duration = Duration::from_millis(500);

/// A cut that waits for its turn says this often that it gets on.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// What became of a cut that has stopped the claims.
#[derive(Debug)]
pub(super) enum Cut {
    /// The target has the shard now, under this epoch.
    Opened(Epoch),
    /// The source has it as before.
    GivenUp(&'static str),
    /// The source has it again, under this epoch.
    Reopened(Epoch, String),
    /// Another node owns the shard.
    Lost,
}

impl Work {
    pub(super) async fn cut(&mut self, ends: &Ends, epoch: Epoch) -> Result<Stepped, Error> {
        if !self.fill_target(ends, epoch).await? {
            return Ok(Stepped::Ended);
        }
        if let Some(stepped) = self.catch_up(ends, epoch).await? {
            return Ok(stepped);
        }
        let since = *self.leaving_since.get_or_insert_with(Instant::now);
        if let Some(left) = LEAVING_AT_LEAST.checked_sub(since.elapsed()) {
            self.note_progress().await;
            let _ = tokio::time::timeout(left.min(LEAVING_LOOK), self.stop.cancelled()).await;
            return Ok(Stepped::On);
        }
        if !self.note(Some(MovePhase::Cutting), None).await {
            self.shared.look().await;
            let is_called_off = self.plan().is_none_or(|plan| plan.called_off_at.is_some());
            let problem = || Stepped::HeldUp("the first database does not answer, so no cut begins".to_owned());
            return Ok(if is_called_off { Stepped::On } else { problem() });
        }
        let shared = std::sync::Arc::clone(&self.shared);
        let turn = self.turn(&shared.cuts).await;
        let (shard, owned_shards) = (self.shard, &ends.source.owned_shards);
        let _ = tokio::time::timeout(IDLE_WITHIN, owned_shards.drained(&[shard])).await;
        // What came while this cut waited for its turn is not left to the time without claims.
        if let Some(stepped) = self.catch_up(ends, epoch).await? {
            // It may be long until the next cut, and the move can be called off meanwhile. A rest notes that itself.
            // After a new owner has come, its own notes count. The first database may be silent, and other cuts wait.
            drop(turn);
            if matches!(stepped, Stepped::On) {
                self.note(Some(MovePhase::Copying), None).await;
            }
            return Ok(stepped);
        }
        // The shard may be on its way to another node.
        if !owned_shards.is_claimable(shard) {
            return Ok(Stepped::HeldUp("the owner of the shard changes".to_owned()));
        }
        let began = Instant::now();
        owned_shards.stop_claiming(&[shard], Stop::Cut);
        let cut = self.cut_without_claims(ends, epoch, began).await;
        self.end_cut(ends, epoch, began, cut).await
    }

    /// Waits for the turn of a cut. That is no stall: the cuts before this one are watched themselves.
    async fn turn<'a>(&self, cuts: &'a Semaphore) -> SemaphorePermit<'a> {
        let mut beats = tokio::time::interval(BEAT_EVERY);
        let mut turn = std::pin::pin!(cuts.acquire());
        loop {
            tokio::select! {
                turn = &mut turn => return turn.expect("the semaphore is never closed"),
                _ = beats.tick() => self.beat(),
            }
        }
    }

    /// Goes on where a cut that began at `began` has left the shard.
    pub(super) async fn end_cut(
        &mut self,
        ends: &Ends,
        epoch: Epoch,
        began: Instant,
        cut: Result<Cut, Error>,
    ) -> Result<Stepped, Error> {
        let (shard, owned_shards) = (self.shard, &ends.source.owned_shards);
        if began.elapsed() >= LONG_CUT {
            match &cut {
                Ok(Cut::Opened(_)) => hear_first(&ends.target),
                Ok(Cut::GivenUp(_)) => {}
                // It may have opened again without an answer, or do so late.
                Ok(Cut::Reopened(..) | Cut::Lost) => hear_first(&ends.source),
                // Either may have.
                Err(_) => [&ends.source, &ends.target].into_iter().for_each(hear_first),
            }
        }
        match cut {
            Ok(Cut::Opened(opened)) => {
                let took = self.opened(ends, opened, began, false).await;
                self.shared.metrics.move_cut.observe(took.as_secs_f64());
                Ok(Stepped::Ended)
            }
            Ok(Cut::GivenUp(problem)) => {
                owned_shards.resume_claiming(shard, epoch, Stop::Cut);
                Ok(Stepped::HeldUp(problem.to_owned()))
            }
            Ok(Cut::Reopened(reopened, problem)) => {
                self.reopened(ends, reopened).await;
                Ok(Stepped::HeldUp(problem))
            }
            Ok(Cut::Lost) => {
                // A claim under an epoch that is not in force any more is refused, and the shard is forgotten.
                owned_shards.resume_claiming(shard, epoch, Stop::Cut);
                Ok(Stepped::Ended)
            }
            Err(error) => {
                // The rows tell what has happened. As long as the source is open, an epoch in force claims on.
                owned_shards.resume_claiming(shard, epoch, Stop::Cut);
                Err(error)
            }
        }
    }

    /// Writes what has changed. `Some`: no cut can follow now.
    async fn catch_up(&mut self, ends: &Ends, epoch: Epoch) -> Result<Option<Stepped>, Error> {
        Ok(match self.round(ends, epoch).await? {
            Round::Short => None,
            Round::Long => Some(self.behind()),
            Round::Lost => Some(Stepped::Ended),
        })
    }

    pub(super) async fn cut_without_claims(&mut self, ends: &Ends, epoch: Epoch, began: Instant) -> Result<Cut, Error> {
        let (source, shard) = (&ends.source, self.shard);
        let drain_within = (DRAIN_WITHIN * (1 + self.late_drains)).min(DRAIN_LONGEST);
        let cut_within = (CUT_WITHIN * (1 + self.late_writes)).min(CUT_LONGEST);
        if tokio::time::timeout(drain_within, source.owned_shards.drained(&[shard])).await.is_err() {
            self.late_drains += 1;
            return Ok(Cut::GivenUp("tasks in flight did not end in time"));
        }
        let deadline = (began + cut_within).max(Instant::now() + WRITES_AT_LEAST);
        let mut closed = source.sql.move_close(shard, epoch, self.next_write(), CloseWait::Plain).await;
        if closed.as_ref().is_err_and(|error| error.is_contention()) && began.elapsed() < drain_within {
            closed = source.sql.move_close(shard, epoch, self.next_write(), CloseWait::InTurn).await;
        }
        let closed = match closed {
            Ok(Some(closed)) => closed,
            Ok(None) => return Ok(Cut::Lost),
            Err(error) if error.is_contention() => {
                return Ok(Cut::GivenUp("the cut waits for an open transaction that has written tasks of the shard"));
            }
            Err(error) => return Err(error),
        };
        fail::fail_point!("after_move_close", |_| std::process::abort());
        let problem = match timeout_at(deadline.into(), self.last_rounds(ends, epoch)).await {
            Ok(Ok(true)) => {
                if began.elapsed() >= SOON_LONG {
                    hear_first(&ends.target);
                }
                match ends.target.sql.move_open(shard, epoch, closed, &self.shared.me).await {
                    Ok(Some(opened)) => return Ok(Cut::Opened(opened)),
                    Ok(None) => return Ok(Cut::Lost),
                    Err(error) if error.effect == Effect::None => error.reason(),
                    Err(error) => return Err(error),
                }
            }
            Ok(Ok(false)) => return Ok(Cut::Lost),
            Ok(Err(error)) => error.reason(),
            Err(_) => {
                self.late_writes += 1;
                "the last changes could not be written in time".to_owned()
            }
        };
        self.reopening = Some(closed);
        let mut reopened = source.sql.move_reopen(shard, closed, &self.shared.me).await;
        if reopened.is_err() {
            // Without an answer the next step would need the target, which is often what does not answer.
            reopened = source.sql.move_reopen(shard, closed, &self.shared.me).await;
        }
        match reopened? {
            Some(reopened) => Ok(Cut::Reopened(reopened, problem)),
            None => Ok(Cut::Lost),
        }
    }

    /// Ends a cut that this node or an earlier owner has begun: the shard is closed in the source. If the target does
    /// not take the last part, the source opens again, because the target may refuse it for ever.
    pub(super) async fn finish_cut(&mut self, ends: &Ends, epoch: Epoch) -> Result<Stepped, Error> {
        let began = Instant::now();
        // The tasks of the shard wait, and the first database may be silent: then the cut goes on.
        if let Ok(true) = tokio::time::timeout(CALLED_OFF_WITHIN, self.is_over()).await {
            return Ok(Stepped::On);
        }
        let problem = match self.open_closed(ends, epoch).await {
            Ok(Some(opened)) => {
                // The wait that began with the statement may be over.
                hear_first(&ends.target);
                self.opened(ends, opened, began, true).await;
                return Ok(Stepped::Ended);
            }
            Ok(None) => "the last part of the move was given up before".to_owned(),
            Err(error) => explained(&error),
        };
        Ok(match self.undo_cut(ends, epoch).await {
            Ok(true) => Stepped::HeldUp(problem),
            Ok(false) => Stepped::Ended,
            Err(error) => Stepped::HeldUp(format!("{problem}; {STAYS_CLOSED}: {}", explained(&error))),
        })
    }

    /// Whether the move is called off or has ended, as far as the first database tells. Then it does not take place.
    pub(super) async fn is_over(&mut self) -> bool {
        if self.note(Some(MovePhase::Cutting), None).await {
            return false;
        }
        self.shared.look().await;
        self.plan().is_none_or(|plan| plan.called_off_at.is_some())
    }

    /// `None`: another owner fills the shard, the target has it, or it refuses this cut, or the source may open again.
    async fn open_closed(&mut self, ends: &Ends, epoch: Epoch) -> Result<Option<Epoch>, Error> {
        if self.reopening == Some(epoch) {
            return Ok(None);
        }
        if !self.fill_target(ends, epoch).await? || !self.last_rounds(ends, epoch).await? {
            return Ok(None);
        }
        hear_first(&ends.target);
        ends.target.sql.move_open(self.shard, epoch, epoch, &self.shared.me).await
    }

    /// Opens a closed shard in its source again. `false`: the target has it, or another node owns it.
    ///
    /// An open in the target may be under way: one of this node without an answer, or one of an earlier owner. So the
    /// target refuses all of them first. A node that dies between these two steps leaves a closed shard: the next owner
    /// has the epoch that the target is filled under, and ends the cut. This node itself would come here again.
    pub(super) async fn undo_cut(&self, ends: &Ends, closed: Epoch) -> Result<bool, Error> {
        if !ends.target.sql.move_refuse_open(self.shard, closed).await? {
            return Ok(false);
        }
        hear_first(&ends.source);
        let reopened = ends.source.sql.move_reopen(self.shard, closed, &self.shared.me).await?;
        if let Some(reopened) = reopened {
            tracing::info!(shard = %self.shard, source = %ends.source.name(), epoch = %reopened, "a closed shard is open in its source again");
            hear_first(&ends.source);
            self.reopened(ends, reopened).await;
        }
        Ok(reopened.is_some())
    }

    /// Goes on with a shard that is open in its source again.
    async fn reopened(&self, ends: &Ends, reopened: Epoch) {
        // An older map shows the shard as closed, and the owner would stop the claims again. The map is not
        // read here: the target may be silent, and the tasks of the shard wait.
        self.shared.databases.places().moved(self.shard, ends.source_index, reopened);
        if let Some(own_since) = ends.source.owned_shards.own_since(self.shard) {
            ends.source.owned_shards.adopt_own(self.shard, reopened, own_since);
        }
        self.register(reopened).await;
    }

    /// Goes on with a shard that is open in its target. Returns how long the cut took.
    async fn opened(&mut self, ends: &Ends, opened: Epoch, began: Instant, was_interrupted: bool) -> Duration {
        self.take_over(ends, opened);
        let took = began.elapsed();
        let cut_ms = i64::try_from(took.as_millis()).ok();
        self.note(Some(MovePhase::Cleaning), cut_ms).await;
        tracing::info!(shard = %self.shard, target = %ends.target.name(), epoch = %opened, cut_ms, was_interrupted, "a shard has moved");
        self.register(opened).await;
        self.shared.look().await;
        took
    }

    /// Dispatches the shard from its target. Nothing that this node has in flight is published again.
    fn take_over(&mut self, ends: &Ends, opened: Epoch) {
        fail::fail_point!("after_move_open", |_| std::process::abort());
        self.page = PageCursor::Done;
        let shard = self.shard;
        if let Some(own_since) = ends.source.owned_shards.own_since(shard) {
            let in_doubt = ends.source.owned_shards.in_doubt(shard);
            ends.target.owned_shards.adopt_own(shard, opened, own_since);
            ends.target.look_again(in_doubt, Duration::ZERO);
            // If the node has given the shard away at this moment, it is of no more use in the target either.
            let still_held = ends.source.owned_shards.own_since(shard).is_some();
            let left = if still_held { &ends.source } else { &ends.target };
            left.owned_shards.forget(&[shard]);
        }
        self.shared.databases.places().moved(shard, ends.target_index, opened);
    }

    /// Takes over a shard that this node has opened without an answer. Returns whether it has.
    pub(super) fn take_over_opened(&mut self, ends: &Ends, target: &MoveFence) -> bool {
        let is_opened = target.status == ShardStatus::Here
            && target.is_of(&self.shared.me)
            && ends.source.owned_shards.own_since(self.shard).is_some()
            && ends.target.owned_shards.own_since(self.shard).is_none();
        if is_opened {
            hear_first(&ends.target);
            self.take_over(ends, target.epoch);
        }
        is_opened
    }

    /// Brings the epoch in the owner key up to date. It is for display: the fence decides.
    async fn register(&self, epoch: Epoch) {
        let shard: ShardId = self.shard;
        let (coordination, me) = (&self.shared.coordination, &self.shared.me);
        let lease = self.shared.session.borrow().lease();
        let Some(lease) = lease else { return };
        let registered = match coordination.owner_create(shard, me, Some(epoch), lease).await {
            Ok(Some(key)) => coordination.owner_confirm(&key, me, epoch).await.map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = registered {
            tracing::debug!(%shard, error = &error as &dyn std::error::Error, "could not register the epoch of a shard that has moved");
        }
    }
}
