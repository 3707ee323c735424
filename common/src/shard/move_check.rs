//! Whether shards may move to a database, and which of them have to.

use std::collections::BTreeMap;

use super::{map::ShardMap, set::ShardSet};
use crate::ids::{DatabaseIndex, DatabaseName, ShardId};

crate::labelled! {
    /// The part that a database takes in the cluster.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Standing {
        /// It holds shards and may receive more.
        #[default]
        Serving = "serving",
        /// It receives no shards and loses those that it has.
        Draining = "draining",
        /// It takes part in nothing.
        Removed = "removed",
    }
}

impl Standing {
    /// The end of a refusal: what lets the database receive shards again, where that is not plain.
    fn way_back(self) -> &'static str {
        if self == Self::Removed { "; undrain it to use it again" } else { "" }
    }
}

/// One database of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: DatabaseName,
    pub standing: Standing,
}

/// The cluster that a request meets.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    pub map: &'a ShardMap,
    /// In the order of [`DatabaseIndex`].
    pub databases: &'a [Member],
    /// The moves that have not ended: each shard with the name of its target.
    pub under_way: &'a BTreeMap<ShardId, DatabaseName>,
}

impl Scene<'_> {
    pub fn index(&self, name: &DatabaseName) -> Option<DatabaseIndex> {
        self.databases.iter().position(|member| member.name == *name).map(DatabaseIndex::new)
    }

    /// The name of a database of the map.
    pub fn name(&self, index: DatabaseIndex) -> Option<&DatabaseName> {
        self.databases.get(index.get()).map(|member| &member.name)
    }
}

/// A shard that has to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedMove {
    pub shard: ShardId,
    pub source: DatabaseIndex,
    pub target: DatabaseIndex,
}

/// What a request leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Ascending by shard.
    pub moves: Vec<PlannedMove>,
    /// The shards of the request that are at the target already.
    pub already: ShardSet,
}

/// Why a request moves nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("`shards` names no shard; write the shards that shall move, like `0-15,20`")]
    Nothing,
    #[error("there is no database `{name}`; there are: {known}")]
    UnknownDatabase { name: DatabaseName, known: String },
    #[error("database `{name}` is {}, so it receives no shards{}", standing.text(), standing.way_back())]
    Closed { name: DatabaseName, standing: Standing },
    #[error("the cluster has no shards {shards}; its shards are {known}")]
    UnknownShards { shards: ShardSet, known: ShardSet },
    #[error("the shards {shards} move already; call those moves off first, or wait until they have ended")]
    UnderWay { shards: ShardSet },
    #[error("the shards {shards} are open in no database that this node can read; try again")]
    NotOpen { shards: ShardSet },
    #[error("the shards {shards} are in database `{name}` already")]
    AlreadyThere { shards: ShardSet, name: DatabaseName },
}

/// Checks a request to move `shards` to the database `target`. Shards that are there already do not move; the others
/// do. A shard that moves already is refused, because a second move of it would need the end of the first. A closed
/// shard that does not move is in another database than the map shows, and no move from its former one could end.
pub fn check(shards: &ShardSet, target: &DatabaseName, scene: Scene<'_>) -> Result<Accepted, Refused> {
    if shards.is_empty() {
        return Err(Refused::Nothing);
    }
    let index = receiver(target, scene)?;
    let subset = |is_in: &dyn Fn(ShardId) -> bool| shards.iter().filter(|shard| is_in(*shard)).collect::<ShardSet>();
    let unknown = subset(&|shard| scene.map.of(shard).is_none());
    if !unknown.is_empty() && scene.map.is_whole() {
        let known = scene.map.iter().map(|(shard, _)| shard).collect();
        return Err(Refused::UnknownShards { shards: unknown, known });
    }
    let moving = subset(&|shard| scene.under_way.contains_key(&shard));
    if !moving.is_empty() {
        return Err(Refused::UnderWay { shards: moving });
    }
    let closed = subset(&|shard| scene.map.of(shard).is_none_or(|place| !place.status.is_open()));
    if !closed.is_empty() {
        return Err(Refused::NotOpen { shards: closed });
    }
    let already = subset(&|shard| scene.map.of(shard).is_some_and(|place| place.database == index));
    let moves: Vec<PlannedMove> = shards
        .iter()
        .filter_map(|shard| {
            let source = scene.map.of(shard)?.database;
            (source != index).then_some(PlannedMove { shard, source, target: index })
        })
        .collect();
    if moves.is_empty() {
        return Err(Refused::AlreadyThere { shards: already, name: target.clone() });
    }
    Ok(Accepted { moves, already })
}

/// The database of this name, if it receives shards.
fn receiver(name: &DatabaseName, scene: Scene<'_>) -> Result<DatabaseIndex, Refused> {
    let Some(index) = scene.index(name) else {
        let known: Vec<&str> = scene.databases.iter().map(|member| member.name.as_str()).collect();
        return Err(Refused::UnknownDatabase { name: name.clone(), known: known.join(", ") });
    };
    match scene.databases[index.get()].standing {
        Standing::Serving => Ok(index),
        standing => Err(Refused::Closed { name: name.clone(), standing }),
    }
}

#[cfg(test)]
mod tests;
