//! The places of the shards as a request meets them: who has them, where they move, what they carry.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use common::{
    ids::{DatabaseIndex, DatabaseName, ShardId},
    shard::{
        ShardMap, Standing,
        map::Place,
        move_check::{Member, PlannedMove, Scene},
        rebalance::ShardLoad,
    },
    wire::Problem,
};

use super::Desk;
use crate::store::{
    self,
    fence::ShardRow,
    move_requests::{AskedMove, MoveRow, StandingRow},
    weights::ShardWeight,
};

/// What each shard carries.
pub(super) type Weights = BTreeMap<ShardId, ShardWeight>;

/// The places, the standings and the moves that a request meets.
pub(super) struct Placement {
    pub(super) map: Arc<ShardMap>,
    /// In the order of [`DatabaseIndex`].
    pub(super) members: Vec<Member>,
    pub(super) standings: Vec<StandingRow>,
    pub(super) moves: Vec<MoveRow>,
    under_way: BTreeMap<ShardId, DatabaseName>,
}

impl Placement {
    pub(super) fn scene(&self) -> Scene<'_> {
        Scene { map: &self.map, databases: &self.members, under_way: &self.under_way }
    }

    /// The database that the shard moves to.
    pub(super) fn target(&self, shard: ShardId) -> Option<&DatabaseName> {
        self.under_way.get(&shard)
    }

    pub(super) fn kinds(&self) -> Vec<Standing> {
        self.members.iter().map(|member| member.standing).collect()
    }

    /// The shards with their weights. A shard that moves counts where it goes, unless its move is called off.
    pub(super) fn loads(&self, weights: &Weights) -> Vec<ShardLoad> {
        let moves: HashMap<ShardId, &MoveRow> = self.moves.iter().map(|row| (row.shard, row)).collect();
        let load = |(shard, place): (ShardId, Place)| {
            let row = moves.get(&shard);
            let goes = row.filter(|row| row.called_off_at.is_none()).and_then(|row| self.scene().index(&row.target));
            ShardLoad {
                shard,
                database: goes.unwrap_or(place.database),
                weight: weights.get(&shard).copied().unwrap_or_default().weight(),
                is_fixed: row.is_some() || !place.status.is_open(),
            }
        };
        self.map.iter().map(load).collect()
    }

    pub(super) fn asked(&self, planned: &PlannedMove) -> Option<AskedMove> {
        let scene = self.scene();
        let (source, target) = (scene.name(planned.source)?.clone(), scene.name(planned.target)?.clone());
        Some(AskedMove { shard: planned.shard, source, target })
    }
}

impl Desk {
    /// The places, read now, with the standings and moves. The moves are read first: a move that ends in between is
    /// then still listed, and its shard is refused instead of moved from where it was.
    pub(super) async fn placement(&self) -> Result<Placement, Problem> {
        let store = &self.parts().store;
        let (standings, moves) = tokio::try_join!(store.home().database_standings(), store.home().move_list())?;
        if let Err(error) = store.places().refresh().await {
            // The shards of a database that is away stay where they were.
            tracing::debug!(error = &error as &dyn std::error::Error, "the places of some shards cannot be read");
        }
        let standing = |name: &DatabaseName| standings.iter().find(|row| row.name == *name).map(|row| row.standing);
        let member = |name: &DatabaseName| Member { name: name.clone(), standing: standing(name).unwrap_or_default() };
        let map = store.places().load();
        let members = store.databases().iter().map(|database| member(database.name())).collect();
        let under_way = moves.iter().map(|row| (row.shard, row.target.clone())).collect();
        Ok(Placement { map, members, standings, moves, under_way })
    }

    /// The fences of the shards, each from the database that has the shard, and notes about those that are away.
    pub(super) async fn fences(&self, placement: &Placement) -> (HashMap<ShardId, ShardRow>, Vec<String>) {
        let reads = self.parts().store.databases().iter().map(|database| database.shards_read());
        let reads = futures::future::join_all(reads).await;
        let note = |error: &store::Error| {
            tracing::debug!(error = error as &dyn std::error::Error, "the owners of shards cannot be read");
        };
        self.own_fences(&placement.map, reads.into_iter().map(|read| read.inspect_err(note).ok()).collect())
    }

    /// The same from the rows of each database. `None`: it is away. The row of a shard in a database that does not have
    /// the shard, by `map`, does not count.
    pub(super) fn own_fences(
        &self,
        map: &ShardMap,
        parts: Vec<Option<Vec<ShardRow>>>,
    ) -> (HashMap<ShardId, ShardRow>, Vec<String>) {
        let (mut fences, mut notes) = (HashMap::new(), Vec::new());
        for (index, part) in parts.into_iter().enumerate() {
            let Some(rows) = part else {
                let name = self.parts().store.databases()[index].name();
                notes.push(format!("database `{name}` cannot be reached, so the owners of its shards are unknown"));
                continue;
            };
            let place = Some(DatabaseIndex::new(index));
            let own = rows.into_iter().filter(|row| map.of(row.id).map(|found| found.database) == place);
            fences.extend(own.map(|row| (row.id, row)));
        }
        (fences, notes)
    }

    /// The weights of the shards, as far as their databases can be read.
    pub(super) async fn weights(&self, placement: &Placement, notes: &mut Vec<String>) -> Weights {
        let mut weights = Weights::new();
        for (name, read) in self.weight_reads(placement).await {
            match read {
                Ok(some) => weights.extend(some),
                Err(problem) => {
                    tracing::debug!(%problem, "the load of shards cannot be estimated");
                    notes.push(format!("database `{name}` cannot be reached, so the load of its shards is unknown"));
                }
            }
        }
        weights
    }

    /// The weights of all shards, or the problem of the first database that cannot be read.
    pub(super) async fn weights_of_all(&self, placement: &Placement) -> Result<Weights, Problem> {
        let mut weights = Weights::new();
        for (_, read) in self.weight_reads(placement).await {
            weights.extend(read?);
        }
        Ok(weights)
    }

    /// Each database that has shards, with the weights of its own shards. Copies that arrive do not count.
    async fn weight_reads(&self, placement: &Placement) -> Vec<(DatabaseName, Result<Weights, Problem>)> {
        let databases = self.parts().store.databases().indexed();
        let reads = databases.map(|(index, database)| async move {
            if placement.map.in_database(index).next().is_none() {
                return (database.name().clone(), Ok(Weights::new()));
            }
            let is_own = |shard: ShardId| placement.map.of(shard).is_some_and(|place| place.database == index);
            let read = database.shard_weights().await.map_err(Problem::from);
            let own = read.map(|weights| weights.into_iter().filter(|(shard, _)| is_own(*shard)).collect());
            (database.name().clone(), own)
        });
        futures::future::join_all(reads).await
    }
}
