//! Handles the results of the owner's acts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use common::{
    cluster::AssignmentRecord,
    ids::{Epoch, ShardId},
};
use futures::FutureExt;
use tokio::time::Instant;

use super::{
    DRAIN_TIMEOUT, FENCE_RETRY, FENCE_RETRY_LONGEST, Fence, HOPELESS_DRAIN_TIMEOUT, Owner, Retry, act::ActResult,
};
use crate::{
    coordination::{Error, OwnerKey},
    store,
};

impl<F: Fence> Owner<F> {
    pub(super) fn note(&mut self, done: ActResult) {
        match done {
            ActResult::Created { index, shard, result } => self.created(index, shard, result),
            ActResult::Fenced { index, keys, result } => self.fenced(index, &keys, result),
            ActResult::Confirmed { index, shard, epoch, result } => self.confirmed(index, shard, epoch, result),
            ActResult::Reregistered { shard, result } => self.reregistered(shard, result),
            ActResult::Looked { shards, result } => self.looked(shards, result),
            ActResult::Released { index, shard, result } => self.released(index, shard, result),
        }
    }

    fn created(&mut self, index: usize, shard: ShardId, result: Result<Option<OwnerKey>, Error>) {
        match result {
            Ok(Some(key)) => return self.databases[index].created.push(key),
            // Another node was quicker; the mirror is about to show which.
            Ok(None) => {}
            Err(error) => self.say("could not create the owner key", shard, &error),
        }
        self.busy.remove(&shard);
    }

    fn fenced(&mut self, index: usize, keys: &[OwnerKey], result: Result<Vec<(ShardId, Epoch)>, store::Error>) {
        let state = &mut self.databases[index];
        state.fencing = false;
        let epochs: BTreeMap<ShardId, Epoch> = match result {
            Ok(taken) => {
                state.retry = None;
                taken.into_iter().collect()
            }
            Err(error) => {
                let pause = state.retry.map_or(FENCE_RETRY, |retry| (retry.pause * 2).min(FENCE_RETRY_LONGEST));
                if state.retry.is_none() {
                    tracing::warn!(error = &error as &dyn std::error::Error, "could not take the fence; retrying");
                }
                state.retry = Some(Retry { at: Instant::now() + pause, pause });
                BTreeMap::new()
            }
        };
        for key in keys {
            match epochs.get(&key.shard) {
                Some(epoch) => self.acts.push(self.actor.clone().confirm(index, *key, *epoch).boxed()),
                None => {
                    self.busy.remove(&key.shard);
                }
            }
        }
    }

    fn confirmed(&mut self, index: usize, shard: ShardId, epoch: Epoch, result: Result<bool, Error>) {
        self.busy.remove(&shard);
        match result {
            Ok(true) => {}
            Ok(false) => {
                tracing::info!(%shard, %epoch, "took the fence too late: the owner key no longer exists; giving the \
                                                shard up");
                return;
            }
            // It is unknown which node has the key, but this node holds the fence: without it no node would
            // dispatch the shard.
            Err(error) => self.say("could not confirm the owner key; the fence decides", shard, &error),
        }
        self.databases[index].database.owned_shards.adopt(&[(shard, epoch)]);
        self.actor.coordination.metrics().acquisitions.inc();
        self.log.acquired.insert(shard);
    }

    fn reregistered(&mut self, shard: ShardId, result: Result<Option<OwnerKey>, Error>) {
        self.busy.remove(&shard);
        match result {
            Ok(Some(_)) => {
                self.log.reregistered.insert(shard);
            }
            // Another node owns it by now. The mirror is about to show that, and then the shard is dropped.
            Ok(None) => {}
            Err(error) => self.say("could not register again as the owner", shard, &error),
        }
    }

    fn looked(&mut self, shards: Vec<ShardId>, result: Result<Option<AssignmentRecord>, Error>) {
        // The next pass looks again at everything that is not released now.
        for shard in &shards {
            self.busy.remove(shard);
        }
        let Ok(record) = result else { return };
        let assignment = record.map(|record| record.assignment).unwrap_or_default();
        let leaving = self.leaving.is_cancelled();
        for shard in shards {
            let elsewhere = assignment.owner(shard).is_some_and(|node| *node != self.actor.me);
            let Some(index) = self.index_of(shard).filter(|_| elsewhere || leaving) else { continue };
            let owned_shards = Arc::clone(&self.databases[index].database.owned_shards);
            self.begin(shard, self.actor.clone().release(index, shard, owned_shards, self.drain_timeout(index)));
        }
    }

    fn drain_timeout(&self, index: usize) -> Duration {
        let fitness = self.fitness.borrow();
        let hopeless = fitness.broker_unfit || fitness.unfit.contains(&self.databases[index].database.name);
        if hopeless { HOPELESS_DRAIN_TIMEOUT } else { DRAIN_TIMEOUT }
    }

    fn released(&mut self, index: usize, shard: ShardId, result: Result<(), Error>) {
        self.busy.remove(&shard);
        let owned_shards = &self.databases[index].database.owned_shards;
        let owned = owned_shards.owned().get(&shard).copied();
        match (result, owned) {
            (Ok(()), Some(_)) => {
                owned_shards.forget(&[shard]);
                self.actor.coordination.metrics().releases.inc();
                self.log.released.insert(shard);
            }
            (Ok(()), None) => {}
            (Err(error), owned) => {
                // The shard goes on as before. A node that has the key by now takes the fence, which ends it.
                if let Some(epoch) = owned {
                    owned_shards.adopt(&[(shard, epoch)]);
                }
                self.say("could not delete the owner key; keeping the shard", shard, &error);
            }
        }
    }

    /// Logs a failed act. The loop that noticed an outage of etcd first has reported it already, so that is only a
    /// debug line.
    fn say(&self, what: &str, shard: ShardId, error: &Error) {
        if matches!(error, Error::Unanswered { .. } | Error::LeaseGone { .. }) {
            tracing::debug!(%shard, error = error as &dyn std::error::Error, "{what}");
        } else {
            tracing::warn!(%shard, error = error as &dyn std::error::Error, "{what}");
        }
    }
}
