//! Handles the results of the owner's acts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    cluster::AssignmentRecord,
    ids::{Epoch, ShardId},
};
use futures::FutureExt;

use super::{
    DRAIN_TIMEOUT, ETCD_RETRY, ETCD_RETRY_LONGEST, FENCE_RETRY, FENCE_RETRY_LONGEST, Fence, HOPELESS_DRAIN_TIMEOUT,
    Owner, RELEASED_TOGETHER, Retry, act::ActResult, log::Ranges,
};
use crate::{
    coordination::{Error, KEYS_PER_TRANSACTION, OwnerKey},
    store,
    working_set::owned_shards::OwnedShards,
};

impl<F: Fence> Owner<F> {
    pub(super) fn note(&mut self, done: ActResult) {
        match done {
            ActResult::Created { index, shards, result } => self.created(index, &shards, result),
            ActResult::Fenced { index, keys, waited: false, result } => self.took_free(index, keys, result),
            ActResult::Fenced { index, keys, waited: true, result } => self.waited(index, keys, result),
            ActResult::Confirmed { index, taken, result } => self.confirmed(index, &taken, result),
            ActResult::Reregistered { index, shards, overtaken, result } => {
                self.forget_overtaken(index, overtaken);
                self.reregistered(&shards, result);
            }
            ActResult::Looked { shards, result } => self.looked(shards, result),
            ActResult::Released { index, shards, slow, result } => {
                self.release_slow(index, slow);
                self.released(&shards, &result);
            }
        }
    }

    fn created(&mut self, index: usize, shards: &[ShardId], result: Result<Vec<OwnerKey>, Error>) {
        self.refused &= result.is_err();
        let keys = result.unwrap_or_else(|error| {
            self.failed("could not create owner keys", shards, &error);
            Vec::new()
        });
        // Where a key is missing, another node was quicker; the mirror is about to show which.
        let ours: BTreeSet<ShardId> = keys.iter().map(|key| key.shard).collect();
        self.rest(shards.iter().copied().filter(|shard| !ours.contains(shard)));
        self.databases[index].created.keys.extend(keys);
    }

    /// Goes on with the fences that were free, and sends the others to the statement that waits.
    fn took_free(&mut self, index: usize, keys: Vec<OwnerKey>, result: Result<Vec<(ShardId, Epoch)>, store::Error>) {
        self.databases[index].created.is_under_way = false;
        match result {
            Ok(taken) => {
                let left = self.fenced(index, keys, taken);
                let state = &mut self.databases[index];
                let waits = |key: &OwnerKey| Retry::waits(state.retries.get(&key.shard));
                let (contested, held): (Vec<_>, Vec<_>) = left.into_iter().partition(waits);
                // The next pass tries those again: their fences may be free long before that statement ends.
                let put = if state.contested.is_under_way { &mut state.put_off } else { &mut state.contested.keys };
                put.extend(contested);
                self.unfenced(index, &held, None);
            }
            Err(error) => self.unfenced(index, &keys, Some(&error)),
        }
    }

    fn waited(&mut self, index: usize, keys: Vec<OwnerKey>, result: Result<Vec<(ShardId, Epoch)>, store::Error>) {
        self.databases[index].contested.is_under_way = false;
        match result {
            // The database does not have what is left: the map is about to show the new place.
            Ok(taken) => {
                let left = self.fenced(index, keys, taken);
                self.rest(left.iter().map(|key| key.shard));
            }
            Err(error) => self.unfenced(index, &keys, Some(&error)),
        }
    }

    /// Confirms the keys whose fences are taken. Lets go of those whose shards the map shows elsewhere by now. Returns
    /// the others.
    fn fenced(&mut self, index: usize, keys: Vec<OwnerKey>, taken: Vec<(ShardId, Epoch)>) -> Vec<OwnerKey> {
        let epochs: BTreeMap<ShardId, Epoch> = taken.into_iter().collect();
        let mut fenced = Vec::with_capacity(keys.len());
        let mut left = Vec::new();
        for key in keys {
            match epochs.get(&key.shard) {
                Some(epoch) => fenced.push((key, *epoch)),
                None if self.index_of(key.shard) == Some(index) => left.push(key),
                None => drop(self.busy.remove(&key.shard)),
            }
        }
        let retries = &mut self.databases[index].retries;
        retries.retain(|shard, _| !epochs.contains_key(shard));
        for keys in fenced.chunks(KEYS_PER_TRANSACTION) {
            self.acts.push(self.actor.clone().confirm(index, keys.to_vec()).boxed());
        }
        left
    }

