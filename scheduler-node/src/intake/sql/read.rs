//! Reads the rows of a pass, and finds rows whose requests are why the read fails.
//!
//! No batch has such a row before a read of it alone has passed. So 10,000 of them keep no other row waiting for ever.
//! Each one costs two reads that fail, before any row behind it is read. Rows before it in its batch are read one by
//! one. The reads of it alone take half of the time at most. Where reads fail at once, some hundred such rows are
//! found within half a minute, and refused within three more while others are read. Where each read runs out of its 5
//! s, a row costs those behind it 15 s, and is refused within a minute for each such row.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use common::{
    ids::{ShardId, TaskId},
    wire::Problem,
};

use super::{BATCH, OTHERS_AFTER, PassState, SqlIntake, turns::ASIDE_MOST};
use crate::store::{
    Error,
    inbox::{InboxRow, InboxScope},
};

/// The reads of a row alone that fail before it is refused, each with reads of other rows since the one before. A disk
/// that stalls fails some of them, and a lock none. With the pauses they take half a minute at least.
pub(super) const UNREAD_TRIES: u32 = 5;

/// The first pause before such a row is read again. It doubles each time.
const UNREAD_AGAIN: Duration = Duration::from_secs(2);

const UNREAD_AGAIN_MOST: Duration = Duration::from_secs(30);

/// How long a pass looks for such rows, and how long it reads them again. The read under way then is the last one.
const UNREAD_WITHIN: Duration = Duration::from_millis(100);

/// A row whose read alone has failed.
#[derive(Debug)]
pub(super) struct Unread {
    /// The reads that failed.
    failures: u32,
    /// Whether other rows were read since the last of them.
    others_pass: bool,
    pause: Duration,
    /// When it is read alone again.
    pub until: Instant,
}

/// What a pass has read.
#[derive(Debug)]
pub(super) struct ReadRows {
    pub rows: Vec<InboxRow>,
    /// The shards whose rows the pass reads.
    pub reached: Vec<ShardId>,
    /// Rows whose requests can never be read.
    unreadable: Vec<InboxRow>,
    /// Whether the read of many has failed, and that of the oldest row has not.
    is_of_one: bool,
}

/// What a read of many rows has found.
#[derive(Debug)]
enum Found {
    Rows(Vec<InboxRow>),
    /// The oldest row. The read of many has failed.
    One(Vec<InboxRow>),
    /// The oldest row. The read of it alone failed, too.
    Unread(InboxRow, Error),
}

impl ReadRows {
    /// Whether rows may wait behind these.
    pub(super) fn has_more(&self) -> bool {
        let is_last = self.rows.iter().any(|row| row.is_last || row.request.is_none());
        let may_be_read_next = self.is_of_one && !self.rows.is_empty();
        is_last || may_be_read_next || self.rows.len() == BATCH || !self.unreadable.is_empty()
    }

    /// The rows to refuse, of which nothing but their ids is known.
    pub(super) fn refused(&self) -> Vec<(&InboxRow, Problem)> {
        let problem = || Problem::unprocessable("the database cannot read the submission");
        self.unreadable.iter().map(|row| (row, problem())).collect()
    }
}

impl PassState {
    /// Notes the rows that a batch has returned.
    fn note_read(&mut self, rows: &[InboxRow]) {
        if rows.is_empty() {
            return;
        }
        for row in rows {
            self.unread.remove(&row.id);
        }
        self.unread.values_mut().for_each(|unread| unread.others_pass = true);
    }

    /// Forgets the unreadable rows that are refused by now. One that is left alone is still to be refused.
    pub(super) fn forget_refused(&mut self, read: &ReadRows) {
        for row in &read.unreadable {
            if !self.aside.contains_key(&row.id) {
                self.unread.remove(&row.id);
            }
        }
    }

    /// Notes that a row could not be read alone, and leaves it out for a while. Returns whether it can never be read.
    fn is_unreadable(&mut self, id: TaskId) -> bool {
        let now = Instant::now();
        let new = Unread { failures: 0, others_pass: true, pause: UNREAD_AGAIN, until: now };
        let unread = self.unread.entry(id).or_insert(new);
        unread.failures += u32::from(std::mem::take(&mut unread.others_pass));
        unread.until = now + unread.pause;
        unread.pause = (unread.pause * 2).min(UNREAD_AGAIN_MOST);
        let is_unreadable = unread.failures >= UNREAD_TRIES;
        while self.unread.len() > ASIDE_MOST {
            self.unread.pop_first();
        }
        // Others may wait behind it.
        self.has_more = true;
        is_unreadable
    }

