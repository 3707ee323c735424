//! The node's share of one database: the shards it owns, the heap of keys that come due in them, and the tasks in
//! flight.
//!
//! It is memory only: the database still has everything it forgets, and the next preload reads that again. Its
//! rules:
//! - only shards that are owned and that nothing has stopped enter the heap or leave it;
//! - a task is in flight from the moment it leaves the heap until its outcome is written, and never twice; if others
//!   may wait for its success, it stays so until the first of them are released;
//! - a drain waits for the tasks in flight, so that the next owner finds nothing half done.

mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use common::{
    delay::{
        heap::{Entry, WakeKind},
        turn::{self, Reach, Room},
    },
    ids::{Epoch, ShardId, TaskId},
    time::UnixMicros,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use self::state::Stop;
use self::state::{InFlight, Owned, State};
use super::failures::Failures;
use crate::{clock, history::History, until::until};

/// One database's share of this node. A lock is held for one operation on a map, never across an await.
#[derive(Debug)]
pub struct OwnedShards {
    state: Mutex<State>,
    /// Wakes the dispatcher: the head of the heap is earlier than before, or there is room again.
    pub heap_changed: Notify,
    /// Wakes the preloader: a shard was adopted, or a nudge came.
    pub preload_wanted: Notify,
    in_flight_less: Notify,
    /// The failures after which tasks were left to be looked at again. They come as often as the looks, for as long as
    /// an outage lasts.
    pub left_open: Failures,
    /// Records which shards are held, and under which epochs.
    history: History,
}

/// How long a shard's fence has been this node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub epoch: Epoch,
    /// The epoch since which all claims are this node's own: an earlier one than `epoch` if the shard has moved since.
    pub own_since: Epoch,
}

/// The most such rows named to a statement that chooses its rows itself: it compares each row with all of them.
const ASIDE_NAMED: usize = 1_000;

impl OwnedShards {
    /// `heap_entries`: the most keys that the heap keeps.
    pub fn new(heap_entries: usize) -> Self {
        Self {
            state: Mutex::new(State::new(heap_entries)),
            heap_changed: Notify::new(),
            preload_wanted: Notify::new(),
            in_flight_less: Notify::new(),
            left_open: Failures::default(),
            history: History::default(),
        }
    }

    /// Records from here on which shards are held.
    pub fn with_history(self, history: History) -> Self {
        Self { history, ..self }
    }

    /// Every shard whose fence this node holds, stopped ones included.
    pub fn owned(&self) -> BTreeMap<ShardId, Epoch> {
        self.state.lock().owned.iter().map(|(shard, owned)| (*shard, owned.epoch)).collect()
    }

    /// Those of `shards` whose fence this node holds, stopped ones included.
    pub fn epochs(&self, shards: impl IntoIterator<Item = ShardId>) -> BTreeMap<ShardId, Epoch> {
        let state = self.state.lock();
        shards.into_iter().filter_map(|shard| Some((shard, state.owned.get(&shard)?.epoch))).collect()
    }

    /// The shards that may be claimed from, with the epochs to present to the fence.
    pub fn claimable(&self) -> BTreeMap<ShardId, Epoch> {
        self.state.lock().fences()
    }

    /// The shards that may be claimed from, in order. After a change of them, or of an epoch, it is another list.
    pub fn claimable_shards(&self) -> Arc<[ShardId]> {
        let state = &mut *self.state.lock();
        if state.claimable.is_none() {
            state.claimable = Some(state.free().map(|(shard, _)| shard).collect());
        }
        state.claimable.clone().unwrap_or_default()
    }

    pub fn is_claimable(&self, shard: ShardId) -> bool {
        self.state.lock().claimable(shard)
    }

