//! Reads the rows of a pass, and finds a row whose request is why the read fails.

use std::time::Duration;

use common::ids::{ShardId, TaskId};

use super::{BATCH, OTHERS_AFTER, PassState, SqlIntake, refuse::ASIDE_MOST};
use crate::store::{
    Error,
    inbox::{InboxRow, InboxScope},
};

/// The reads of a row alone that fail before it is refused, each with reads of other rows since the one before. A disk
/// that stalls fails some of them, and a lock none. With the pauses they take half a minute; if each runs out of its
/// time, more than a minute.
pub(super) const UNREAD_TRIES: u32 = 5;

/// The first pause before such a row is read again. It doubles each time: a try that runs out of its time takes 10 s
/// from the others.
const UNREAD_AGAIN: Duration = Duration::from_secs(2);

const UNREAD_AGAIN_MOST: Duration = Duration::from_secs(30);

/// A row whose read alone has failed.
#[derive(Debug)]
pub(super) struct Unread {
    /// The reads that failed.
    failures: u32,
    /// Whether other rows were read since the last of them.
    others_pass: bool,
    pause: Duration,
}

impl PassState {
    /// Notes the rows that a read has returned.
    fn note_read(&mut self, rows: &[InboxRow]) {
        if rows.is_empty() {
            return;
        }
        self.unread.retain(|id, _| rows.iter().all(|row| row.id != *id));
        self.unread.values_mut().for_each(|unread| unread.others_pass = true);
    }

    /// Decides on a row that could not be read alone: leaves it alone for a while, or returns whether it never can be.
    fn is_unreadable(&mut self, id: TaskId) -> bool {
        let new = Unread { failures: 0, others_pass: true, pause: UNREAD_AGAIN };
        let unread = self.unread.entry(id).or_insert(new);
        unread.failures += u32::from(std::mem::take(&mut unread.others_pass));
        if unread.failures >= UNREAD_TRIES {
            self.unread.remove(&id);
            return true;
        }
        let pause = unread.pause;
        unread.pause = (pause * 2).min(UNREAD_AGAIN_MOST);
        self.leave_alone([id], pause);
        while self.unread.len() > ASIDE_MOST {
            self.unread.pop_first();
        }
        // Others may wait behind it.
        self.has_more = true;
        false
    }
}

impl SqlIntake {
    /// Reads a batch of rows. If a row may be why that fails, reads one alone. If that fails alike, leaves this row
    /// alone for a while, so that the others have their turn. A row that fails again and again comes without its
    /// request.
    pub(super) async fn read(&self, state: &mut PassState) -> Result<Vec<InboxRow>, Error> {
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
            .collect();
        let aside: Vec<TaskId> = state.aside.keys().copied().collect();
        let wanted = InboxScope {
            owned: &owned,
            reachable: &reachable,
            others_after: OTHERS_AFTER,
            most: BATCH,
            aside: &aside,
            known: self.books.load().revision(),
        };
        let one = InboxScope { most: 1, ..wanted };
        let source = self.source();
        let read = match source.inbox_read(wanted).await {
            Err(error) if may_blame_a_request(&error) => source.inbox_read(one).await,
            read => read,
        };
        match read {
            Ok(rows) => {
                state.note_read(&rows);
                Ok(rows)
            }
            // An older row may have come since then. It has its turn soon.
            Err(error) if may_blame_a_request(&error) => {
                let rows = source.inbox_ids(one).await?;
                let is_unreadable = rows.first().is_some_and(|row| state.is_unreadable(row.id));
                if is_unreadable { Ok(rows) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the request of a row may be why a read failed: also where the read ran out of its time, because to unpack
/// the requests may be what takes so long. A lock says nothing about any row.
fn may_blame_a_request(error: &Error) -> bool {
    error.may_blame_a_row() || error.is_out_of_time()
}
