use common::{
    access::{Role, Scope},
    wire::token::ValidToken,
};

use super::*;
use crate::{clock, config::Auth, store::tests::fixture};

#[tokio::test]
async fn an_end_that_came_while_the_clock_stood_still_is_known_after_a_minute() {
    let test = fixture::database().await;
    let store = fixture::store(vec![Arc::clone(&test.database)]);
    let access = Arc::new(Access::new(&Auth::default()));
    let mut reader = TokenReader::new(store, Arc::clone(&access));
    let expires_at = Some(clock::now().plus(Duration::from_secs(3_600)));
    let (name, queues, limits) = ("shop".to_owned(), Scope::ALL, Default::default());
    let token = ValidToken { name, role: Role::Viewer, queues, expires_at, limits };
    test.database.token_add(&token, &[7; 32], "ops").await.unwrap();
    let is_expired = || access.book().expect("read").tokens[0].is_expired(Instant::now());
    reader.read().await.unwrap();
    // As after an hour in which the machine was suspended.
    sqlx::query("UPDATE duetime.token SET expires_at = now()").execute(&test.pool).await.unwrap();
    reader.read().await.unwrap();
    assert!(!is_expired(), "the revision is the same");
    reader.read_all_at = Instant::now().checked_sub(READ_ALL_EVERY);
    test.database.look().await.unwrap();
    assert!(!reader.is_current().await);
    reader.read().await.unwrap();
    assert!(is_expired());
}