    /// Starts to dispatch shards whose fence this node has just taken. The preloader reads them at once.
    pub fn adopt(&self, taken: &[(ShardId, Epoch)]) {
        if taken.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.claimable = None;
        for &(shard, epoch) in taken {
            state.owned.insert(shard, Owned { epoch, own_since: epoch, stops: BTreeSet::new() });
            state.adopted.insert(shard);
        }
        // The first read finds them: their claims are of an older epoch.
        state.forget_doubts(taken.iter().map(|(shard, _)| *shard));
        // Under the lock, so that no claim under the epoch is recorded before it.
        self.history.acquired(taken);
        drop(state);
        self.preload_wanted.notify_one();
    }

    /// Starts to dispatch a shard that this node has owned all along: its epoch has changed in a move. What the node
    /// claimed under the epochs since `own_since` is not published again. A release of the shard goes on.
    pub fn adopt_own(&self, shard: ShardId, epoch: Epoch, own_since: Epoch) {
        let mut state = self.state.lock();
        state.claimable = None;
        state.owned.insert(shard, Owned { epoch, own_since, stops: BTreeSet::new() });
        state.go_on(shard);
        self.history.acquired(&[(shard, epoch)]);
        drop(state);
        self.preload_wanted.notify_one();
    }

    /// Claims from a shard again after [`Self::stop_claiming`], if it is still held under `epoch` and no other reason
    /// stops the claims.
    pub fn resume_claiming(&self, shard: ShardId, epoch: Epoch, why: Stop) {
        let mut state = self.state.lock();
        let Some(owned) = state.owned.get_mut(&shard).filter(|owned| owned.epoch == epoch) else { return };
        if !owned.stops.remove(&why) {
            return;
        }
        state.go_on(shard);
        drop(state);
        self.preload_wanted.notify_one();
        self.heap_changed.notify_one();
    }

    /// Whether this stops the claims from an owned shard.
    pub fn is_stopped(&self, shard: ShardId, why: Stop) -> bool {
        self.state.lock().owned.get(&shard).is_some_and(|owned| owned.stops.contains(&why))
    }

    /// The tasks of a shard that a rescue has still to look at.
    pub fn in_doubt(&self, shard: ShardId) -> Vec<TaskId> {
        self.state.lock().in_doubt.iter().copied().filter(|id| id.shard() == shard).collect()
    }

    /// Rescues all tasks in doubt at once. Their moments are far ahead after the database's clock was set back.
    pub fn rescue_doubts(&self) {
        self.state.lock().offer_doubts(|_| true);
        self.heap_changed.notify_one();
    }

    /// The epoch since which all claims of a shard are this node's own.
    pub fn own_since(&self, shard: ShardId) -> Option<Epoch> {
        self.state.lock().owned.get(&shard).map(|owned| owned.own_since)
    }

    /// The shards that may be claimed from, each with the epoch since which all claims are this node's own.
    pub fn claimable_since(&self) -> BTreeMap<ShardId, Epoch> {
        let state = self.state.lock();
        state.free().map(|(shard, owned)| (shard, owned.own_since)).collect()
    }

    /// Every shard whose fence this node holds, stopped ones included.
    pub fn held(&self) -> BTreeMap<ShardId, Held> {
        let held = |owned: &Owned| Held { epoch: owned.epoch, own_since: owned.own_since };
        self.state.lock().owned.iter().map(|(shard, owned)| (*shard, held(owned))).collect()
    }

    /// Stops claims from `shards`. Tasks in flight go on.
    pub fn stop_claiming(&self, shards: &[ShardId], why: Stop) {
        self.state.lock().stop_claiming(shards, why);
    }

    /// Stops claims from a shard only while it is held under `epoch`: what is known of an old epoch says nothing
    /// about a newer one, which another task may have adopted meanwhile.
    pub fn stop_claiming_under(&self, shard: ShardId, epoch: Epoch, why: Stop) {
        let mut state = self.state.lock();
        if state.is_held_under(shard, epoch) {
            state.stop_claiming(&[shard], why);
        }
    }

