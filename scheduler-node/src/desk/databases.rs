//! The databases of the cluster: listed, drained, removed. The configuration names their connections, the first
//! database keeps the standing of each.

use common::{
    ids::{DatabaseIndex, DatabaseName, ShardId},
    shard::{ShardSet, Standing, move_check::PlannedMove, move_progress::MovePhase, rebalance},
    wire::{
        Problem,
        shard::{DatabaseList, DatabaseView},
    },
};

use super::{
    Desk,
    placement::{Placement, Weights},
    run_to_end,
};
use crate::store::{Database, move_requests::MoveRow, weights::ShardWeight};

/// The most plans of a drain that conflict with other requests. Each conflict means that another request was carried
/// out.
const ROUNDS: usize = 8;

impl Desk {
    /// Lists the databases. With `estimates`, each with its load.
    pub(crate) async fn database_list(&self, estimates: bool) -> Result<DatabaseList, Problem> {
        if estimates {
            self.require_all_queues()?;
        }
        let placement = self.placement().await?;
        let mut notes = Vec::new();
        let weights = if estimates { Some(self.weights(&placement, &mut notes).await) } else { None };
        let views = (0..placement.members.len()).map(|index| self.database_view(&placement, index, weights.as_ref()));
        Ok(DatabaseList { databases: futures::future::join_all(views).await, notes })
    }

