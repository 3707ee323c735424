//! Shards, their moves and the databases: `/v1/shards` and `/v1/databases`.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{
    ids::{DatabaseName, Epoch, NodeName, ShardId},
    json,
    shard::{
        ShardSet, ShardStatus, Standing,
        move_progress::MovePhase,
        rebalance::{TOLERANCE_PERCENT, TOLERANCE_PERCENT_MOST},
    },
    time::UnixMicros,
    wire::{Problem, read},
};

/// A request to move shards.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    pub shards: ShardSet,
    pub to: DatabaseName,
}

impl MoveRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }
}

/// A request to divide the load evenly. Every field is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RebalanceRequest {
    /// Whether the moves are only planned and shown.
    pub dry_run: Option<bool>,
    #[serde(deserialize_with = "json::whole")]
    pub tolerance_percent: Option<u32>,
}

impl RebalanceRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        let request: Self = read::object(raw)?;
        if request.tolerance_percent() > TOLERANCE_PERCENT_MOST {
            let detail = format!("`tolerance_percent` must be between 0 and {TOLERANCE_PERCENT_MOST}");
            return Err(Problem::invalid_field("tolerance_percent", detail));
        }
        Ok(request)
    }

    pub fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    pub fn tolerance_percent(&self) -> u32 {
        self.tolerance_percent.unwrap_or(TOLERANCE_PERCENT)
    }
}

/// The query of a list of shards or databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EstimatesQuery {
    /// Whether the load is estimated too, which reads a bounded number of pages of each database.
    pub estimates: Option<bool>,
}

/// The query that calls moves off.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallOffQuery {
    pub shards: ShardSet,
}

/// An estimate of what a shard or a database carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadView {
    /// Unfinished tasks.
    pub tasks: i64,
    /// Finished tasks that are still kept.
    pub finished: i64,
    /// The rows of both, without indexes.
    pub bytes: i64,
    /// Tasks that finished in the last day, as an average of a second. Tasks that are kept for less than a day do not
    /// count whole.
    pub finished_per_second: f64,
}

/// One shard: its place and its owner.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardView {
    pub shard: ShardId,
    pub database: DatabaseName,
    pub status: ShardStatus,
    /// Absent: no node owns it, or its database cannot be read.
    pub owner: Option<NodeName>,
    pub epoch: Option<Epoch>,
    /// The database that it moves to.
    pub moves_to: Option<DatabaseName>,
    /// Only on request.
    pub load: Option<LoadView>,
}

/// The answer of `GET /v1/shards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardList {
    pub shards: Vec<ShardView>,
    /// The parts that could not be found out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A move that has not ended. Fields that do not apply yet are left out.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveView {
    pub shard: ShardId,
    pub from: DatabaseName,
    pub to: DatabaseName,
    pub step: MovePhase,
    pub requested_by: String,
    pub requested_at: UnixMicros,
    pub called_off_at: Option<UnixMicros>,
    pub started_at: Option<UnixMicros>,
    /// An estimate, made when the copy begins.
    pub rows_total: Option<i64>,
    pub rows_copied: i64,
    pub bytes_copied: i64,
    pub percent: Option<u8>,
    /// The time that the rest of the copy takes if it goes on as it did.
    pub left_ms: Option<i64>,
    pub cut_ms: Option<i64>,
    /// The node that works on the move.
    pub node: Option<NodeName>,
    /// Why the move does not get on.
    pub problem: Option<String>,
    pub updated_at: UnixMicros,
}

crate::labelled! {
    /// The way in which a move has ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MoveOutcome {
        Moved = "moved",
        CalledOff = "called_off",
    }
}

impl MoveOutcome {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Moved => "moved",
            Self::CalledOff => "called off",
        }
    }
}

/// A move that has ended.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedMoveView {
    pub shard: ShardId,
    pub from: DatabaseName,
    pub to: DatabaseName,
    pub outcome: MoveOutcome,
    pub requested_by: String,
    pub requested_at: UnixMicros,
    pub started_at: Option<UnixMicros>,
    /// How long the shard's tasks waited between the databases.
    pub cut_ms: Option<i64>,
    pub rows_copied: i64,
    pub bytes_copied: i64,
    pub ended_at: UnixMicros,
}

/// The answer of `GET /v1/shards/moves`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveList {
    /// Under way, in the order of the shards.
    pub moves: Vec<MoveView>,
    /// The last that ended, newest first.
    pub ended: Vec<EndedMoveView>,
}

