//! Turns and crowds: which rows and shards a pass leaves out, so that rows that have to wait hold up no others.
//!
//! A row that cannot leave the inbox yet, as while another transaction locks its key, is put aside. No pass reads it
//! until its pause is over. Four terms say what happens when many rows are aside:
//!
//! - **Turn of others**: rows aside are old, so after their pauses they come first and may fill each batch. While other
//!   rows wait behind them, every second pass is a turn of others: it leaves out all rows aside.
//! - **Crowd**: when more rows are aside than a node keeps in mind, it forgets those of the shard that has most, first
//!   of one that is not crowded. These are a crowd, and their shard is crowded: turns of others leave out all its rows.
//! - **In turn**: two crowds in one pass would hold each other up. So of the crowded shards, a pass that is no turn of
//!   others reads only the next in turn. That one is crowded until such a pass has read all its rows.
//! - **Alone**: older rows of other shards may fill the batch before a crowd is read. So in every second round of the
//!   crowded shards, the one in turn is alone: the pass reads no other shard.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use common::ids::{QueueName, ShardId, TaskId};

use super::{
    AVOIDED, BATCH, PassState,
    looks::{Left, MANY},
};
use crate::store::inbox::InboxRow;

/// The most rows that are left alone. Each look sends their ids. Beyond it, shards are crowded.
pub(super) const ASIDE_MOST: usize = 10_000;

/// A row that is left alone for a while.
#[derive(Debug)]
pub(super) struct Aside {
    pub until: Instant,
    /// The key of a row that is held, or waits behind one: later rows with it wait behind this one.
    pub key: Option<OwnedKey>,
}

/// A [`common::task::TaskKey`] that outlives its task.
pub(super) type OwnedKey = (QueueName, Option<String>, String);

/// Whose turn a pass is, and what the next one has to know of it.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Shards whose rows made room when more than `ASIDE_MOST` of all shards were aside. The turns of others leave them
    /// out. Any other pass reads one of them, each in turn, until it reads all rows of that one.
    pub crowded: BTreeSet<ShardId>,
    /// The crowded shard that had the last of these turns.
    crowd_in_turn: Option<ShardId>,
    /// Whether crowded shards have their turns alone. This changes with each round of them: the rows of all shards have
    /// their turn, too, and those that are held may be older than a crowd whose lock has ended.
    are_crowds_alone: bool,
    /// The crowded shards to which this pass has added rows that it does not keep in mind.
    pub crowded_now: BTreeSet<ShardId>,
    /// Whether the last pass that was not of others took rows out of the inbox, as far as it knows.
    pub drains: bool,
    /// Whether this pass leaves out all of `aside`, however long they have waited, and all crowded shards.
    pub is_turn_of_others: bool,
}

impl PassState {
    /// Lets rows and databases take part again whose pause is over. While other rows wait behind them, only every
    /// second pass does so, and for one batch: those that have waited longest. So both kinds have their turn, however
    /// slow the passes are. A crowded shard that has its turn alone lets in its own rows only: older ones of other
    /// shards may be so many, or so large, that they fill the batch.
    pub(super) fn let_in_again(&mut self, now: Instant) {
        self.turns.crowded_now.clear();
        self.turns.is_turn_of_others = self.has_more && !self.turns.is_turn_of_others;
        if self.turns.is_turn_of_others {
            return;
        }
        // Until the pass has ended well.
        self.turns.drains = false;
        let next =
            self.turns.crowd_in_turn.and_then(|last| self.turns.crowded.iter().find(|shard| **shard > last)).copied();
        if next.is_none() {
            self.turns.are_crowds_alone = !self.turns.are_crowds_alone;
        }
        self.turns.crowd_in_turn = next.or_else(|| self.turns.crowded.first().copied());
        self.avoided.retain(|_, since| now.saturating_duration_since(*since) < AVOIDED);
        let alone = self.alone();
        let is_left_out = |id: &TaskId| alone.is_some_and(|shard| shard != id.shard());
        let over = self.aside.iter().filter(|(id, aside)| aside.until <= now && !is_left_out(id));
        let mut over: Vec<(Instant, TaskId)> = over.map(|(id, aside)| (aside.until, *id)).collect();
        over.sort_unstable();
        over.truncate(if self.has_more || !self.turns.crowded.is_empty() { BATCH } else { ASIDE_MOST });
        for (_, id) in over {
            self.aside.remove(&id);
        }
    }

