//! The steps of a move in its two databases: the gate, the fences, and the cut.

use common::{
    ids::{Epoch, NodeId, ShardId},
    shard::ShardStatus,
};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

use super::{Database, Effect, Error, StoreOp, unexpected};

/// The tables that the gate guards.
const GUARDED: [&str; 3] = ["task", "archive", "received"];

/// A fence as a move sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveFence {
    pub status: ShardStatus,
    pub epoch: Epoch,
    owner: Option<String>,
    incarnation: Option<Uuid>,
    /// The epoch in the source, and the number, of the last write of a move that counted here.
    move_epoch: Epoch,
    move_write: i64,
}

impl MoveFence {
    /// Whether this start of `node` was the last to take the fence.
    pub fn is_of(&self, node: &NodeId) -> bool {
        self.owner.as_deref() == Some(node.name.as_str()) && self.incarnation == Some(node.incarnation.uuid())
    }

    /// The number of the last write of a move that counted here.
    pub fn last_write(&self) -> i64 {
        self.move_write
    }
}

/// How a statement that closes a shard waits for writers in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseWait {
    Plain,
    InTurn,
}

impl Database {
    /// Fails if this database could not receive shards now: it is away or read-only, or its schema does not fit.
    pub async fn move_probe(&self) -> Result<(), Error> {
        self.run(StoreOp::MoveProbe, |pool| async move {
            sqlx::query(include_str!("queries/move_probe.sql")).execute(&pool).await.map(drop)
        })
        .await
    }

