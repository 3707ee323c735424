//! A seeded bug: a task that the broker has refused goes back to `scheduled`, as if it had never been claimed. A copy
//! that was on its way under another confirm is then delivered after a cancel.

use common::outcome::Outcome;

use super::Publisher;
use crate::{
    broker::{NotTaken, Publish, Published},
    clock,
    store::{Statements, settle::Retry},
    working_set::database::{DatabaseIndex, LOOK_AGAIN},
};

impl<S: Statements, B: Publish> Publisher<S, B> {
    pub(super) async fn unclaim(&self, database: DatabaseIndex, published: &Published) {
        let sql = &self.databases[database].sql;
        let (Outcome::Refused(NotTaken::Nacked), Some(now)) = (&published.outcome, sql.clock().at(clock::instant()))
        else {
            return;
        };
        let entry = "{}".to_owned();
        let retry_at = now.plus(LOOK_AGAIN);
        let (id, attempt) = (published.id, published.attempt);
        let back = Retry { id, attempt, retry_at, entry, at_deadline: false, lower: false };
        sql.task_retry(&[back]).await.expect("the row goes back");
    }
}