    /// Notes fences that could not be taken. Each shard has a pause of its own.
    fn unfenced(&mut self, index: usize, keys: &[OwnerKey], error: Option<&store::Error>) {
        let is_held = error.is_none_or(store::Error::is_contention);
        let retries = &mut self.databases[index].retries;
        let new: BTreeSet<ShardId> =
            keys.iter().map(|key| key.shard).filter(|shard| !retries.contains_key(shard)).collect();
        if let Some(error) = error.filter(|_| !new.is_empty()) {
            let (shards, error) = (Ranges(&new).to_string(), error as &dyn std::error::Error);
            tracing::warn!(shards, error, "could not take the fence; retrying");
        }
        for key in keys {
            let retry = Retry::after(retries.get(&key.shard).copied(), FENCE_RETRY, FENCE_RETRY_LONGEST);
            retries.insert(key.shard, if is_held { retry.held() } else { retry });
            self.busy.remove(&key.shard);
        }
    }

    fn confirmed(&mut self, index: usize, taken: &[(ShardId, Epoch)], result: Result<Vec<ShardId>, Error>) {
        self.refused &= result.is_err();
        let shards: Vec<ShardId> = taken.iter().map(|(shard, _)| *shard).collect();
        let confirmed: BTreeSet<ShardId> = match result {
            Ok(confirmed) => confirmed.into_iter().collect(),
            // It is unknown which node has the keys, but this node holds the fences: without it no node would
            // dispatch the shards.
            Err(error) => {
                self.say("could not confirm owner keys; the fence decides", &shards, &error);
                shards.iter().copied().collect()
            }
        };
        let (ours, late): (Vec<_>, Vec<_>) = taken.iter().partition(|(shard, _)| confirmed.contains(shard));
        for (shard, epoch) in late {
            tracing::info!(%shard, %epoch, "took the fence too late: the owner key no longer exists; giving the shard up");
        }
        for shard in &shards {
            self.busy.remove(shard);
        }
        self.databases[index].database.hear_first(&shards, &self.places);
        // Where the map shows another place by now, the next look at the map gives the shard up.
        self.databases[index].database.owned_shards.adopt(&ours);
        self.actor.coordination.metrics().acquisitions.inc_by(ours.len() as u64);
        self.log.acquired.extend(ours.into_iter().map(|(shard, _)| shard));
    }

    /// Forgets shards whose fences another node has taken. The next step acquires those that are assigned to this node.
    fn forget_overtaken(&mut self, index: usize, overtaken: Vec<(ShardId, Epoch)>) {
        let owned_shards = &self.databases[index].database.owned_shards;
        for (shard, epoch) in overtaken {
            self.busy.remove(&shard);
            // The last part of a move may have begun since, and changed the epoch.
            if owned_shards.is_claimable(shard) && owned_shards.forget_epoch(shard, epoch) {
                self.log.dropped.insert(shard);
            }
        }
    }

    fn reregistered(&mut self, shards: &[ShardId], result: Result<Vec<OwnerKey>, Error>) {
        // Where all fences were overtaken, there was nothing to write.
        self.refused &= result.is_err() || shards.is_empty();
        self.rest(shards.iter().copied());
        match result {
            // Where a key is missing, another node has it. The mirror is about to show that, and the next step decides.
            Ok(keys) => self.log.reregistered.extend(keys.iter().map(|key| key.shard)),
            Err(error) => self.failed("could not register again as the owner", shards, &error),
        }
    }