    /// The fence of a shard; `None`: this database knows nothing of it.
    pub async fn move_fence(&self, shard: ShardId) -> Result<Option<MoveFence>, Error> {
        self.run(StoreOp::MoveFence, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_fence.sql")).bind(i32::from(shard.number()));
            statement.fetch_optional(&pool).await?.as_ref().map(fence).transpose()
        })
        .await
    }

    /// Has the gate guard `shards`; `only`: and of the others only those that move. Each table is a statement of its
    /// own: no writer waits for more than one. With `only`, a table whose lock is not free keeps no other one waiting.
    pub async fn move_guard(&self, shards: &[ShardId], only: bool) -> Result<(), Error> {
        let mut done = Ok(());
        for guarded in GUARDED {
            let numbers = super::numbers(shards);
            let made = self.run(StoreOp::MoveGuard, |pool| async move {
                let statement = sqlx::query(include_str!("queries/move_guard.sql")).bind(guarded).bind(numbers);
                statement.bind(only).fetch_one(&pool).await.map(drop)
            });
            match made.await {
                Err(error) if only && error.is_contention() => done = Err(error),
                made => made?,
            }
        }
        done
    }

    /// Whether the gate guards shards that do not move, so that [`Self::move_guard`] has something to take out of it.
    pub async fn move_guard_left(&self) -> Result<bool, Error> {
        self.run(StoreOp::MoveGuardLeft, |pool| async move {
            sqlx::query(include_str!("queries/move_guard_left.sql")).fetch_one(&pool).await?.try_get("is_left")
        })
        .await
    }

    /// Begins a move in the source. `false`: the gate does not guard the shard, `epoch` is not its epoch any more, or
    /// this write came late. `write` is the number of this write, as in `move_return`, `move_drop` and `move_close`.
    pub async fn move_leave(&self, shard: ShardId, epoch: Epoch, write: i64) -> Result<bool, Error> {
        let statements = [include_str!("queries/move_leave.sql"), include_str!("queries/move_leave_in_turn.sql")];
        self.move_in_turn(StoreOp::MoveLeave, statements, shard, epoch, write).await
    }

    /// Begins a move in the target. `seen`: its fence, as the caller has seen it between two looks at the source.
    /// `write`: the number of this node's last write. `false`: the target has another fence by now, or the gate does
    /// not guard the shard.
    pub async fn move_arrive(
        &self,
        shard: ShardId,
        epoch: Epoch,
        write: i64,
        seen: Option<&MoveFence>,
    ) -> Result<bool, Error> {
        let (seen_epoch, seen_move_epoch) =
            (seen.map(|fence| fence.epoch.number()), seen.map(|fence| fence.move_epoch.number()));
        let seen_move_write = seen.map(|fence| fence.move_write);
        self.run(StoreOp::MoveArrive, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_arrive.sql")).bind(i32::from(shard.number()));
            let statement = statement.bind(epoch.number()).bind(write);
            let statement = statement.bind(seen_epoch).bind(seen_move_epoch).bind(seen_move_write);
            statement.fetch_one(&pool).await?.try_get("done")
        })
        .await
    }

    /// Takes a copy over from an earlier owner of the source. `write`: the number of this node's last write. From here
    /// on that one and those before it do nothing. `false`: the shard does not arrive any more, or a newer owner fills
    /// it.
    pub async fn move_fill(&self, shard: ShardId, epoch: Epoch, write: i64) -> Result<bool, Error> {
        self.move_step(StoreOp::MoveFill, include_str!("queries/move_fill.sql"), shard, epoch, write).await
    }

    /// Ends a move that was called off, in the source, whether the shard has left or not. Notes of changes may stay.
    pub async fn move_return(&self, shard: ShardId, epoch: Epoch, write: i64) -> Result<bool, Error> {
        let statements = [include_str!("queries/move_return.sql"), include_str!("queries/move_return_in_turn.sql")];
        self.move_in_turn(StoreOp::MoveReturn, statements, shard, epoch, write).await
    }

    /// A step on a fence that claims may hold. Where the first statement waits too long, the second one has its turn
    /// among them. Only if the first has done nothing, so that its number is free: the end of a session at its
    /// `transaction_timeout` may hide a commit.
    async fn move_in_turn(
        &self,
        op: StoreOp,
        [plain, in_turn]: [&'static str; 2],
        shard: ShardId,
        epoch: Epoch,
        write: i64,
    ) -> Result<bool, Error> {
        match self.move_step(op, plain, shard, epoch, write).await {
            Err(error) if error.is_contention() && error.effect == Effect::None => {
                self.move_step(op, in_turn, shard, epoch, write).await
            }
            result => result,
        }
    }

    async fn move_step(
        &self,
        op: StoreOp,
        statement: &'static str,
        shard: ShardId,
        epoch: Epoch,
        write: i64,
    ) -> Result<bool, Error> {
        self.run(op, |pool| async move {
            let statement = sqlx::query(statement).bind(i32::from(shard.number())).bind(epoch.number());
            statement.bind(write).fetch_one(&pool).await?.try_get("done")
        })
        .await
    }

    /// Ends a move that was called off, in the target, which has none of its rows any more. `false`: the shard does not
    /// arrive any more, another owner fills it, or this write came late.
    pub async fn move_drop(&self, shard: ShardId, epoch: Epoch, write: i64) -> Result<bool, Error> {
        self.run(StoreOp::MoveDrop, |pool| async move {
            let statement = sqlx::query(statement!("move_drop")).bind(i32::from(shard.number()));
            let done = statement.bind(epoch.number()).bind(write).execute(&pool).await?;
            Ok(done.rows_affected() > 0)
        })
        .await
    }

    /// Closes a leaving shard. Returns its new epoch; `None`: the caller does not own it any more, or this write came
    /// late.
    pub async fn move_close(
        &self,
        shard: ShardId,
        epoch: Epoch,
        write: i64,
        wait: CloseWait,
    ) -> Result<Option<Epoch>, Error> {
        let statement = match wait {
            CloseWait::Plain => include_str!("queries/move_close.sql"),
            CloseWait::InTurn => include_str!("queries/move_close_in_turn.sql"),
        };
        self.run(StoreOp::MoveClose, |pool| async move {
            let statement = sqlx::query(statement).bind(i32::from(shard.number())).bind(epoch.number()).bind(write);
            let epoch: Option<i64> = statement.fetch_one(&pool).await?.try_get("epoch")?;
            Ok(epoch.map(Epoch::from_store))
        })
        .await
    }

    /// Has the target refuse every open of a closed shard that was sent so far, by whatever owner and however late it
    /// comes: the target is filled under the epoch that [`Self::move_reopen`] gives the source. `false`: the shard does
    /// not arrive any more, or a newer owner fills it.
    pub async fn move_refuse_open(&self, shard: ShardId, closed: Epoch) -> Result<bool, Error> {
        // The next owner may fill the target under this epoch, and numbers its writes anew. None has a number yet.
        self.move_fill(shard, Epoch::from_store(closed.number() + 1), 0).await
    }

    /// Opens a closed shard in its source again. No open in the target may be under way: none has begun, or the target
    /// refuses it ([`Self::move_refuse_open`]).
    pub async fn move_reopen(&self, shard: ShardId, closed: Epoch, node: &NodeId) -> Result<Option<Epoch>, Error> {
        self.run(StoreOp::MoveReopen, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_reopen.sql")).bind(i32::from(shard.number()));
            let statement = statement.bind(closed.number()).bind(node.name.as_str()).bind(node.incarnation.uuid());
            epoch_of(statement.fetch_optional(&pool).await?)
        })
        .await
    }

    /// Opens a shard in its target. `filled`: the epoch under which the caller fills it; `closed`: that of the closed
    /// shard in the source. Returns the new epoch, above both.
    pub async fn move_open(
        &self,
        shard: ShardId,
        filled: Epoch,
        closed: Epoch,
        node: &NodeId,
    ) -> Result<Option<Epoch>, Error> {
        self.run(StoreOp::MoveOpen, |pool| async move {
            let statement = sqlx::query(include_str!("queries/move_open.sql")).bind(i32::from(shard.number()));
            let statement = statement.bind(filled.number()).bind(closed.number());
            let statement = statement.bind(node.name.as_str()).bind(node.incarnation.uuid());
            epoch_of(statement.fetch_optional(&pool).await?)
        })
        .await
    }
}

fn epoch_of(row: Option<PgRow>) -> Result<Option<Epoch>, sqlx::Error> {
    row.map(|row| Ok(Epoch::from_store(row.try_get("epoch")?))).transpose()
}

fn fence(row: &PgRow) -> Result<MoveFence, sqlx::Error> {
    let status: &str = row.try_get("status")?;
    Ok(MoveFence {
        status: ShardStatus::parse(status).ok_or_else(|| unexpected("status", status))?,
        epoch: Epoch::from_store(row.try_get("epoch")?),
        owner: row.try_get("owner")?,
        incarnation: row.try_get("incarnation")?,
        move_epoch: Epoch::from_store(row.try_get("move_epoch")?),
        move_write: row.try_get("move_write")?,
    })
}
