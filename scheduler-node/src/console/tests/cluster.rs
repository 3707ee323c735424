//! The cluster page, and actions on many tasks.

use axum::http::{StatusCode, header};

use super::{between, browser, browser_at};
use crate::{
    config::Role,
    desk::tests::{drain::among, request},
};

#[tokio::test]
async fn every_shard_is_on_the_map_and_those_with_nobody_are_told_of() {
    let browser = browser(&[], true).await;
    let page = browser.page("/console/cluster").await;
    let map = between(&page, "<ul class=\"shards\">", "</ul>").expect("a map");
    assert_eq!(map.matches("<li class=\"nobody\"").count(), map.matches("<li").count());
    let rows = page.split_once("id=\"shards\"").expect("a table").1.matches("<tr data-row>").count();
    assert_eq!(rows, map.matches("<li").count());
    assert!(page.contains("none is known") && page.contains("has not reached etcd"), "{page}");
    let all = browser.page("/console/cluster?shards=all").await;
    assert!(all.contains("href=\"/console/cluster\">Only those"), "{all}");
}

#[tokio::test]
async fn a_node_is_drained_and_undrained_by_a_form_for_operators_and_noted() {
    let (counter, .., test) = among(&["node-1", "node-2"]).await;
    let mut browser = browser_at(counter, test, &Role::ALL, true, None);
    browser.sign_in("producer").await;
    let offered = "action=\"/console/cluster\"";
    assert!(!browser.page("/console/cluster").await.contains(offered));
    let fields = |action| [("action", action), ("node", "node-2")];
    assert_eq!(browser.post("/console/cluster", &fields("drain")).await.status, StatusCode::FORBIDDEN);
    browser.sign_in("operator").await;
    assert_eq!(browser.page("/console/cluster").await.matches(offered).count(), 2);
    let bare = browser.post_bare("/console/cluster", &fields("drain"), "same-origin").await;
    assert_eq!(bare.status, StatusCode::FORBIDDEN, "a form without its token");
    let done = browser.post("/console/cluster", &fields("drain")).await;
    assert_eq!(done.location.as_deref(), Some("/console/cluster"), "{}", done.html);
    let page = browser.page("/console/cluster").await;
    assert!(
        page.contains("drained</span>") && page.contains("Undrain node-2") && page.contains("Drain node-1"),
        "{page}"
    );
    let last = browser.post("/console/cluster", &[("action", "drain"), ("node", "node-1")]).await;
    assert!(last.status == StatusCode::CONFLICT && last.html.contains("is the last one"), "{}", last.html);
    browser.post("/console/cluster", &fields("undrain")).await;
    assert!(!browser.page("/console/cluster").await.contains("Undrain"));
    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        noted.push((note.event.action.text(), note.event.target, note.event.status));
    }
    let noted: Vec<_> = noted.iter().map(|(action, target, status)| (*action, target.as_str(), *status)).collect();
    let expected = [("node.drain", "node-2", 200), ("node.drain", "node-1", 409), ("node.undrain", "node-2", 200)];
    assert!(noted.ends_with(&expected), "{noted:?}");
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
    assert!(!wrong.html.contains("id=\"bulk\""), "a filter that cannot be read changes nothing");
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

/// A step has 500 tasks. The disk is full for the last of 501, so an action goes on from there.
#[tokio::test]
async fn only_a_shift_that_was_ended_early_warns_that_to_continue_may_shift_tasks_twice() {
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), g % 128, 'a', 'scheduled', due, due, '', 'text/plain'
                  FROM generate_series(1, 501) AS g, LATERAL (SELECT now() + interval '1 day' + g * interval '1 s' AS due) AS moment";
    for (action, more, warns) in [
        ("move", ("by_min", "-30"), true),
        ("move", ("to", "2099-01-02 03:04"), false),
        ("cancel", ("error", ""), false),
    ] {
        let browser = browser(&[], true).await;
        sqlx::raw_sql(fill).execute(&browser.test.pool).await.expect("written");
        let last: uuid::Uuid = sqlx::query_scalar("SELECT id FROM duetime.task ORDER BY due_at DESC LIMIT 1")
            .fetch_one(&browser.test.pool)
            .await
            .expect("there are 501");
        browser.test.fail_with("53100", "UPDATE OR DELETE", "task", "id", &last.to_string()).await;
        let fields = [("action", action), ("scope", "all"), ("queue", "a"), more, ("confirmed", "yes")];
        let page = browser.post("/console/tasks/bulk", &fields).await.html;
        assert!(page.contains("Applied to <b>500</b>") && page.contains("ended early"), "{page}");
        assert!(page.contains("Continue"), "{page}");
        assert_eq!(page.contains("shift up to 500 tasks a second time"), warns, "{action} {more:?}: {page}");
    }
}