    fn looked(&mut self, shards: Vec<ShardId>, result: Result<Option<AssignmentRecord>, Error>) {
        // A later pass looks again at everything that is not released now.
        self.rest(shards.iter().copied());
        let record = match result {
            Ok(record) => record,
            Err(error) => return self.failed("could not read the assignment; keeping the shards", &shards, &error),
        };
        let assignment = record.map(|record| record.assignment).unwrap_or_default();
        let leaving = self.leaving.is_cancelled();
        let mut leaves: BTreeMap<usize, Vec<ShardId>> = BTreeMap::new();
        for shard in shards {
            let elsewhere = assignment.owner(shard).is_some_and(|node| *node != self.actor.me);
            if let Some(index) = self.index_of(shard).filter(|_| elsewhere || leaving) {
                leaves.entry(index).or_default().push(shard);
            }
        }
        for (index, shards) in leaves {
            let drain = self.drain_timeout(index);
            for shards in shards.chunks(RELEASED_TOGETHER) {
                self.busy.extend(shards);
                self.acts.push(self.actor.clone().release(index, shards.to_vec(), self.everywhere(), drain).boxed());
            }
        }
    }

    fn release_slow(&mut self, index: usize, slow: Vec<ShardId>) {
        for shard in slow {
            let drain = self.drain_timeout(index);
            self.begin(shard, self.actor.clone().release_slow(index, shard, self.everywhere(), drain));
        }
    }

    /// The node's shares of all databases.
    fn everywhere(&self) -> Vec<Arc<OwnedShards>> {
        self.databases.iter().map(|state| Arc::clone(&state.database.owned_shards)).collect()
    }

    fn drain_timeout(&self, index: usize) -> Duration {
        let fitness = self.fitness.borrow();
        let hopeless = fitness.broker_unfit || fitness.unfit.contains(&self.databases[index].database.name);
        if hopeless { HOPELESS_DRAIN_TIMEOUT } else { DRAIN_TIMEOUT }
    }

    fn released(&mut self, shards: &[ShardId], result: &Result<(), Error>) {
        // Without shards there was nothing to write.
        self.refused &= result.is_err() || shards.is_empty();
        self.rest(shards.iter().copied());
        // A shard may have moved to another database meanwhile, or be on its way there at this moment.
        for state in self.databases.iter().chain(&self.databases) {
            let owned_shards = &state.database.owned_shards;
            if result.is_ok() {
                let left: Vec<ShardId> = owned_shards.epochs(shards.iter().copied()).into_keys().collect();
                owned_shards.forget(&left);
                self.actor.coordination.metrics().releases.inc_by(left.len() as u64);
                self.log.released.extend(left);
            }
            // Shards whose keys are not deleted go on as before. A node that has one by now takes the fence, which
            // ends it.
            owned_shards.end_release(shards.iter().copied());
        }
        if let Err(error) = result {
            self.failed("could not delete owner keys; keeping the shards", shards, error);
        }
    }

    /// Ends acts whose effect, or whose lack of one, the view does not show yet.
    fn rest(&mut self, shards: impl Iterator<Item = ShardId>) {
        for shard in shards {
            self.busy.remove(&shard);
            self.resting.insert(shard);
        }
    }

    /// Notes an act that etcd did not do. The next acts pause: until then the view is the same, and so is the answer.
    fn failed(&mut self, what: &str, shards: &[ShardId], error: &Error) {
        self.say(what, shards, error);
        // Acts that began together fail together, and count once.
        if self.etcd_retry.is_none_or(Retry::is_due) {
            self.etcd_retry = Some(Retry::after(self.etcd_retry, ETCD_RETRY, ETCD_RETRY_LONGEST));
        }
    }

    /// Logs the first act that etcd refused; others are debug lines. The session keeper reports a lease that is gone.
    fn say(&mut self, what: &str, shards: &[ShardId], error: &Error) {
        let shards = Ranges(&shards.iter().copied().collect()).to_string();
        if !matches!(error, Error::LeaseGone { .. }) && error.is_news(&mut self.refused) {
            tracing::warn!(shards, error = error as &dyn std::error::Error, "{what}");
        } else {
            tracing::debug!(shards, error = error as &dyn std::error::Error, "{what}");
        }
    }
}