    /// Drains a database in the name of `by`: it receives no more shards, moves to it are called off, and its shards
    /// move to the others. A repeated request adds the moves that are still missing.
    pub(crate) async fn database_drain(&self, name: &str, by: &str) -> Result<DatabaseView, Problem> {
        let index = self.database_named(name)?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let name = desk.parts().store.databases()[index].name().clone();
            let placement = desk.placement().await?;
            if placement.members[index].standing == Standing::Removed {
                return Err(Problem::conflict(format!("database `{name}` is removed; undrain it to use it again")));
            }
            require_receiver(&placement, index)?;
            let others = placement.members.iter().enumerate().filter(|(other, _)| *other != index);
            for (receiver, _) in others.filter(|(_, member)| member.standing == Standing::Serving) {
                desk.require_receives(&desk.parts().store.databases()[receiver])?;
            }
            let was = placement.members[index].standing;
            let home = desk.parts().store.home();
            home.database_standing_put(&name, Standing::Draining).await?;
            let written = desk.placement().await?;
            if let Err(last) = require_receiver(&written, index) {
                // Two requests drained the last two at the same time.
                home.database_standing_put(&name, was).await?;
                return Err(last);
            }
            if was != Standing::Draining {
                tracing::info!(database = %name, by, "database drained");
            }
            let placement = desk.empty_database(index, &by).await?;
            Ok(desk.database_view(&placement, index, None).await)
        })
        .await
    }

    /// Ends a drain in the name of `by`, or uses a removed database again. Moves away from it that were asked for go
    /// on.
    pub(crate) async fn database_undrain(&self, name: &str, by: &str) -> Result<DatabaseView, Problem> {
        let index = self.database_named(name)?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let database = &desk.parts().store.databases()[index];
            let name = database.name();
            desk.parts().store.home().database_standing_put(name, Standing::Serving).await?;
            tracing::info!(database = %name, by, "database undrained");
            // A removal has taken this right away. Where the database does not answer, the drain has ended all the
            // same, and the request can be repeated.
            database.producer_return().await?;
            let placement = desk.placement().await?;
            Ok(desk.database_view(&placement, index, None).await)
        })
        .await
    }

    /// Removes a drained database that is empty, in the name of `by`.
    pub(crate) async fn database_remove(&self, name: &str, by: &str) -> Result<DatabaseView, Problem> {
        let index = self.database_named(name)?;
        let (desk, by) = (self.clone(), by.to_owned());
        run_to_end(async move {
            let database = &desk.parts().store.databases()[index];
            let name = database.name();
            if DatabaseIndex::new(index) == DatabaseIndex::HOME {
                let detail = format!(
                    "database `{name}` is the first one: it keeps the queues, the schedules and the tokens, so it \
                     cannot be removed"
                );
                return Err(Problem::conflict(detail));
            }
            let placement = desk.placement().await?;
            let drained = placement.standings.iter().find(|row| row.name == *name);
            let Some(drained) = drained.filter(|row| row.standing != Standing::Serving) else {
                return Err(Problem::conflict(format!("database `{name}` serves; drain it first")));
            };
            if drained.standing == Standing::Draining {
                desk.require_empty(&placement, index).await?;
                // Soon no node collects what a forgotten application submits, so it gets an error.
                database.producer_revoke().await?;
                require_no_submissions(database).await?;
                if desk.parts().store.home().database_standing_remove(name, drained.since).await?.is_none() {
                    desk.return_producer_unless_removed(database).await?;
                    let detail = format!("another request has changed database `{name}`; look at it and try again");
                    return Err(Problem::conflict(detail));
                }
                tracing::info!(database = %name, by, "database removed");
            } else if let Err(error) = database.producer_revoke().await {
                // A migration has given the right again, or the server is gone already.
                let error = &error as &dyn std::error::Error;
                tracing::info!(database = %name, error, "a removed database may still accept submissions in SQL");
            } else {
                // An undrain may have come in between.
                desk.return_producer_unless_removed(database).await?;
            }
            let placement = desk.placement().await?;
            Ok(desk.database_view(&placement, index, None).await)
        })
        .await
    }

    /// Gives the right to submit in SQL back where another request, such as an undrain, came before a removal.
    async fn return_producer_unless_removed(&self, database: &Database) -> Result<(), Problem> {
        let standings = self.placement().await?.standings;
        if standings.iter().any(|row| row.name == *database.name() && row.standing == Standing::Removed) {
            return Ok(());
        }
        Ok(database.producer_return().await?)
    }

    /// The place of a database among those of this node. Only a caller of all queues gets it.
    pub(super) fn database_named(&self, name: &str) -> Result<usize, Problem> {
        self.require_all_queues()?;
        let databases = self.parts().store.databases();
        databases.iter().position(|database| database.name().as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = databases.iter().map(|database| database.name().as_str()).collect();
            Problem::not_found(format!("there is no database `{name}`; there are: {}", known.join(", ")))
        })
    }

    /// Calls off the moves to a draining database, and adds the moves away from it. Returns the placement with them.
    async fn empty_database(&self, index: usize, by: &str) -> Result<Placement, Problem> {
        for _ in 0..ROUNDS {
            let placement = self.placement().await?;
            let name = &placement.members[index].name;
            let coming: ShardSet =
                placement.moves.iter().filter(|row| arrives(row, name)).map(|row| row.shard).collect();
            if !coming.is_empty() {
                self.parts().store.home().move_call_off(&coming).await?;
            }
            // Without an estimate of every database, the number of shards decides.
            let weights = self.weights_of_all(&placement).await.unwrap_or_default();
            let loads = placement.loads(&weights);
            let planned = |kinds: &[Standing]| -> Vec<PlannedMove> {
                let moves = rebalance::plan_drain(&loads, kinds);
                moves.into_iter().filter(|it| it.source.get() == index).collect()
            };
            let (kinds, away) = self.receivers(&placement).await;
            let leaving = planned(&kinds);
            // One receiver takes all shards.
            if let Some(mut away) = away
                && leaving.is_empty()
                && !planned(&placement.kinds()).is_empty()
            {
                let why = &away.detail;
                away.detail = format!("database `{name}` drains, but its shards have no place to go to yet: {why}");
                return Err(away);
            }
            match self.add_moves(&placement, &leaving, by).await {
                Ok(()) => return self.placement().await,
                Err(problem) if problem.status == 409 => {}
                Err(problem) => return Err(problem),
            }
        }
        let detail = "other requests keep moving the same shards; the database drains, send the request again to move \
                      the rest";
        Err(Problem::conflict(detail))
    }

    /// The standings of the databases, with those that can receive no shard now as though they drained; and the problem
    /// of one of these.
    async fn receivers(&self, placement: &Placement) -> (Vec<Standing>, Option<Problem>) {
        let databases = self.parts().store.databases().iter();
        let probes = placement.kinds().into_iter().zip(databases).map(|(standing, database)| async move {
            if standing == Standing::Serving {
                self.require_receives(database)?;
                database.move_probe().await?;
            }
            Ok::<_, Problem>(standing)
        });
        let (mut kinds, mut away) = (Vec::new(), None);
        for probed in futures::future::join_all(probes).await {
            kinds.push(probed.unwrap_or_else(|problem| {
                away = Some(problem);
                Standing::Draining
            }));
        }
        (kinds, away)
    }

    /// Refuses a database that still has something, or may get something.
    async fn require_empty(&self, placement: &Placement, index: usize) -> Result<(), Problem> {
        let database = &self.parts().store.databases()[index];
        let name = database.name();
        // The placement tolerates a database that is away; a removal does not.
        self.parts().store.places().refresh().await?;
        let map = self.parts().store.places().load();
        let held: ShardSet = map.in_database(DatabaseIndex::new(index)).collect();
        if !held.is_empty() {
            return Err(Problem::conflict(format!("database `{name}` still holds the shards {held}")));
        }
        let moving: ShardSet = placement
            .moves
            .iter()
            .filter(|row| row.source == *name || row.target == *name)
            .map(|row| row.shard)
            .collect();
        if !moving.is_empty() {
            return Err(Problem::conflict(format!("moves of the shards {moving} concern database `{name}`")));
        }
        require_no_submissions(database).await
    }

    async fn database_view(&self, placement: &Placement, index: usize, weights: Option<&Weights>) -> DatabaseView {
        let database = &self.parts().store.databases()[index];
        let member = &placement.members[index];
        let row = placement.standings.iter().find(|row| row.name == member.name);
        let up = member.standing != Standing::Removed && database.shards_read().await.is_ok();
        let shards: ShardSet = placement.map.in_database(DatabaseIndex::new(index)).collect();
        let set = |is_in: &dyn Fn(&MoveRow) -> bool| -> ShardSet {
            placement.moves.iter().filter(|row| is_in(row)).map(|row| row.shard).collect()
        };
        let load = |weights: &Weights| {
            let of_shard = |shard: ShardId| weights.get(&shard).copied().unwrap_or_default();
            shards.iter().map(of_shard).fold(ShardWeight::default(), ShardWeight::plus).view()
        };
        DatabaseView {
            name: member.name.clone(),
            place: database.place(),
            first: DatabaseIndex::new(index) == DatabaseIndex::HOME,
            standing: member.standing,
            since: row.filter(|row| row.standing != Standing::Serving).map(|row| row.since),
            up,
            leaving: set(&|row| row.source == member.name && goes_on(row)),
            arriving: set(&|row| arrives(row, &member.name)),
            load: weights.map(load),
            shards,
        }
    }
}

/// Refuses a database in which submissions in SQL wait, also those that looks at the inbox do not reach at present.
async fn require_no_submissions(database: &Database) -> Result<(), Problem> {
    let waiting = database.inbox_standing_from_head().await?.waiting;
    if waiting > 0 {
        let name = database.name();
        let detail = format!("{waiting} submissions in SQL wait in database `{name}`; let the nodes collect them");
        return Err(Problem::conflict(detail));
    }
    Ok(())
}

/// Whether the shard of the move is still to change its database.
fn goes_on(row: &MoveRow) -> bool {
    row.step != MovePhase::Cleaning && row.called_off_at.is_none()
}

fn arrives(row: &MoveRow, name: &DatabaseName) -> bool {
    row.target == *name && goes_on(row)
}

/// Refuses to drain the last database that receives shards: they would have no place to go.
fn require_receiver(placement: &Placement, but: usize) -> Result<(), Problem> {
    let mut others = placement.members.iter().enumerate().filter(|(index, _)| *index != but);
    if others.any(|(_, member)| member.standing == Standing::Serving) {
        return Ok(());
    }
    let name = &placement.members[but].name;
    Err(Problem::conflict(format!("database `{name}` is the last one that receives shards; add or undrain another")))
}
