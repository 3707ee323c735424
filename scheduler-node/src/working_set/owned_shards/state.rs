//! What stands behind the lock of a node's share of a database.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use common::{
    delay::heap::{DelayHeap, Entry, WakeKind},
    ids::{Epoch, ShardId, TaskId},
    time::UnixMicros,
};

use crate::{
    clock,
    history::{History, Step},
};

/// The most rows that are left alone. Beyond it rows are tried again and again, which is slow but harmless.
const ASIDE_MOST: usize = 10_000;

#[derive(Debug)]
pub(super) struct State {
    pub(super) owned: BTreeMap<ShardId, Owned>,
    /// The shards that may be claimed from; `None` after a change. Each submission asks for them.
    pub(super) claimable: Option<Arc<[ShardId]>>,
    pub(super) heap: DelayHeap,
    pub(super) in_flight: HashMap<TaskId, InFlight>,
    /// The tasks whose rescue is in the heap, or would be if their shard might be claimed from. A claimed row wakes
    /// some 45 s after its claim, so nothing else brings them back soon.
    pub(super) in_doubt: BTreeSet<TaskId>,
    /// Shards that the node gives to another one. They may be in this database, or come into it with a move.
    pub(super) released: BTreeSet<ShardId>,
    /// Adopted shards that are not read yet: all their due keys, and the claims that the owner before left.
    pub(super) adopted: BTreeSet<ShardId>,
    /// Shards in which another node wrote a row that is due within the horizon.
    pub(super) nudged: BTreeSet<ShardId>,
    /// Picks under way, each with the fences it presents. Its tasks are in flight only once its answer has arrived.
    pub(super) picks: BTreeMap<u64, BTreeMap<ShardId, Epoch>>,
    /// Rows that the database refuses to write, each with the moment until which it is left alone.
    pub(super) aside: HashMap<TaskId, Instant>,
}

/// A task between the heap and the write of its outcome, or the release of those that wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InFlight {
    /// The next entry, if the task came due again meanwhile: a rejection and its retry may be written before the
    /// confirm.
    pub(super) then: Option<Entry>,
    /// A claim or a pick of this node has got it.
    pub(super) is_claimed: bool,
}

/// Why claims from an owned shard stop, beside a release. Claims go on when the last reason has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// A move is in its last part.
    Cut,
    /// The shard map shows the shard as closed.
    Closed,
}

#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub(super) epoch: Epoch,
    /// A claim of this epoch or a later one is this node's own: it is in flight here, or its outcome is unknown and a
    /// rescue looks at it (`in_doubt`). Only a claim before it was left by another owner.
    pub(super) own_since: Epoch,
    /// Why claims have stopped, beside a release.
    pub(super) stops: BTreeSet<Stop>,
}

impl State {
    /// `heap_entries`: the most keys that the heap keeps.
    pub(super) fn new(heap_entries: usize) -> Self {
        Self {
            owned: BTreeMap::new(),
            claimable: None,
            heap: DelayHeap::new(heap_entries),
            in_flight: HashMap::new(),
            in_doubt: BTreeSet::new(),
            released: BTreeSet::new(),
            adopted: BTreeSet::new(),
            nudged: BTreeSet::new(),
            picks: BTreeMap::new(),
            aside: HashMap::new(),
        }
    }

    pub(super) fn claimable(&self, shard: ShardId) -> bool {
        self.owned.get(&shard).is_some_and(|owned| self.is_free(shard, owned))
    }

    /// Whether nothing stops the claims from an owned shard.
    fn is_free(&self, shard: ShardId, owned: &Owned) -> bool {
        owned.stops.is_empty() && !self.released.contains(&shard)
    }

    /// The shards that may be claimed from.
    pub(super) fn free(&self) -> impl Iterator<Item = (ShardId, &Owned)> {
        self.owned.iter().map(|(shard, owned)| (*shard, owned)).filter(|(shard, owned)| self.is_free(*shard, owned))
    }

    pub(super) fn fences(&self) -> BTreeMap<ShardId, Epoch> {
        self.free().map(|(shard, owned)| (shard, owned.epoch)).collect()
    }

    pub(super) fn is_busy_with(&self, shards: &[ShardId]) -> bool {
        self.in_flight.keys().any(|id| shards.contains(&id.shard()))
            || self.picks.values().any(|fences| shards.iter().any(|shard| fences.contains_key(shard)))
    }