    /// Stops claims from shards that the node gives to another one. Those that come into this database meanwhile, with
    /// a move, are not claimed from either.
    pub fn begin_release(&self, shards: &[ShardId]) {
        self.state.lock().begin_release(shards);
    }

    /// Claims from shards again whose release has ended, if they are still owned and nothing else stops the claims.
    pub fn end_release(&self, shards: impl IntoIterator<Item = ShardId>) {
        let mut state = self.state.lock();
        for shard in shards {
            if state.released.remove(&shard) {
                state.go_on(shard);
            }
        }
        drop(state);
        self.preload_wanted.notify_one();
        self.heap_changed.notify_one();
    }

    /// Waits until no task of `shards` is in flight or being picked. Call after the claims have stopped; the caller
    /// bounds the wait.
    pub async fn drained(&self, shards: &[ShardId]) {
        until(|| self.in_flight_less.notified(), || (!self.state.lock().is_busy_with(shards)).then_some(())).await;
    }

    /// Those of `shards` of which a task is in flight or being picked.
    pub fn busy(&self, shards: &[ShardId]) -> Vec<ShardId> {
        let state = self.state.lock();
        shards.iter().copied().filter(|shard| state.is_busy_with(&[*shard])).collect()
    }

    /// The shards for whose tasks in flight a release or the cut of a move waits, or is about to.
    pub fn draining(&self) -> BTreeSet<ShardId> {
        self.state.lock().draining()
    }

    /// Ends ownership in memory, after a release or when another node has taken the fence.
    pub fn forget(&self, shards: &[ShardId]) {
        self.state.lock().forget(shards, &self.history);
    }

    /// Forgets a shard only while it is held under `epoch`: a refused old epoch says nothing about a newer one.
    pub fn forget_epoch(&self, shard: ShardId, epoch: Epoch) -> bool {
        let mut state = self.state.lock();
        let is_same = state.is_held_under(shard, epoch);
        if is_same {
            state.forget(&[shard], &self.history);
        }
        is_same
    }

    /// Adds keys that come due. Drops those of shards that may not be claimed from; keeps those in flight for later.
    pub fn offer(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.state.lock();
        let head = state.heap.next_due();
        for entry in entries {
            state.offer(entry);
        }
        let earlier = state.heap.next_due() != head;
        drop(state);
        if earlier {
            self.heap_changed.notify_one();
        }
    }

    pub fn next_due(&self) -> Option<UnixMicros> {
        self.state.lock().heap.next_due()
    }

    /// How many tasks to claim are due by `until`, earliest first, each count with the earliest of their moments. Ends
    /// with the count that makes them `most`.
    pub fn claim_counts(&self, until: UnixMicros, most: usize) -> Vec<(UnixMicros, usize)> {
        let (mut state, mut before) = (self.state.lock(), 0);
        let is_wanted = |(_, tasks): &(UnixMicros, usize)| {
            let is_wanted = before < most;
            before += tasks;
            is_wanted
        };
        state.heap.claim_counts(until).take_while(is_wanted).collect()
    }

    /// The moments of up to `most` tasks to claim that are due by `until`, earliest first.
    #[cfg(test)]
    pub fn claims_until(&self, until: UnixMicros, most: usize) -> Vec<UnixMicros> {
        self.state.lock().heap.claims_until(until).take(most).collect()
    }

    /// Takes keys out of the heap. From then on they are in flight.
    pub fn take_due(&self, reach: Reach, room: Room) -> Vec<Entry> {
        let mut state = self.state.lock();
        let entries = turn::take(&mut state.heap, reach, room);
        for entry in &entries {
            state.in_flight.insert(entry.id, InFlight::default());
            state.in_doubt.remove(&entry.id);
        }
        entries
    }

