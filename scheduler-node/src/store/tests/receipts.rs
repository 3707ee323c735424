//! The keys that sign receipts.

use common::ids::{Attempt, MessageId};
use sqlx::Executor;

use super::fixture;

const AGE: &str = "UPDATE duetime.receipt_key SET made_at = made_at - interval '1 hour'";
const ROTATE: &str = "SELECT duetime.rotate_receipt_key()";

#[tokio::test]
async fn a_new_key_is_accepted_before_it_is_used_and_the_key_before_it_until_the_next_rotation() {
    let test = fixture::database().await;
    let about = MessageId { id: fixture::fresh_id(), attempt: Attempt::new(1) };
    let first = test.database.receipt_keys().await.unwrap();
    assert_eq!((first.accepted.len(), first.accepted[0].secret().len()), (1, 32));
    let receipt = first.receipt(about).expect("a migrated database has a key");

    test.pool.execute(ROTATE).await.unwrap();
    let during = test.database.receipt_keys().await.unwrap();
    assert_eq!((during.accepted.len(), during.receipt(about).as_deref()), (2, Some(receipt.as_str())));
    assert!(test.pool.execute(ROTATE).await.is_err(), "the new key is not in use yet");

    test.pool.execute(AGE).await.unwrap();
    let after = test.database.receipt_keys().await.unwrap();
    let newer = after.receipt(about).expect("there is a key");
    assert!(newer != receipt && after.is_genuine(about, &receipt) && during.is_genuine(about, &newer));

    test.pool.execute(ROTATE).await.unwrap();
    let last = test.database.receipt_keys().await.unwrap();
    assert!(last.is_genuine(about, &newer) && !last.is_genuine(about, &receipt));
}