    pub(super) fn is_held_under(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.owned.get(&shard).is_some_and(|owned| owned.epoch == epoch)
    }

    pub(super) fn stop_claiming(&mut self, shards: &[ShardId], why: Stop) {
        let mut stopped = Vec::new();
        for shard in shards {
            if self.owned.get_mut(shard).is_some_and(|owned| owned.stops.insert(why)) {
                stopped.push(*shard);
            }
        }
        self.drop_entries(&stopped);
    }

    pub(super) fn begin_release(&mut self, shards: &[ShardId]) {
        self.released.extend(shards);
        let owned: Vec<ShardId> = shards.iter().copied().filter(|shard| self.owned.contains_key(shard)).collect();
        self.drop_entries(&owned);
    }

    fn drop_entries(&mut self, shards: &[ShardId]) {
        // A shard that is not owned, or was stopped before, has no entries, and the list of shards stays the same.
        if shards.is_empty() {
            return;
        }
        self.claimable = None;
        for shard in shards {
            self.adopted.remove(shard);
        }
        self.heap.drop_shards(shards);
    }

    /// Claims from a shard again if nothing stops that any more. The preloader reads it at once.
    pub(super) fn go_on(&mut self, shard: ShardId) {
        if self.claimable(shard) {
            self.claimable = None;
            self.adopted.insert(shard);
            // They were in doubt when its claims stopped.
            self.offer_doubts(|one| one == shard);
        }
    }

    pub(super) fn forget(&mut self, shards: &[ShardId], history: &History) {
        for shard in shards {
            if let Some(Owned { epoch, .. }) = self.owned.remove(shard) {
                self.claimable = None;
                history.record(Step::ShardReleased { shard: *shard, epoch });
            }
            self.adopted.remove(shard);
        }
        self.forget_doubts(shards.iter().copied());
        self.heap.drop_shards(shards);
    }

    pub(super) fn is_aside(&self, id: TaskId) -> bool {
        self.aside.get(&id).is_some_and(|until| *until > clock::instant())
    }

    pub(super) fn draining(&self) -> BTreeSet<ShardId> {
        let is_cut = |owned: &Owned| owned.stops.contains(&Stop::Cut);
        let drains = |(shard, owned): &(&ShardId, &Owned)| self.released.contains(*shard) || is_cut(owned);
        self.owned.iter().filter(drains).map(|(shard, _)| *shard).collect()
    }

    pub(super) fn is_claimed_again(&self, id: TaskId) -> bool {
        let then = self.in_flight.get(&id).and_then(|one| one.then);
        then.is_some_and(|then| then.kind == WakeKind::Claim)
    }

    pub(super) fn set_aside(&mut self, id: TaskId, until: Instant) -> bool {
        if self.aside.len() >= ASIDE_MOST {
            let now = clock::instant();
            self.aside.retain(|_, until| *until > now);
        }
        self.aside.len() < ASIDE_MOST && self.aside.insert(id, until).is_none()
    }

    pub(super) fn offer(&mut self, entry: Entry) {
        if !self.owned.contains_key(&entry.id.shard()) || self.is_aside(entry.id) {
            return;
        }
        let is_claimable = self.claimable(entry.id.shard());
        match self.in_flight.get_mut(&entry.id) {
            Some(in_flight) if is_claimable => in_flight.then = Some(entry),
            _ => {
                if entry.kind == WakeKind::Rescue {
                    self.in_doubt.insert(entry.id);
                }
                if is_claimable {
                    self.heap.push(entry);
                }
            }
        }
    }

    /// Rescues the tasks in doubt of shards at once: their pauses are forgotten.
    pub(super) fn offer_doubts(&mut self, is_of: impl Fn(ShardId) -> bool) {
        seeded!(DoubtForgotten, return);
        let ids: Vec<TaskId> = self.in_doubt.iter().copied().filter(|id| is_of(id.shard())).collect();
        for id in ids {
            self.offer(Entry { wake_at: UnixMicros::FIRST, id, kind: WakeKind::Rescue });
        }
    }

    pub(super) fn forget_doubts(&mut self, shards: impl IntoIterator<Item = ShardId>) {
        if !self.in_doubt.is_empty() {
            let shards: BTreeSet<ShardId> = shards.into_iter().collect();
            self.in_doubt.retain(|id| !shards.contains(&id.shard()));
        }
    }
}
