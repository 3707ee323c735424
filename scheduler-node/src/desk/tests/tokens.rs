//! Tokens, and what a scope hides.

use std::sync::Arc;

use common::{
    access::Scope,
    ids::QueueName,
    task::TaskState,
    wire::{
        BulkRequest, ListFilter, NamePage, QueueRequest, ScheduleRequest, TokenPage, TokenRequest, token::TokenSource,
    },
};

use super::{Counter, PLAIN, counter_of, fresh, request};
use crate::{
    access::{Access, TokenBook},
    config::{Auth, Role, Token},
    desk::Desk,
    store::tests::fixture,
};

fn token(name: &str) -> TokenRequest {
    TokenRequest::parse(&format!(r#"{{"name":"{name}","role":"operator"}}"#)).expect("a token")
}

/// The desk for a caller who may see queue `mine` only.
fn mine(counter: &Counter) -> Desk {
    counter.desk.within(Scope::of(Some(vec!["mine".to_owned()])).expect("a scope"))
}

#[tokio::test]
async fn a_token_is_told_once_and_in_force_with_the_answer() {
    let (counter, _test) = fresh().await;
    let made = counter.desk.token_add(token("shop"), "ops").await.expect("made");
    assert!(made.token.expect("told").starts_with("duetime_"));
    assert_eq!(counter.access.book().expect("read").tokens.len(), 1);
    let list = counter.desk.token_list(TokenPage::default()).await.expect("a list");
    assert_eq!((list.tokens[0].source, list.tokens[0].token.is_none()), (TokenSource::Api, true));
    assert_eq!(counter.desk.token_add(token("shop"), "ops").await.expect_err("taken").status, 409);
    counter.desk.token_revoke("shop", "ops").await.expect("revoked");
    assert_eq!(counter.access.book().expect("read").tokens.len(), 0);
    assert_eq!(counter.desk.token_revoke("shop", "ops").await.expect_err("gone").status, 404);
}

#[tokio::test]
async fn a_token_is_revoked_although_the_configuration_has_one_of_its_name() {
    let (counter, _test) = fresh().await;
    counter.desk.token_add(token("shop"), "ops").await.expect("made");
    let (name, limits) = ("shop".to_owned(), Default::default());
    let configured = Token { name, role: Role::Viewer, queues: Scope::ALL, limits, sha256: [7; 32] };
    counter.access.configure(&[configured]);
    let revoked = counter.desk.token_revoke("shop", "ops").await.expect("revoked");
    assert_eq!((revoked.source, revoked.revoked_by.as_deref()), (TokenSource::Api, Some("ops")));
    assert!(counter.access.book().expect("read").tokens.is_empty(), "it opens nothing any more");
    assert_eq!(counter.access.configured()[0].sha256, [7; 32], "the configured one is in force");
    assert_eq!(counter.desk.token_revoke("shop", "ops").await.expect_err("refused").status, 409);
}

#[tokio::test]
async fn the_first_token_of_an_open_node_is_not_made_over_the_api() {
    let (counter, _test) = fresh().await;
    counter.access.put_in_force(TokenBook::default());
    let refused = counter.desk.token_add(token("mallory"), "anonymous").await.expect_err("refused");
    assert_eq!(refused.status, 409);
    assert!(refused.detail.contains("configuration"), "{refused}");
}

#[tokio::test]
async fn whoever_may_know_of_some_queues_only_has_no_say_in_tokens() {
    let (counter, _test) = fresh().await;
    let mine = mine(&counter);
    assert_eq!(mine.token_add(token("wider"), "me").await.expect_err("refused").status, 403);
    assert_eq!(mine.token_revoke("ops", "me").await.expect_err("refused").status, 403);
    assert_eq!(mine.token_list(TokenPage::default()).await.expect_err("refused").status, 403);
}

#[tokio::test]
async fn a_cursor_does_not_lead_out_of_a_scope() {
    let (counter, _test) = fresh().await;
    for queue in ["mine", "theirs"] {
        for _ in 0..2 {
            let task = format!(r#"{{"queue":"{queue}","delay_ms":3600000}}"#);
            counter.desk.submit(request(&task)).await.expect("submitted");
        }
    }
    let of_theirs = r#"{"action":"cancel","filter":{"queue":"theirs"},"limit":1}"#;
    let cursor = counter.desk.bulk(BulkRequest::parse(of_theirs).expect("a request")).await.expect("done").next_cursor;
    let cursor = cursor.expect("there is one more");
    let forged = format!(r#"{{"action":"cancel","filter":{{"queue":"mine"}},"cursor":"{cursor}"}}"#);
    let refused = mine(&counter).bulk(BulkRequest::parse(&forged).expect("a request")).await.expect_err("refused");
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("cursor")), "{refused}");
}

#[tokio::test]
async fn what_names_no_queue_is_refused_to_whoever_may_not_know_of_all() {
    let (counter, _test) = fresh().await;
    let refused = mine(&counter).list(ListFilter::default()).await.expect_err("refused");
    assert!(refused.status == 403 && refused.detail.contains("queue"), "{refused}");
    let waits = r#"{"queue":"mine","partition_key":"p","depends_on":[{"queue":"theirs","key":"k"}]}"#;
    assert_eq!(mine(&counter).submit(request(waits)).await.expect_err("refused").status, 403);
}

#[tokio::test]
async fn the_state_of_a_dependency_in_another_queue_is_not_shown() {
    let (counter, _test) = fresh().await;
    let theirs = r#"{"queue":"theirs","key":"k","partition_key":"p","delay_ms":3600000}"#;
    counter.desk.submit(request(theirs)).await.expect("submitted");
    let waits = r#"{"queue":"mine","partition_key":"p","depends_on":[{"queue":"theirs","key":"k"}]}"#;
    let id = counter.desk.submit(request(waits)).await.expect("submitted").id;
    let mine = mine(&counter);
    for (desk, state) in [(&counter.desk, Some(TaskState::Scheduled)), (&mine, None)] {
        let shown = desk.get(id).await.expect("it is there").depends_on;
        assert_eq!((shown.len(), shown[0].key.as_str(), shown[0].state), (1, "k", state));
    }
}

#[tokio::test]
async fn schedules_of_other_queues_are_neither_shown_nor_replaced() {
    let (counter, _test) = fresh().await;
    let put = async |desk: &Desk, name: &str, queue: &str| {
        let json = format!(r#"{{"queue":"{queue}","every_ms":3600000}}"#);
        desk.schedule_put(common::ids::ScheduleName::new(name), ScheduleRequest::parse(&json).expect("a schedule"))
            .await
    };
    for (name, queue) in [("a", "theirs"), ("b", "mine"), ("c", "theirs"), ("d", "mine"), ("e", "theirs")] {
        put(&counter.desk, name, queue).await.expect("put");
    }
    let mine = mine(&counter);
    let (mut page, mut seen) = (NamePage { limit: Some(1), cursor: None }, Vec::new());
    loop {
        let list = mine.schedule_list(page.clone()).await.expect("a page");
        seen.extend(list.schedules.into_iter().map(|schedule| schedule.name.to_string()));
        page.cursor = list.next_cursor;
        match &page.cursor {
            Some(cursor) => assert!(["b", "d"].contains(&cursor.as_str()), "{cursor} is of another queue"),
            None => break,
        }
    }
    assert_eq!(seen, ["b", "d"]);
    assert_eq!(put(&mine, "a", "mine").await.expect_err("taken").status, 409);
    assert_eq!(put(&mine, "b", "theirs").await.expect_err("refused").status, 403);
}

#[tokio::test]
async fn a_list_of_queues_names_none_of_others() {
    let (counter, test) = fresh().await;
    counter.desk.queue_put(QueueName::new("mine"), QueueRequest::default()).await.expect("put");
    // Many more than a page has.
    let theirs = "INSERT INTO duetime.queue (name, policy) SELECT 'a' || n, '{}' FROM generate_series(1, 11000) AS n";
    sqlx::query(theirs).execute(&test.pool).await.expect("written");
    let list = mine(&counter).queue_list(&NamePage { limit: Some(1), cursor: None }).await.expect("a page");
    assert_eq!((list.queues[0].name.as_str(), list.next_cursor.as_deref()), ("mine", Some("mine")));
    let list = mine(&counter).queue_list(&NamePage { limit: Some(2), cursor: None }).await.expect("a page");
    assert_eq!((list.queues.len(), list.next_cursor), (1, None));
}

#[tokio::test]
async fn a_configured_token_is_changed_in_the_configuration_only() {
    let test = fixture::database().await;
    let (name, limits) = ("ops".to_owned(), Default::default());
    let ops = Token { name, role: Role::Operator, queues: Scope::ALL, limits, sha256: [7; 32] };
    let access = Access::new(&Auth { token: vec![ops], oidc: None });
    let counter = counter_of(vec![Arc::clone(&test.database)], PLAIN, Arc::new(access));
    for refused in [
        counter.desk.token_revoke("ops", "ops").await.expect_err("refused"),
        counter.desk.token_add(token("ops"), "ops").await.expect_err("refused"),
    ] {
        assert!(refused.status == 409 && refused.detail.contains("[[auth.token]]"), "{refused}");
    }
    let list = counter.desk.token_list(TokenPage::default()).await.expect("a list");
    assert_eq!(list.tokens[0].source, TokenSource::Configuration);
}
