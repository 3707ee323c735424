//! Tokens created over the API.

use std::time::{Duration, Instant};

use common::{
    access::{Role, Scope},
    time::UnixMicros,
    wire::token::ValidToken,
};
use sqlx::Executor;

use super::fixture;
use crate::{
    clock,
    store::{PoolKind, tokens::TokenAdded},
};

fn token(name: &str) -> ValidToken {
    let queues = Scope::of(Some(vec!["shop.*".to_owned()])).expect("a scope");
    ValidToken { name: name.to_owned(), role: Role::Producer, queues, expires_at: None, limits: Default::default() }
}

#[tokio::test]
async fn a_token_is_in_the_book_until_it_is_revoked_and_each_change_raises_the_revision() {
    let test = fixture::database().await;
    let database = &test.database;
    assert_eq!((database.token_revision().await.unwrap(), database.token_book().await.unwrap().tokens.len()), (0, 0));
    let TokenAdded::Made(made) = database.token_add(&token("shop"), &[7; 32], "ops").await.unwrap() else {
        panic!("it is the first")
    };
    assert_eq!((made.view.name.as_str(), made.view.created_by.as_deref()), ("shop", Some("ops")));
    let book = database.token_book().await.unwrap();
    assert_eq!((book.revision, database.token_revision().await.unwrap()), (1, 1));
    assert_eq!((book.tokens[0].caller.id, made.view.id), (Some(made.id), Some(made.id)));
    assert_eq!((book.tokens[0].sha256, &book.tokens[0].caller.queues), ([7; 32], &token("shop").queues));
    assert!(!book.tokens[0].is_expired(Instant::now()));
    assert!(matches!(database.token_add(&token("shop"), &[8; 32], "ops").await.unwrap(), TokenAdded::NameTaken));
    assert_eq!(database.token_revision().await.unwrap(), 1, "nothing has changed");
    let revoked = database.token_revoke("shop", "boss").await.unwrap().expect("it was there");
    assert_eq!(revoked.view.revoked_by.as_deref(), Some("boss"));
    assert!(database.token_revoke("shop", "boss").await.unwrap().is_none(), "once");
    let book = database.token_book().await.unwrap();
    assert_eq!((book.revision, book.tokens.len()), (2, 0));
    assert!(matches!(database.token_add(&token("shop"), &[8; 32], "ops").await.unwrap(), TokenAdded::Made(_)));
    let list = database.token_list(None, 10).await.unwrap();
    assert_eq!(list.len(), 2, "the revoked one is shown too");
    assert_ne!(list[0].view.id, list[1].view.id, "two tokens of one name have ids of their own");
    assert_eq!(database.token_list(Some(list[0].id), 10).await.unwrap()[0].id, made.id);
}

#[tokio::test]
async fn a_token_of_each_role_is_kept_and_reads_back() {
    let test = fixture::database().await;
    for (nth, role) in (0_u8..).zip(Role::ALL) {
        let token = ValidToken { role, ..token(role.text()) };
        let added = test.database.token_add(&token, &[nth; 32], "ops").await.unwrap();
        assert!(matches!(&added, TokenAdded::Made(made) if made.view.role == role), "{role}: {added:?}");
    }
    let book = test.database.token_book().await.unwrap();
    assert!(Role::ALL.iter().all(|role| book.tokens.iter().any(|token| token.caller.role == *role)), "{book:?}");
}

#[tokio::test]
async fn a_token_that_cannot_be_read_keeps_no_other_valid() {
    let test = fixture::database().await;
    for (hash, name) in [(1, "shop"), (2, "broken"), (3, "old")] {
        test.database.token_add(&token(name), &[hash; 32], "ops").await.unwrap();
    }
    test.pool
        .execute("UPDATE duetime.token SET limits = '{\"pending\": \"ten\"}' WHERE name = 'broken'")
        .await
        .unwrap();
    test.database.token_revoke("old", "ops").await.unwrap().expect("it is there");
    let book = test.database.token_book().await.unwrap();
    assert_eq!(book.tokens.iter().map(|token| &*token.caller.name).collect::<Vec<_>>(), ["shop"]);
}

#[tokio::test]
async fn a_token_expires_by_the_clock_of_its_database() {
    let test = fixture::database().await;
    let soon = UnixMicros::new(clock::now().micros() + 3_600_000_000);
    let token = ValidToken { expires_at: Some(soon), ..token("shop") };
    test.database.token_add(&token, &[7; 32], "ops").await.unwrap();
    let left = async || {
        let book = test.database.token_book().await.unwrap();
        let now = Instant::now();
        (book.tokens[0].is_expired(now), book.tokens[0].is_expired(now + Duration::from_secs(3_700)))
    };
    assert_eq!(left().await, (false, true));
    test.pool.execute("UPDATE duetime.token SET expires_at = now() - interval '1 s'").await.unwrap();
    assert_eq!(left().await, (true, true));
}

#[tokio::test]
async fn of_two_revocations_at_one_moment_one_is_done() {
    let test = fixture::database().await;
    test.database.token_add(&token("shop"), &[7; 32], "ops").await.unwrap();
    test.be_patient(PoolKind::Write).await;
    let mut barrier = test.pool.acquire().await.unwrap();
    barrier.execute("BEGIN; SELECT FROM duetime.token WHERE name = 'shop' FOR UPDATE").await.unwrap();
    let both = async { tokio::join!(test.database.token_revoke("shop", "a"), test.database.token_revoke("shop", "b")) };
    let open = async {
        test.until_waiting(2).await;
        barrier.execute("COMMIT").await.unwrap();
    };
    let ((one, other), ()) = tokio::join!(both, open);
    assert_eq!([one.unwrap(), other.unwrap()].iter().flatten().count(), 1);
    assert_eq!(test.database.token_revision().await.unwrap(), 2);
}

#[tokio::test]
async fn a_token_that_was_revoked_long_ago_is_forgotten() {
    let test = fixture::database().await;
    for (name, digit) in [("old", 1), ("new", 2), ("live", 3)] {
        test.database.token_add(&token(name), &[digit; 32], "ops").await.unwrap();
    }
    for name in ["old", "new"] {
        test.database.token_revoke(name, "ops").await.unwrap();
    }
    let back = "UPDATE duetime.token SET revoked_at = now() - interval '3 days' WHERE name = 'old'";
    test.pool.execute(back).await.unwrap();
    assert_eq!(test.database.token_forget(Duration::from_secs(2 * 86_400), 10).await.unwrap(), 1);
    let left: Vec<String> =
        test.database.token_list(None, 10).await.unwrap().into_iter().map(|t| t.view.name).collect();
    assert_eq!(left, ["live", "new"]);
}