    /// The row to read again: of those whose pause is over, the one that has waited longest.
    fn next_unread(&self, reachable: &[ShardId]) -> Option<TaskId> {
        let now = Instant::now();
        let due = self.unread.iter().filter(|(id, unread)| unread.until <= now && reachable.contains(&id.shard()));
        due.min_by_key(|(_, unread)| unread.until).map(|(id, _)| *id)
    }

    /// Leaves a row out for a moment without a word on whether it can be read.
    fn postpone(&mut self, id: TaskId) {
        if let Some(unread) = self.unread.get_mut(&id) {
            unread.until = Instant::now() + UNREAD_AGAIN;
        }
    }
}

impl SqlIntake {
    /// Reads a batch of rows. Rows whose requests are why that fails are left out of it.
    pub(super) async fn read(&self, state: &mut PassState) -> Result<ReadRows, Error> {
        let fitness = self.fitness.borrow().clone();
        let shares = self.databases.all().iter().map(|database| database.owned_shards.claimable_shards());
        let owned: Vec<ShardId> = shares.flat_map(|shards| shards.to_vec()).collect();
        let map = self.databases.places().load();
        let reachable: Vec<ShardId> = self
            .databases
            .indexed()
            .filter(|(index, database)| {
                let is_left_out = state.avoided.contains_key(index) || (state.skips_own && *index == self.index);
                fitness.is_fit(database.name()) && !is_left_out
            })
            .flat_map(|(index, _)| map.open(index))
            .filter(|shard| !state.leaves_out(*shard))
            .collect();
        let (mut readable, mut unreadable) = self.read_again(&reachable, state).await?;
        let began = Instant::now();
        loop {
            let left_out = state.unread.keys().filter(|id| !readable.contains(id));
            let aside: Vec<TaskId> = state.aside.keys().chain(left_out).copied().collect();
            let wanted = InboxScope {
                owned: &owned,
                reachable: &reachable,
                others_after: OTHERS_AFTER,
                most: BATCH,
                aside: &aside,
                known: self.books.load().revision(),
            };
            let found = self.read_some(wanted).await?;
            let is_of_one = matches!(found, Found::One(_));
            match found {
                Found::Rows(rows) | Found::One(rows) => {
                    state.note_read(&rows);
                    return Ok(ReadRows { rows, reached: reachable, unreadable, is_of_one });
                }
                // An older row may have come since the read that failed. It is soon read again.
                Found::Unread(row, error) => {
                    readable.remove(&row.id);
                    if state.is_unreadable(row.id) {
                        unreadable.push(row);
                    }
                    if began.elapsed() >= UNREAD_WITHIN {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Reads a batch of rows. If a row may be why that fails, reads the oldest one alone.
    async fn read_some(&self, wanted: InboxScope<'_>) -> Result<Found, Error> {
        let (source, one) = (self.source(), InboxScope { most: 1, ..wanted });
        match source.inbox_read(wanted).await {
            Err(error) if may_blame_a_request(&error) => {}
            read => return read.map(Found::Rows),
        }
        match source.inbox_read(one).await {
            Err(error) if may_blame_a_request(&error) => match source.inbox_ids(one).await?.pop() {
                Some(row) => Ok(Found::Unread(row, error)),
                None => Err(error),
            },
            read => read.map(Found::One),
        }
    }

    /// Reads rows again, each alone, that could not be read. Returns those that can, which this pass may read with the
    /// others, and those that never can.
    async fn read_again(
        &self,
        reachable: &[ShardId],
        state: &mut PassState,
    ) -> Result<(BTreeSet<TaskId>, Vec<InboxRow>), Error> {
        let (source, began) = (self.source(), Instant::now());
        let (mut readable, mut unreadable) = (BTreeSet::new(), Vec::new());
        if state.reads_again_at.is_some_and(|at| began < at) {
            return Ok((readable, unreadable));
        }
        while began.elapsed() < UNREAD_WITHIN
            && let Some(id) = state.next_unread(reachable)
        {
            // Where a lock or an outage ends the pass, others have their turn before it.
            state.postpone(id);
            match source.inbox_read_alone(id, true).await {
                Ok(Some(_)) => {
                    readable.insert(id);
                }
                Ok(None) => {
                    state.unread.remove(&id);
                }
                Err(error) if may_blame_a_request(&error) => {
                    if state.is_unreadable(id) {
                        unreadable.extend(source.inbox_read_alone(id, false).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        // The other half of the time is for batches.
        state.reads_again_at = Some(Instant::now() + began.elapsed());
        Ok((readable, unreadable))
    }
}

/// Whether the request of a row may be why a read failed: also where the read ran out of its time, because to unpack
/// the requests may be what takes so long. A lock says nothing about any row.
fn may_blame_a_request(error: &Error) -> bool {
    error.may_blame_a_row() || error.is_out_of_time()
}
