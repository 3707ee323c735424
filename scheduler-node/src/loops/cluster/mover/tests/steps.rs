//! Steps of a move that begins anew, or that is called off.

use super::*;

impl Moving {
    /// Asks for the move, so that it can be noted and called off.
    async fn ask(&mut self) {
        assert_eq!(self.ends.source.sql.move_add(&[asked(SHARD, "east")], "a test").await.unwrap(), MovesAdded::All);
        self.work.shared.look().await;
        self.work.requested_at = self.work.shared.plans.load()[&SHARD].requested_at;
    }

    async fn step(&mut self) -> Result<Stepped, crate::store::Error> {
        let plan = self.work.plan().expect("the move has not ended");
        self.work.step(&plan).await
    }
}

#[tokio::test]
async fn a_copy_that_begins_anew_is_noted_with_its_first_page() {
    let mut moving = Moving::new().await;
    moving.ask().await;
    // As after a target that was restored from before the move.
    moving.work.page = PageCursor::Done;
    moving.step().await.unwrap();
    let noted = moving.ends.source.sql.move_list().await.unwrap().remove(0);
    assert_eq!(noted.page, Some(PageCursor::FIRST));
}
