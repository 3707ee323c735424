//! The places of the shards, and the requests of operators to move them. The loop that carries the moves out reads the
//! requests from the first database.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use common::{
    ids::{DatabaseIndex, NodeName, ShardId},
    shard::{
        ShardSet,
        map::Place,
        move_check::{self, Member, PlannedMove, Refused},
        move_progress,
        rebalance::{self, Plan, ShardLoad},
    },
    time::UnixMicros,
    wire::{
        Problem,
        shard::{
            BalanceView, CallOffAnswer, MoveAnswer, MoveGroup, MoveList, MoveRequest, MoveView, RebalanceAnswer,
            RebalanceRequest, ShardList, ShardView,
        },
    },
};

use super::{
    Desk,
    placement::{Placement, Weights},
    run_to_end,
};
use crate::store::{
    Database,
    move_requests::{AskedMove, MoveRow, MovesAdded},
};

impl Desk {
    /// Lists the shards. While a database cannot be read, its shards have no owner here and a note says why.
    pub(crate) async fn shard_list(&self, estimates: bool) -> Result<ShardList, Problem> {
        if estimates {
            self.require_all_queues()?;
        }
        let placement = self.placement().await?;
        let (fences, mut notes) = self.fences(&placement).await;
        let weights = if estimates { self.weights(&placement, &mut notes).await } else { Weights::default() };
        let shard = |(shard, place): (ShardId, Place)| {
            let fence = fences.get(&shard);
            Some(ShardView {
                shard,
                database: placement.scene().name(place.database)?.clone(),
                status: place.status,
                owner: fence.and_then(|fence| fence.owner.as_ref()).map(NodeName::new),
                epoch: fence.map(|fence| fence.epoch),
                moves_to: placement.target(shard).cloned(),
                load: estimates.then(|| weights.get(&shard).copied().unwrap_or_default().view()),
            })
        };
        Ok(ShardList { shards: placement.map.iter().filter_map(shard).collect(), notes })
    }

    /// Lists the moves that have not ended, and the last that have.
    pub(crate) async fn move_list(&self) -> Result<MoveList, Problem> {
        let home = self.parts().store.home();
        let (moves, ended) = tokio::try_join!(home.move_list(), home.move_ended_list())?;
        let now = self.now();
        Ok(MoveList { moves: moves.into_iter().map(|row| shown(row, now)).collect(), ended })
    }

    /// Adds moves in the name of `by`. Shards that are at the target already are named in the answer.
    pub(crate) async fn shards_move(&self, request: MoveRequest, by: &str) -> Result<MoveAnswer, Problem> {
        self.require_all_queues()?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let placement = desk.placement().await?;
            let checked = move_check::check(&request.shards, &request.to, placement.scene());
            let accepted = checked.map_err(|refused| refusal(&refused))?;
            desk.add_moves(&placement, &accepted.moves, &by).await?;
            let shards = accepted.moves.iter().map(|it| it.shard).collect();
            Ok(MoveAnswer { shards, to: request.to, already: accepted.already })
        })
        .await
    }

    /// Calls moves off in the name of `by`. A move that is past its cut ends as it was asked for.
    pub(crate) async fn shards_call_off(&self, shards: ShardSet, by: &str) -> Result<CallOffAnswer, Problem> {
        self.require_all_queues()?;
        if shards.is_empty() {
            return Err(Problem::invalid_field("shards", Refused::Nothing.to_string()));
        }
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let (called_off, too_late) = desk.parts().store.home().move_call_off(&shards).await?;
            if called_off.is_empty() && too_late.is_empty() {
                return Err(Problem::not_found(format!("none of the shards {shards} moves")));
            }
            if called_off.is_empty() {
                let detail = format!("the moves of the shards {too_late} are past the cut, so they end");
                return Err(Problem::conflict(detail));
            }
            tracing::info!(shards = %called_off, by, "moves called off");
            let is_other = |shard: &ShardId| !called_off.contains(*shard) && !too_late.contains(*shard);
            let not_moving = shards.iter().filter(is_other).collect();
            Ok(CallOffAnswer { called_off, too_late, not_moving })
        })
        .await
    }

    /// Plans the fewest moves that divide the load, and adds them in the name of `by` unless it is a dry run.
    pub(crate) async fn shards_rebalance(
        &self,
        request: RebalanceRequest,
        by: &str,
    ) -> Result<RebalanceAnswer, Problem> {
        self.require_all_queues()?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let placement = desk.placement().await?;
            let loads = placement.loads(&desk.weights_of_all(&placement).await?);
            let plan = rebalance::plan(&loads, &placement.kinds(), request.tolerance_percent());
            if !request.is_dry_run() {
                desk.add_moves(&placement, &plan.moves, &by).await?;
            }
            Ok(balance(&placement, &loads, &plan, &request))
        })
        .await
    }

    /// Refuses to move shards to a database that a node does not use yet, or whose commits are not replicated although
    /// they must be.
    pub(super) fn require_receives(&self, target: &Database) -> Result<(), Problem> {
        let not_used = self.parts().views.borrow().not_used_by(target.name());
        not_used.or_else(|| target.may_receive_no_shard()).map_or(Ok(()), |why| Err(Problem::conflict(why)))
    }

    fn at(&self, index: DatabaseIndex) -> Option<&Arc<Database>> {
        self.parts().store.databases().get(index)
    }

    pub(super) async fn add_moves(
        &self,
        placement: &Placement,
        moves: &[PlannedMove],
        by: &str,
    ) -> Result<(), Problem> {
        let asked: Vec<AskedMove> = moves.iter().filter_map(|planned| placement.asked(planned)).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let targets: BTreeSet<DatabaseIndex> = moves.iter().map(|planned| planned.target).collect();
        for target in targets.into_iter().filter_map(|index| self.at(index)) {
            // A target that could not receive shards is refused now, not found stuck later.
            self.require_receives(target)?;
            target.move_probe().await?;
        }
        match self.parts().store.home().move_add(&asked, by).await? {
            MovesAdded::All => {}
            MovesAdded::UnderWay => {
                let detail = "another request moves some of these shards; nothing was changed, look at the moves and \
                              ask again";
                return Err(Problem::conflict(detail));
            }
            MovesAdded::Closed(names) => {
                let detail =
                    format!("database `{}` does not receive shards any more; nothing was changed", names.join("`, `"));
                return Err(Problem::conflict(detail));
            }
        }
        for group in groups(placement, moves) {
            tracing::info!(shards = %group.shards, from = %group.from, to = %group.to, by, "moves requested");
        }
        Ok(())
    }
}

