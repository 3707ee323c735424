//! The copy of a shard, the rounds over its changes, and the deletion of what a move leaves behind.

use std::time::{Duration, Instant};

use chrono::NaiveDate;
use common::{
    ids::Epoch,
    shard::{ShardStatus, move_progress::MovePhase},
    wire::shard::MoveOutcome,
};

use super::{
    Fences,
    work::{Ends, Stepped, Work},
};
use crate::{
    clock,
    store::{
        Error,
        move_rows::{MoveChanges, MoveRead, MoveRows, PageCursor},
        moves::MoveFence,
    },
};

/// The changes are written this often during the copy, so that they do not pile up. A round ends after
/// this time, too, and the rows are looked at again: the move may be called off.
const ROUND_EVERY: Duration = Duration::from_secs(1);

/// A round with fewer changes than this is short: the cut can write what comes after it in a few milliseconds.
const FEW_CHANGES: usize = 200;

/// The pause after a page, as a multiple of the time that the page took. So a shard takes at most half of the time of
/// one connection to each database.
const PAUSE_PER_PAGE: u32 = 1;

/// How a pass over the changes has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Few changes can be left.
    Short,
    /// The time is over, and many changes may be left.
    Long,
    /// Another owner fills the shard.
    Lost,
}

impl Work {
    /// Copies page by page for `ROUND_EVERY`, then writes the changes; after that the rows are looked at again. Changes
    /// that are left over go before further pages.
    pub(super) async fn copy(&mut self, ends: &Ends, epoch: Epoch) -> Result<Stepped, Error> {
        if !self.fill_target(ends, epoch).await? {
            return Ok(Stepped::Ended);
        }
        self.leaving_since.get_or_insert_with(Instant::now);
        let days = ends.source.sql.partition_days().await?;
        ends.target.sql.partitions_make(&days).await?;
        let (began, was_behind) = (Instant::now(), self.is_behind);
        let may_go_on = || !was_behind && began.elapsed() < ROUND_EVERY;
        while self.page != PageCursor::Done && may_go_on() && !self.stop.is_cancelled() {
            self.beat();
            let page_began = Instant::now();
            let page = ends.source.sql.move_page(self.shard, &self.page, &days, true, &self.write_paces).await?;
            if !page.rows.is_empty() && !self.write(ends, epoch, &page.rows, MoveRead::Page).await? {
                return Ok(Stepped::Ended);
            }
            self.bytes_copied += page.bytes;
            self.page = page.next;
            fail::fail_point!("after_move_page", |_| std::process::abort());
            self.note_progress().await;
            self.pause(page_began).await;
        }
        self.write_turns(ends).await?;
        match self.round(ends, epoch).await? {
            Round::Lost => return Ok(Stepped::Ended),
            Round::Long if was_behind => return Ok(self.behind()),
            Round::Long | Round::Short => {}
        }
        if self.page == PageCursor::Done {
            self.note(Some(MovePhase::Copying), None).await;
        }
        Ok(Stepped::On)
    }

    /// The pause after a page that began at `began`. The page was progress, and both may be long.
    pub(super) async fn pause(&self, began: Instant) {
        self.beat();
        tokio::time::sleep(began.elapsed() * PAUSE_PER_PAGE).await;
    }

    /// Writes changes into the target until a read finds few, or for `ROUND_EVERY`.
    pub(super) async fn round(&mut self, ends: &Ends, epoch: Epoch) -> Result<Round, Error> {
        let began = Instant::now();
        loop {
            self.beat();
            let changes = ends.source.sql.move_changes(self.shard, 0, &self.write_paces).await?;
            if !self.write_changes(ends, epoch, &changes).await? {
                return Ok(Round::Lost);
            }
            if !changes.numbers.is_empty() {
                ends.source.sql.move_forget(self.shard, &changes.numbers).await?;
            }
            self.is_behind = !changes.are_all || changes.numbers.len() >= FEW_CHANGES;
            if !self.is_behind {
                self.long_rounds = 0;
                return Ok(Round::Short);
            }
            if began.elapsed() >= ROUND_EVERY || self.stop.is_cancelled() {
                return Ok(Round::Long);
            }
        }
    }

    /// Writes the last changes into the target: the shard is closed, so it has no new ones. Their notes stay until the
    /// clean-up, because the tasks of the shard wait.
    pub(super) async fn last_rounds(&mut self, ends: &Ends, epoch: Epoch) -> Result<bool, Error> {
        self.write_turns(ends).await?;
        seeded!(CutWithoutLastDelta, return Ok(true));
        let mut after = 0;
        loop {
            self.beat();
            let changes = ends.source.sql.move_last_changes(self.shard, after, &self.write_paces).await?;
            if !self.write_changes(ends, epoch, &changes).await? {
                return Ok(false);
            }
            match changes.numbers.last() {
                Some(last) if !changes.are_all => after = *last,
                _ => return Ok(true),
            }
        }
    }

    /// Notes in the target which policies have changed, as far as the source knows. A target that joined the cluster
    /// later was not told, and would accept a claim under an older policy.
    async fn write_turns(&mut self, ends: &Ends) -> Result<(), Error> {
        loop {
            let turns = ends.source.sql.move_turns(&self.turns_until).await?;
            let Some(last) = turns.last() else { return Ok(()) };
            ends.target.sql.move_turns_write(&turns).await?;
            self.turns_until = last;
        }
    }

    /// `false`: another owner fills the shard.
    async fn write_changes(&mut self, ends: &Ends, epoch: Epoch, changes: &MoveChanges) -> Result<bool, Error> {
        if changes.numbers.is_empty() {
            return Ok(true);
        }
        let is_written = self.write(ends, epoch, &changes.rows, MoveRead::Round).await?;
        fail::fail_point!("after_move_round", |_| std::process::abort());
        Ok(is_written)
    }

