//! The cluster, and many tasks at once.

use axum::http::{StatusCode, header};

use super::{between, browser};
use crate::{config::Role, desk::tests::request};

#[tokio::test]
async fn every_shard_is_on_the_map_and_those_with_nobody_are_told_of() {
    let browser = browser(&[], true).await;
    let page = browser.page("/console/cluster").await;
    let map = between(&page, "<ul class=\"shards\">", "</ul>").expect("a map");
    assert_eq!(map.matches("<li class=\"nobody\"").count(), map.matches("<li").count());
    let told = page.split_once("id=\"shards\"").expect("a table").1.matches("<tr data-row>").count();
    assert_eq!(told, map.matches("<li").count());
    assert!(page.contains("none is known") && page.contains("has not reached etcd"), "{page}");
    let all = browser.page("/console/cluster?shards=all").await;
    assert!(all.contains("href=\"/console/cluster\">Those only"), "{all}");
}

#[tokio::test]
async fn a_filter_leads_to_its_number_before_anything_is_done() {
    let browser = browser(&[], true).await;
    for queue in ["a", "a", "b"] {
        let json = format!(r#"{{"queue":"{queue}","delay_ms":100000}}"#);
        browser.counter.desk.submit(request(&json)).await.expect("accepted");
    }
    let page = browser.page("/console/bulk?queue=a&state=scheduled").await;
    let form = between(&page, "id=\"bulk\"", "</form>").expect("a form");
    let hidden = |name: &str| between(form, &format!("name=\"{name}\" value=\""), "\"").expect("a field");
    let fields =
        [("scope", hidden("scope")), ("queue", hidden("queue")), ("state", hidden("state")), ("action", "cancel")];
    let counted = browser.post("/console/tasks/bulk", &fields).await;
    assert_eq!(counted.status, StatusCode::OK);
    assert!(between(&counted.html, "id=\"count\"", "</p>").expect("a number").contains("<b>2</b>"), "{}", counted.html);
    let done = browser.post("/console/tasks/bulk", &[&fields[..], &[("confirmed", "yes")]].concat()).await;
    assert!(between(&done.html, "id=\"result\"", "</p>").expect("a result").contains("<b>2</b>"), "{}", done.html);
    let wrong = browser.get("/console/bulk?due_after=soon").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(!wrong.html.contains("id=\"bulk\""), "nothing is done by a filter that cannot be read");
}

#[tokio::test]
async fn tasks_are_taken_away_as_a_file() {
    let browser = browser(&[], true).await;
    for queue in ["a", "a", "b"] {
        let json = format!(r#"{{"queue":"{queue}","delay_ms":100000,"payload":{{"n":1}}}}"#);
        browser.counter.desk.submit(request(&json)).await.expect("accepted");
    }
    let page = browser.page("/console/bulk?queue=a").await;
    let link = between(&page, "<a class=\"button\" href=\"/console/export", "\"").expect("a link");
    let file = browser.get(&format!("/console/export{link}")).await;
    assert_eq!(file.status, StatusCode::OK);
    let disposition = file.headers[header::CONTENT_DISPOSITION].to_str().expect("text");
    assert!(disposition.starts_with("attachment"), "{disposition}");
    let lines: Vec<&str> = file.html.lines().collect();
    assert_eq!((lines.len(), lines[2]), (3, r#"{"exported":2}"#));
    assert_eq!(browser.get("/console/export?state=no").await.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn who_may_not_act_is_offered_no_action_and_hidden_payloads_are_not_taken_away() {
    let mut browser = browser(&Role::ALL, false).await;
    browser.sign_in("viewer").await;
    let page = browser.page("/console/bulk?queue=a").await;
    assert!(!page.contains("id=\"bulk\"") && !page.contains("id=\"export\""), "{page}");
    assert_eq!(browser.get("/console/export?queue=a").await.status, StatusCode::FORBIDDEN);
    let act = browser.post("/console/tasks/bulk", &[("action", "cancel"), ("scope", "all")]).await;
    assert_eq!(act.status, StatusCode::FORBIDDEN);
}
