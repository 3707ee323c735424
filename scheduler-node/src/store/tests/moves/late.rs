//! What comes late of a move counts in none of those after it.

use super::*;
use crate::store::moves::MoveFence;

impl Pair {
    /// The next owner takes the shard to the target. Returns the pair for the way back.
    async fn moved(mut self) -> Self {
        self.taken_over().await;
        self.begin().await;
        self.copy().await;
        let (_, epoch) = self.cut().await;
        Self { source: self.target, target: self.source, epoch, writes: Cell::new(0), ..self }
    }

    async fn taken_over(&mut self) {
        self.epoch = self.source.database.shard_acquire(&[SHARD], &node("next")).await.unwrap()[0].1;
        self.writes.set(0);
    }

    /// Closes the shard on its way back, while a former owner has the begin of its move executed in the source: as that
    /// owner has seen the source, and without that, as a node of 0.2.0.
    async fn close_beside_a_late_begin(&mut self, former: Epoch, seen: Option<&MoveFence>) -> Epoch {
        self.begin().await;
        self.copy().await;
        let closed = self.close().await.expect("the owner closes it");
        assert!(!self.source.database.move_arrive(SHARD, former, 0, seen).await.unwrap());
        refuses_unseen(&self.source, former).await;
        assert_eq!(Pair::status(&self.source).await, Some(ShardStatus::Gone));
        closed
    }
}

/// Begins a move in its target as a node of 0.2.0 does, which would try again at once unless it gets an error.
async fn refuses_unseen(target: &TestDatabase, epoch: Epoch) {
    let statement = sqlx::query("SELECT duetime.move_arrive(0, $1)").bind(epoch.number());
    let error = statement.execute(&target.pool).await.expect_err("a later owner has been there");
    let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.to_string());
    assert_eq!(code.as_deref(), Some("55000"), "{error}");
}

#[tokio::test]
async fn what_a_former_owner_begins_late_does_nothing_in_a_target_that_has_had_the_shard_since() {
    let (pair, _) = Pair::here().await;
    let before = rows(&pair.source.pool).await;
    let former = pair.epoch;
    let mut back = pair.moved().await;
    let closed = back.close_beside_a_late_begin(former, None).await;
    let former = back.open(closed).await;
    let pair = Pair { source: back.target, target: back.source, epoch: former, writes: Cell::new(0), ..back };
    let seen = pair.target.database.move_fence(SHARD).await.unwrap();
    assert!(seen.is_some(), "it has been there");
    let mut back = pair.moved().await;
    let closed = back.close_beside_a_late_begin(former, seen.as_ref()).await;
    back.open(closed).await;
    assert_eq!(rows(&back.target.pool).await, before);
}

/// A node of 0.2.0 deletes the row of a move that was called off.
#[tokio::test]
async fn a_move_does_not_begin_where_the_row_that_its_mover_saw_has_gone() {
    let (pair, _) = Pair::here().await;
    let Pair { target, epoch, .. } = pair.moved().await;
    let seen = target.database.move_fence(SHARD).await.unwrap();
    assert!(seen.is_some(), "it has been there");
    sqlx::query("DELETE FROM duetime.shard WHERE id = 0").execute(&target.pool).await.unwrap();
    assert!(!target.database.move_arrive(SHARD, epoch, 0, seen.as_ref()).await.unwrap());
    assert!(target.database.move_arrive(SHARD, epoch, 0, None).await.unwrap(), "it is as that was seen");
}

#[tokio::test]
async fn what_a_former_owner_begins_late_does_nothing_after_a_move_of_the_next_one_that_was_called_off() {
    let (mut pair, _) = Pair::here().await;
    let former = pair.epoch;
    pair.taken_over().await;
    pair.begin().await;
    pair.copy().await;
    pair.end().await;
    assert!(!pair.target.database.move_arrive(SHARD, former, 0, None).await.unwrap());
    refuses_unseen(&pair.target, former).await;
    assert_eq!(Pair::status(&pair.target).await, Some(ShardStatus::Gone));
}

/// As after a restore of the source: the target had the shard under an epoch above that of the source.
#[tokio::test]
async fn a_shard_moves_to_a_database_whose_fence_has_a_higher_epoch() {
    let (mut pair, _) = Pair::here().await;
    let gone =
        "INSERT INTO duetime.shard (id, status, epoch, move_epoch, move_write) VALUES (0, 'gone', 1000000, 1000, 7)";
    sqlx::raw_sql(gone).execute(&pair.target.pool).await.unwrap();
    pair.begin().await;
    pair.copy().await;
    let (closed, opened) = pair.cut().await;
    assert!(closed < opened && opened.number() > 1_000_000, "{closed}, {opened}");
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}

#[tokio::test]
async fn what_comes_late_of_a_move_that_was_called_off_does_nothing_to_the_next_one_of_the_same_owner() {
    let (mut pair, ids) = Pair::copied().await;
    let (source, target) = (pair.source.database.clone(), pair.target.database.clone());
    let [leave, close, give_back, end] = std::array::from_fn(|_| pair.next_write());
    pair.end().await;
    assert!(!source.move_leave(SHARD, pair.epoch, leave).await.unwrap());
    assert_eq!(Pair::status(&pair.source).await, Some(ShardStatus::Here), "no move would ever end that");

    pair.begin().await;
    let too_soon = source.move_close(SHARD, pair.epoch, close, CloseWait::Plain).await.unwrap();
    assert_eq!(too_soon, None, "nothing is copied yet");
    pair.copy().await;
    write(&pair.source.pool, WRITERS[4].0, ids[0]).await.unwrap();
    assert!(!source.move_return(SHARD, pair.epoch, give_back).await.unwrap());
    assert_eq!(
        source.move_changes(SHARD, 0, &WritePaces::default()).await.unwrap().numbers.len(),
        1,
        "the note of the change stays"
    );

    let closed = pair.close().await.expect("the owner closes it");
    let is_dropped = target.move_drop(SHARD, pair.epoch, end).await.unwrap();
    assert_eq!(Pair::status(&pair.target).await, Some(ShardStatus::Arriving), "the end of the move before");
    assert!(!is_dropped);
    pair.open(closed).await;
    assert_eq!(rows(&pair.target.pool).await, rows(&pair.source.pool).await);
}