    pub(super) fn put_aside(&mut self, rows: impl IntoIterator<Item = (TaskId, Option<OwnedKey>)>, until: Instant) {
        self.put_each_aside(rows.into_iter().map(|(id, key)| (id, Aside { until, key })));
    }

    /// Makes room once for all of them: to find the largest crowd costs a look at all rows aside.
    pub(super) fn put_each_aside(&mut self, rows: impl IntoIterator<Item = (TaskId, Aside)>) {
        self.aside.extend(rows);
        while self.aside.len() > ASIDE_MOST {
            self.crowd_out();
        }
    }

    /// Forgets the rows of the shard that has most of those aside. They come back at the head of the inbox and fill
    /// batches, so the turns of others leave out the whole shard. A key has one shard: no later row of theirs goes
    /// first, unless the `placement` of their queue has changed between the two, and with it the shard of the key. A
    /// mark from which the others are read would pass rows that this node knows nothing of.
    ///
    /// A shard that is not crowded yet goes before one that is: else its rows fill the turns of others each time the
    /// other makes room again. One with less than a batch aside fills none.
    fn crowd_out(&mut self) {
        let mut rows: BTreeMap<ShardId, usize> = BTreeMap::new();
        for id in self.aside.keys() {
            *rows.entry(id.shard()).or_default() += 1;
        }
        let is_new_crowd = |shard: &ShardId, rows: usize| rows >= BATCH && !self.turns.crowded.contains(shard);
        let most = rows.into_iter().max_by_key(|(shard, rows)| (is_new_crowd(shard, *rows), *rows));
        if let Some((shard, _)) = most {
            self.aside.retain(|id, _| id.shard() != shard);
            self.turns.crowded.insert(shard);
            self.turns.crowded_now.insert(shard);
        }
    }

    /// Whether this pass reads no row of the shard. Two crowds in one pass would hold each other up: that of a lock
    /// that has ended would wait behind one that is still held.
    pub(super) fn leaves_out(&self, shard: ShardId) -> bool {
        match self.alone() {
            Some(alone) => shard != alone,
            None => {
                self.turns.crowded.contains(&shard)
                    && (self.turns.is_turn_of_others || self.turns.crowd_in_turn != Some(shard))
            }
        }
    }

    /// The crowded shard of which alone this pass reads rows.
    fn alone(&self) -> Option<ShardId> {
        self.turns.crowd_in_turn.filter(|_| self.turns.are_crowds_alone && !self.turns.is_turn_of_others)
    }

    /// Notes whether rows may wait behind those that the pass has read, which are of the shards `reached`. If none
    /// does, the crowded shard that had this turn is crowded no longer. Rows of the others wait, and so do those of a
    /// shard whose database does not take them at the moment.
    pub(super) fn note_more(&mut self, has_more: bool, reached: &[ShardId]) {
        if let Some(shard) = self.turns.crowd_in_turn
            && !has_more
            && !self.turns.is_turn_of_others
            && reached.contains(&shard)
        {
            self.turns.crowded.remove(&shard);
        }
        self.has_more = has_more || self.alone().is_some() || !self.turns.crowded.is_empty();
    }

    /// What the pass that has read `rows` leaves in the inbox. `is_unread`: some of them wait for a read of the queues.
    pub(super) fn left(&mut self, rows: &[InboxRow], is_unread: bool) -> Left {
        // If the pass read the same rows again, an application is about to cancel them, and the next pass waits.
        let head = rows.first().map(|row| row.id);
        let is_new = head.is_some() && std::mem::replace(&mut self.head, head) != head;
        if !self.turns.is_turn_of_others {
            let waits = |id: &TaskId| self.aside.contains_key(id) || self.turns.crowded_now.contains(&id.shard());
            self.turns.drains = rows.iter().any(|row| !waits(&row.id));
            if head.is_none() && self.alone().is_some() {
                // The rows of other shards wait meanwhile. The next pass is theirs.
                return Left::More;
            }
        } else if head.is_none() && self.has_more && self.turns.drains {
            // The crowd goes on. While its rows are held, this turn gives the database its rest.
            return Left::More;
        }
        // While queues cannot be read, passes may wait for that. Each finds other rows first.
        match (is_new && !is_unread, self.has_more) {
            (false, _) => Left::Nothing,
            (true, false) if rows.len() < MANY => Left::Fresh,
            (true, false) => Left::FreshAfterMany,
            (true, true) => Left::More,
        }
    }
}