fn refusal(refused: &Refused) -> Problem {
    let detail = refused.to_string();
    match refused {
        Refused::Nothing | Refused::UnknownShards { .. } => Problem::invalid_field("shards", detail),
        Refused::UnknownDatabase { .. } => Problem::invalid_field("to", detail),
        Refused::NotOpen { .. } => Problem::unavailable(detail),
        Refused::Closed { .. } | Refused::UnderWay { .. } | Refused::AlreadyThere { .. } => Problem::conflict(detail),
    }
}

/// The moves with the same source and target together.
fn groups(placement: &Placement, moves: &[PlannedMove]) -> Vec<MoveGroup> {
    let mut groups: BTreeMap<(DatabaseIndex, DatabaseIndex), Vec<ShardId>> = BTreeMap::new();
    for planned in moves {
        groups.entry((planned.source, planned.target)).or_default().push(planned.shard);
    }
    let scene = placement.scene();
    let group = |((source, target), shards): ((DatabaseIndex, DatabaseIndex), Vec<ShardId>)| {
        let (from, to) = (scene.name(source)?.clone(), scene.name(target)?.clone());
        Some(MoveGroup { shards: shards.into_iter().collect(), from, to })
    };
    groups.into_iter().filter_map(group).collect()
}

fn balance(placement: &Placement, loads: &[ShardLoad], plan: &Plan, request: &RebalanceRequest) -> RebalanceAnswer {
    let view = |(index, member): (usize, &Member)| {
        let database = DatabaseIndex::new(index);
        let before = loads.iter().filter(|load| load.database == database).count();
        let leave = plan.moves.iter().filter(|planned| planned.source == database).count();
        let arrive = plan.moves.iter().filter(|planned| planned.target == database).count();
        BalanceView {
            name: member.name.clone(),
            standing: member.standing,
            shards_before: before,
            shards_after: before + arrive - leave,
            load_percent_before: plan.before_percent[index],
            load_percent_after: plan.after_percent[index],
        }
    };
    RebalanceAnswer {
        dry_run: request.is_dry_run(),
        tolerance_percent: request.tolerance_percent(),
        moves: groups(placement, &plan.moves),
        databases: placement.members.iter().enumerate().map(view).collect(),
    }
}

fn shown(row: MoveRow, now: UnixMicros) -> MoveView {
    let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    let left = move_progress::time_left(row.step, row.started_at, now, row.rows_copied, row.rows_total);
    MoveView {
        shard: row.shard,
        percent: move_progress::percent(row.step, row.rows_copied, row.rows_total),
        left_ms: left.map(ms),
        cut_ms: row.cut.map(ms),
        from: row.source,
        to: row.target,
        step: row.step,
        requested_by: row.requested_by,
        requested_at: row.requested_at,
        called_off_at: row.called_off_at,
        started_at: row.started_at,
        rows_total: row.rows_total,
        rows_copied: row.rows_copied,
        bytes_copied: row.bytes_copied,
        node: row.node,
        problem: row.problem,
        updated_at: row.updated_at,
    }
}