    /// Deletes the notes of changes that are of no more use, page by page. `false`: the source has another fence than
    /// `fence` by now, or this node ends.
    pub(super) async fn forget_changes(&self, ends: &Ends, fence: &MoveFence) -> Result<bool, Error> {
        let mut after = 0;
        while !self.stop.is_cancelled() {
            self.beat();
            let Some(notes) = ends.source.sql.move_numbers(self.shard, fence, after).await? else {
                return Ok(false);
            };
            let Some(last) = notes.numbers.last() else { return Ok(true) };
            // By number: a later move may have the same fence, and a delete that comes late must spare its notes.
            ends.source.sql.move_forget(self.shard, &notes.numbers).await?;
            if notes.are_all {
                return Ok(true);
            }
            after = *last;
        }
        Ok(false)
    }

    async fn write(&mut self, ends: &Ends, epoch: Epoch, rows: &MoveRows, read: MoveRead) -> Result<bool, Error> {
        let began = clock::instant();
        let written = ends.target.sql.move_write(self.shard, epoch, self.next_write(), rows).await;
        self.write_paces.note(read, began, &written);
        let is_written = written?;
        if is_written {
            let count = rows.len();
            self.rows_copied += i64::try_from(count).unwrap_or(0);
            self.shared.metrics.move_rows.inc_by(count as u64);
        }
        Ok(is_written)
    }

    /// Deletes the rows of the shard in its source, after the cut.
    pub(super) async fn clean_source(&mut self, ends: &Ends, fences: &Fences) -> Result<Stepped, Error> {
        let (Some(source), Some(target)) = (&fences.source, &fences.target) else { return Ok(Stepped::Ended) };
        if source.status != ShardStatus::Gone {
            return Ok(Stepped::Ended);
        }
        if self.take_over_opened(ends, target) {
            self.note(Some(MovePhase::Cleaning), None).await;
        }
        if ends.target.owned_shards.own_since(self.shard).is_none() {
            return Ok(Stepped::Ended);
        }
        let Some(plan) = self.plan() else { return Ok(Stepped::Ended) };
        if !plan.has_cut {
            self.page = PageCursor::Done;
            self.note(Some(MovePhase::Cleaning), None).await;
        }
        if !self.shared.may_clean(&plan) {
            return Ok(Stepped::Ended);
        }
        if let Some(problem) = ends.target.sql.may_receive_no_shard() {
            return Ok(Stepped::HeldUp(problem));
        }
        // The mark after the close may have failed, and a source that is empty by now may get no other.
        if ends.source.sql.seen().is_some() {
            ends.source.sql.mark_position().await?;
        }
        if !self.forget_changes(ends, source).await? {
            return Ok(Stepped::Ended);
        }
        let days = ends.source.sql.partition_days().await?;
        let mut cursor = PageCursor::FIRST;
        while cursor != PageCursor::Done {
            if self.stop.is_cancelled() {
                return Ok(Stepped::Ended);
            }
            self.beat();
            let began = Instant::now();
            let page = ends.source.sql.move_page(self.shard, &cursor, &days, false, &self.write_paces).await?;
            if !page.rows.is_empty() {
                let sweep_began = clock::instant();
                let swept = ends.source.sql.move_sweep(self.shard, source.epoch, &page.rows).await;
                self.write_paces.note(MoveRead::Page, sweep_began, &swept);
                if !swept? {
                    return Ok(Stepped::Ended);
                }
            }
            cursor = page.next;
            fail::fail_point!("after_move_sweep", |_| std::process::abort());
            self.pause(began).await;
        }
        self.end(ends, MoveOutcome::Moved).await
    }

    /// Deletes the copy in the target of a move that was called off, and the notes that its return has left in the
    /// source.
    pub(super) async fn clean_target(&mut self, ends: &Ends, source: &MoveFence) -> Result<Stepped, Error> {
        let epoch = source.epoch;
        if !self.fill_target(ends, epoch).await? || !self.forget_changes(ends, source).await? {
            return Ok(Stepped::Ended);
        }
        // A leave of this move may still be under way. After this it does nothing, nor may the shard leave without a
        // move.
        if !ends.source.sql.move_return(self.shard, epoch, self.next_write()).await? {
            return Ok(Stepped::Ended);
        }
        let days: Vec<NaiveDate> = ends.target.sql.partition_days().await?;
        if !self.empty_target(ends, epoch, &days).await? {
            return Ok(Stepped::Ended);
        }
        let is_dropped = ends.target.sql.move_drop(self.shard, epoch, self.next_write()).await?;
        Ok(if is_dropped { Stepped::On } else { Stepped::Ended })
    }

    /// Deletes the rows of the shard in its target, of the archive those in these partitions. `false`: another owner
    /// fills the shard, or this node ends.
    pub(super) async fn empty_target(&self, ends: &Ends, epoch: Epoch, days: &[NaiveDate]) -> Result<bool, Error> {
        let mut cursor = PageCursor::FIRST;
        while cursor != PageCursor::Done {
            if self.stop.is_cancelled() {
                return Ok(false);
            }
            self.beat();
            let began = Instant::now();
            let page = ends.target.sql.move_page(self.shard, &cursor, days, false, &self.write_paces).await?;
            if !page.rows.is_empty() {
                let write_began = clock::instant();
                let written = ends.target.sql.move_write(self.shard, epoch, self.next_write(), &page.rows).await;
                self.write_paces.note(MoveRead::Page, write_began, &written);
                if !written? {
                    return Ok(false);
                }
            }
            cursor = page.next;
            self.pause(began).await;
        }
        Ok(true)
    }
}