    /// Begins to take tasks that are not known yet, in those of the shards that may still be claimed from under these
    /// epochs. A drain of them waits until the pick is dropped.
    pub fn pick(&self, fences: &BTreeMap<ShardId, Epoch>) -> Picking<'_> {
        let mut state = self.state.lock();
        let mut fences = fences.clone();
        fences.retain(|shard, epoch| state.claimable(*shard) && state.is_held_under(*shard, *epoch));
        let number = state.picks.last_key_value().map_or(0, |(last, _)| last + 1);
        state.picks.insert(number, fences.clone());
        Picking { owned_shards: self, number, fences }
    }

    /// Marks tasks that were claimed without passing through the heap.
    pub fn begin(&self, ids: impl IntoIterator<Item = TaskId>) {
        let mut state = self.state.lock();
        for id in ids {
            state.heap.remove(id);
            state.in_doubt.remove(&id);
            state.in_flight.entry(id).or_default().is_claimed = true;
        }
    }

    /// Marks new tasks for a claim by their own insert: in flight where the shard may be claimed from and `window`
    /// has room. Returns the epoch to present for each, in their order. While a due key waits in the heap, no new
    /// task may pass it (`now` is the database's clock).
    pub fn begin_new(&self, ids: &[Option<TaskId>], now: UnixMicros, window: usize) -> Vec<Option<Epoch>> {
        let mut state = self.state.lock();
        let backlog = state.heap.next_due().is_some_and(|due| due <= now);
        let mut room = if backlog { 0 } else { window.saturating_sub(state.in_flight.len()) };
        ids.iter()
            .map(|id| {
                let id = id.filter(|id| room > 0 && state.claimable(id.shard()))?;
                room -= 1;
                state.in_flight.insert(id, InFlight::default());
                state.owned.get(&id.shard()).map(|owned| owned.epoch)
            })
            .collect()
    }

    /// Marks tasks that a claim asked for and did not get as no longer in flight. A pick may have got some of them
    /// meanwhile; these stay.
    pub fn end_unclaimed(&self, ids: impl IntoIterator<Item = TaskId>) {
        self.end_those(ids, |one| !one.is_claimed);
    }

    /// Those of `ids` that no statement has claimed for this node meanwhile.
    pub fn unclaimed(&self, ids: &[TaskId]) -> Vec<TaskId> {
        let state = self.state.lock();
        let is_unclaimed = |id: &TaskId| state.in_flight.get(id).is_none_or(|one| !one.is_claimed);
        ids.iter().copied().filter(is_unclaimed).collect()
    }

    /// Puts entries back that have left the heap, as they were. A pick may have got some of their tasks meanwhile;
    /// these stay in flight. A shard that may not be claimed from gets none back: it is read when it may be.
    pub fn give_back(&self, entries: impl IntoIterator<Item = Entry>) {
        let mut state = self.state.lock();
        for entry in entries {
            if state.in_flight.get(&entry.id).is_none_or(|one| one.is_claimed) {
                continue;
            }
            let then = state.in_flight.remove(&entry.id).and_then(|one| one.then);
            // What came meanwhile is newer: at equal moments its kind counts.
            for entry in [Some(entry), then].into_iter().flatten() {
                state.offer(entry);
            }
        }
        drop(state);
        self.in_flight_less.notify_waiters();
        self.heap_changed.notify_one();
    }

    /// Marks tasks as no longer in flight: their outcome is written and what waits for it was released, or there is
    /// nothing to write.
    pub fn end(&self, ids: impl IntoIterator<Item = TaskId>) {
        self.end_those(ids, |_| true);
    }

    fn end_those(&self, ids: impl IntoIterator<Item = TaskId>, may_end: impl Fn(&InFlight) -> bool) {
        let mut state = self.state.lock();
        for id in ids {
            if state.in_flight.get(&id).is_some_and(&may_end)
                && let Some(InFlight { then: Some(entry), .. }) = state.in_flight.remove(&id)
            {
                state.offer(entry);
            }
        }
        drop(state);
        self.in_flight_less.notify_waiters();
        self.heap_changed.notify_one();
    }

    /// Takes a row that the database refuses out of flight, and leaves it alone until `until`. Returns whether this
    /// is the first time.
    pub fn set_aside(&self, id: TaskId, until: Instant) -> bool {
        let first = self.state.lock().set_aside(id, until);
        self.end([id]);
        first
    }

    /// The rows that are left alone, for a statement that chooses its rows itself.
    pub fn aside(&self) -> Vec<TaskId> {
        let (state, now) = (self.state.lock(), clock::instant());
        state.aside.iter().filter(|(_, until)| **until > now).map(|(id, _)| *id).take(ASIDE_NAMED).collect()
    }

    /// Takes tasks with an unknown outcome out of flight: a rescue looks at each at `at` and does what is left to
    /// do. An entry that came in meanwhile is dropped: it may be older than the claim, and would replace the
    /// rescue.
    pub fn end_unknown(&self, ids: impl IntoIterator<Item = TaskId>, at: UnixMicros) {
        let mut state = self.state.lock();
        for id in ids {
            state.in_flight.remove(&id);
            state.heap.remove(id);
            state.offer(Entry { wake_at: at, id, kind: WakeKind::Rescue });
        }
        drop(state);
        self.in_flight_less.notify_waiters();
        self.heap_changed.notify_one();
    }

    /// Those of tasks in flight that are to be claimed again once they are settled, as for a retry.
    pub fn claimed_again(&self, ids: impl Iterator<Item = TaskId>) -> BTreeSet<TaskId> {
        let state = self.state.lock();
        ids.filter(|id| state.is_claimed_again(*id)).collect()
    }

    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    #[cfg(test)]
    pub fn is_in_flight(&self, id: TaskId) -> bool {
        self.state.lock().in_flight.contains_key(&id)
    }

    pub fn heap_len(&self) -> usize {
        self.state.lock().heap.len()
    }

    /// The moment after which the full heap has dropped keys, if it has.
    pub fn complete_until(&self) -> Option<UnixMicros> {
        self.state.lock().heap.complete_until()
    }

    /// Tells the heap that the dropped keys are about to be read again.
    pub fn reopen(&self) {
        self.state.lock().heap.reopen();
    }

    /// Marks shards in which rows were written within the horizon already read: the preloader reads them again now.
    pub fn nudge(&self, shards: impl IntoIterator<Item = ShardId>) {
        let mut state = self.state.lock();
        let mut any = false;
        for shard in shards {
            any |= state.claimable(shard) && state.nudged.insert(shard);
        }
        drop(state);
        if any {
            self.preload_wanted.notify_one();
        }
    }

    /// The shards adopted since the last call, each with the epoch since which all claims are this node's own.
    pub fn take_adopted(&self) -> BTreeMap<ShardId, Epoch> {
        let mut state = self.state.lock();
        let adopted = std::mem::take(&mut state.adopted);
        adopted.into_iter().filter_map(|shard| Some((shard, state.owned.get(&shard)?.own_since))).collect()
    }

    /// Marks adopted shards again whose first read failed.
    pub fn put_back_adopted(&self, shards: impl IntoIterator<Item = ShardId>) {
        let mut state = self.state.lock();
        for shard in shards {
            if state.owned.contains_key(&shard) {
                state.adopted.insert(shard);
            }
        }
    }

    pub fn take_nudged(&self) -> BTreeSet<ShardId> {
        std::mem::take(&mut self.state.lock().nudged)
    }
}

/// A pick under way.
#[derive(Debug)]
pub struct Picking<'a> {
    owned_shards: &'a OwnedShards,
    number: u64,
    /// The shards to pick from, with the epochs to present to the fence.
    pub fences: BTreeMap<ShardId, Epoch>,
}

impl Drop for Picking<'_> {
    fn drop(&mut self) {
        self.owned_shards.state.lock().picks.remove(&self.number);
        self.owned_shards.in_flight_less.notify_waiters();
    }
}