impl MoveList {
    /// The moves as a person reads them, each line with one of its moves. Those that wait for their turn share a line
    /// for each way, because there may be hundreds; they come last.
    pub fn lines(&self) -> Vec<(ShardSet, &MoveView)> {
        let waits =
            |it: &&MoveView| it.step == MovePhase::Planned && it.called_off_at.is_none() && it.problem.is_none();
        let alone = self.moves.iter().filter(|it| !waits(it));
        let mut lines: Vec<(ShardSet, &MoveView)> = alone.map(|it| ([it.shard].into_iter().collect(), it)).collect();
        let mut waiting: Vec<&MoveView> = self.moves.iter().filter(waits).collect();
        waiting.sort_by_key(|it| (&it.from, &it.to, it.shard));
        let groups = waiting.chunk_by(|one, other| (&one.from, &one.to) == (&other.from, &other.to));
        lines.extend(groups.map(|group| (group.iter().map(|it| it.shard).collect(), group[0])));
        lines
    }
}

/// The answer to a request for moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveAnswer {
    /// The shards that move from now on.
    pub shards: ShardSet,
    pub to: DatabaseName,
    /// The shards of the request that are there already.
    pub already: ShardSet,
}

/// The answer to a request that calls moves off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOffAnswer {
    pub called_off: ShardSet,
    /// The shards whose move is past the cut: it ends.
    pub too_late: ShardSet,
    /// The shards of the request that do not move.
    pub not_moving: ShardSet,
}

/// Shards that move from one database to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveGroup {
    pub shards: ShardSet,
    pub from: DatabaseName,
    pub to: DatabaseName,
}

/// A database in the answer to a rebalance: its part of the cluster's load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BalanceView {
    pub name: DatabaseName,
    pub standing: Standing,
    pub shards_before: usize,
    pub shards_after: usize,
    pub load_percent_before: f64,
    pub load_percent_after: f64,
}

/// The answer of `POST /v1/shards/rebalance`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RebalanceAnswer {
    /// Whether nothing was changed.
    pub dry_run: bool,
    pub tolerance_percent: u32,
    pub moves: Vec<MoveGroup>,
    pub databases: Vec<BalanceView>,
}

/// One database of the cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatabaseView {
    pub name: DatabaseName,
    /// The servers and the name of the database, without user and password.
    pub place: String,
    /// Whether it keeps the queues, the schedules and the tokens. It cannot be removed.
    pub first: bool,
    pub standing: Standing,
    /// The beginning of a standing other than `serving`.
    pub since: Option<UnixMicros>,
    /// Whether it answers.
    pub up: bool,
    pub shards: ShardSet,
    /// The shards that are about to leave it, and to come.
    pub leaving: ShardSet,
    pub arriving: ShardSet,
    /// Only on request.
    pub load: Option<LoadView>,
}

/// The answer of `GET /v1/databases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatabaseList {
    pub databases: Vec<DatabaseView>,
    /// The parts that could not be found out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_names_shards_and_a_target() {
        let request = MoveRequest::parse(r#"{"shards":"0-15,20","to":"west"}"#).unwrap();
        assert_eq!((request.shards.count(), request.to.as_str()), (17, "west"));
        for (json, field) in [
            (r#"{"to":"west"}"#, "shards"),
            (r#"{"shards":"0-15"}"#, "to"),
            (r#"{"shards":"x","to":"west"}"#, "shards"),
            (r#"{"shards":[1],"to":"west"}"#, "shards"),
            (r#"{"shards":"1","to":"west","from":"main"}"#, "from"),
        ] {
            let problem = MoveRequest::parse(json).unwrap_err();
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{json}: {problem:?}");
        }
    }

    #[test]
    fn a_rebalance_has_a_tolerance_within_bounds() {
        let read = |json| RebalanceRequest::parse(json).map(|it| (it.is_dry_run(), it.tolerance_percent()));
        assert_eq!(read("{}"), Ok((false, TOLERANCE_PERCENT)));
        assert_eq!(read(r#"{"dry_run":true,"tolerance_percent":0}"#), Ok((true, 0)));
        assert_eq!(read(r#"{"dry_run":null,"tolerance_percent":null}"#), Ok((false, TOLERANCE_PERCENT)));
        for json in [r#"{"tolerance_percent":101}"#, r#"{"tolerance_percent":-1}"#, r#"{"tolerance_percent":"5"}"#] {
            assert_eq!(read(json).unwrap_err().field.as_deref(), Some("tolerance_percent"), "{json}");
        }
    }

    #[test]
    fn an_outcome_is_spelled_as_in_the_database() {
        for outcome in MoveOutcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.text());
        }
    }
}
