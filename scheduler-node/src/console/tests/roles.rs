//! What roles without payload access see in the console, and what the audit notes of roles with it.

use std::time::Instant;

use axum::http::StatusCode;
use common::access::{Caller, Scope};
use sha2::{Digest, Sha256};

use super::{super::ROUTES, Browser, browser};
use crate::{
    access::{Token, TokenBook},
    config::Role,
    desk::tests::request,
};

/// A mark in every piece of data.
const MARK: &str = "SECRET-7";

/// Creates a live task and a dead one in `a`, and a schedule; returns the ids of the tasks.
async fn fill(browser: &Browser) -> Vec<String> {
    let json = r#"{"queue":"a","delay_ms":1000000,"payload":{"x":"SECRET-7"},"headers":{"h":"SECRET-7"}}"#;
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(browser.counter.desk.submit(request(json)).await.expect("accepted").id);
    }
    let history = r#"[{"attempt":1,"reason":"rejected","error":"SECRET-7"}]"#;
    sqlx::query("UPDATE duetime.task SET attempt = 1, history = $1::jsonb")
        .bind(history)
        .execute(&browser.test.pool)
        .await
        .expect("written");
    sqlx::query(
        "WITH gone AS (DELETE FROM duetime.task WHERE id = $1 RETURNING *)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, headers, attempt, history,
                                      finished_at, result, status_msg, drop_on)
         SELECT id, shard, queue, 'dead', wake_at, due_at, payload, content_type, headers, 1, history, now(), '\"SECRET-7\"',
                'SECRET-7', (now() AT TIME ZONE 'UTC')::date + 14
           FROM gone",
    )
    .bind(ids[1].uuid())
    .execute(&browser.test.pool)
    .await
    .expect("written");
    let schedule = r#"{"queue":"a","every_ms":3600000,"payload":{"x":"SECRET-7"},"headers":{"h":"SECRET-7"}}"#;
    let schedule = common::wire::ScheduleRequest::parse(schedule).expect("a schedule");
    browser.counter.desk.schedule_put(common::ids::ScheduleName::new("nightly"), schedule).await.expect("set");
    ids.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn an_observer_finds_the_data_of_tasks_on_no_page_and_a_viewer_does() {
    let mut browser = browser(&Role::ALL, true).await;
    let ids = fill(&browser).await;
    let paths: Vec<String> = ROUTES
        .iter()
        .filter(|route| route.method == "GET" && !route.path.contains("/assets/"))
        .flat_map(|route| ids.iter().map(move |id| route.path.replace("{id}", id)))
        .map(|path| path.replace("{queue}", "a").replace("{name}", "nightly"))
        .chain(["/console/tasks?state=dead".to_owned(), "/console/bulk?state=dead".to_owned()])
        .collect();
    browser.sign_in("observer").await;
    for path in &paths {
        let answer = browser.get(path).await;
        assert!(!answer.status.is_server_error(), "{path}: {}", answer.html);
        assert!(!answer.html.contains(MARK), "{path}: {}", answer.html);
    }
    assert_eq!(browser.get("/console/export").await.status, StatusCode::FORBIDDEN);
    assert_eq!(browser.get("/console/tasks?error=SECRET").await.status, StatusCode::FORBIDDEN);
    let dead = browser.page("/console/dead").await;
    assert!(dead.contains("not shown to your role") && !dead.contains("error="), "{dead}");
    assert!(browser.page(&format!("/console/tasks/{}", ids[0])).await.contains("your role shows no payloads"));
    browser.sign_in("viewer").await;
    for path in [
        format!("/console/tasks/{}", ids[0]),
        format!("/console/tasks/{}", ids[1]),
        "/console/tasks?state=dead".to_owned(),
        "/console/dead".to_owned(),
        "/console/schedules/nightly".to_owned(),
        "/console/export".to_owned(),
    ] {
        assert!(browser.page(&path).await.contains(MARK), "{path}");
    }
}

#[tokio::test]
async fn pages_with_payloads_and_exports_are_noted() {
    let mut browser = browser(&Role::ALL, true).await;
    let ids = fill(&browser).await;
    let task = format!("/console/tasks/{}", ids[0]);
    for role in ["observer", "viewer"] {
        browser.sign_in(role).await;
        for path in [task.as_str(), "/console/tasks", "/console/schedules/nightly", "/console/export?queue=a"] {
            browser.get(path).await;
        }
    }
    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        noted.push((note.event.caller.to_string(), note.event.action.text(), note.event.target, note.event.status));
    }
    let of = |role: &str, action: &str| -> Vec<(&str, u16)> {
        let mine =
            noted.iter().filter(|(name, noted_action, ..)| name == &format!("the {role}") && *noted_action == action);
        mine.map(|(_, _, target, status)| (target.as_str(), *status)).collect()
    };
    assert_eq!(of("viewer", "task.read"), [(ids[0].as_str(), 200)], "{noted:?}");
    assert_eq!(of("viewer", "schedule.read"), [("nightly", 200)], "{noted:?}");
    assert_eq!(of("viewer", "task.export"), [("queue=a", 200)], "{noted:?}");
    assert_eq!(of("observer", "task.export"), [("queue=a", 403)], "{noted:?}");
    assert!(of("observer", "task.read").is_empty() && of("observer", "schedule.read").is_empty(), "{noted:?}");
}

#[tokio::test]
async fn neither_a_guess_nor_a_narrow_role_opens_the_console_and_both_are_noted() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.post_bare("/console/sign-in", &[("token", "a guess")], "same-origin").await;
    let note = browser.counter.notes.try_recv().expect("noted");
    assert_eq!((&*note.event.caller, note.event.action.text(), note.event.status), ("anonymous", "refused", 401));
    for role in [Role::Metrics, Role::Submitter, Role::Reporter] {
        let answer = browser.post_bare("/console/sign-in", &[("token", role.text())], "same-origin").await;
        assert_eq!((answer.status, answer.set_cookie), (StatusCode::FORBIDDEN, None), "{role}");
        assert!(answer.html.contains("observer, viewer, producer or operator"), "{role}: {}", answer.html);
        let note = browser.counter.notes.try_recv().expect("noted");
        assert_eq!((note.event.action.text(), note.event.status), ("console.sign_in", 403), "{role}");
        assert!(browser.counter.notes.try_recv().is_err(), "{role}: once");
    }
}

/// Signs in a producer of these queues, and forgets the notes so far.
async fn sign_in_ann(browser: &mut Browser, queues: &[&str]) {
    let queues = Scope::of(Some(queues.iter().map(ToString::to_string).collect())).expect("a scope");
    let ann = Caller { id: Some(7), name: "ann".into(), role: Role::Producer, queues, limits: Default::default() };
    let token = Token::new(ann, Sha256::digest("hers").into(), Instant::now(), None);
    browser.access.put_in_force(TokenBook { revision: 1, tokens: vec![token] });
    browser.sign_in("hers").await;
    while browser.counter.notes.try_recv().is_ok() {}
}

#[tokio::test]
async fn a_person_of_one_queue_is_led_to_its_tasks_and_one_of_several_chooses() {
    let mut browser = browser(&Role::ALL, true).await;
    for queue in ["mine", "theirs", "shop.a"] {
        let json = format!(r#"{{"queue":"{queue}","key":"k","delay_ms":1000000}}"#);
        browser.counter.desk.submit(request(&json)).await.expect("accepted");
    }
    sign_in_ann(&mut browser, &["mine"]).await;
    let found = browser.get("/console/find?q=k").await.location.expect("a list");
    for path in ["/console/tasks", "/console/tasks?state=scheduled", found.as_str()] {
        let page = browser.page(path).await;
        assert_eq!(page.matches("<tr data-row>").count(), 1, "{path}: {page}");
        assert!(page.contains("Queue: mine"), "{path}: {page}");
    }
    assert!(browser.page("/console/bulk").await.contains("name=\"queue\" value=\"mine\""));
    assert!(!browser.page("/console").await.contains("role=\"alert\""));
    assert!(browser.counter.notes.try_recv().is_err(), "nothing was refused");

    sign_in_ann(&mut browser, &["mine", "shop.*"]).await;
    let found = browser.get("/console/find?q=k").await.location.expect("a list");
    for path in ["/console/tasks", "/console/bulk", found.as_str()] {
        let page = browser.page(path).await;
        assert!(page.contains("Choose one of your queues in the filter: mine, shop.*."), "{path}: {page}");
        assert!(!page.contains("<tr data-row>") && !page.contains("value=\"cancel\""), "{path}: {page}");
        assert!(page.contains("<option value=\"mine\">") && page.contains("list=\"queues\""), "{path}: {page}");
        assert!(page.contains("<option value=\"shop.a\">") && !page.contains("theirs"), "{path}: {page}");
    }
    let chosen = browser.page("/console/tasks?key=k&queue=shop.a").await;
    assert_eq!(chosen.matches("<tr data-row>").count(), 1, "{chosen}");
    assert!(!browser.page("/console").await.contains("role=\"alert\""));
    assert!(browser.counter.notes.try_recv().is_err(), "nothing was refused");
}

#[tokio::test]
async fn what_is_refused_to_a_person_is_noted_once_and_under_their_name() {
    let mut browser = browser(&Role::ALL, true).await;
    sign_in_ann(&mut browser, &["mine"]).await;
    let theirs = [("action", "cancel"), ("scope", "all"), ("queue", "theirs"), ("confirmed", "yes")];
    for answer in [
        browser.get("/console/audit").await,
        browser.post("/console/tokens", &[("action", "revoke"), ("name", "x")]).await,
        browser.post_bare("/console/theme", &[("form_token", "guessed")], "same-origin").await,
        browser.post_bare("/console/theme", &[], "cross-site").await,
        browser.get("/console/export?queue=theirs").await,
        browser.post("/console/tasks/bulk", &theirs).await,
    ] {
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.html);
    }
    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        assert_eq!((&*note.event.caller, note.event.caller_id, note.event.status), ("ann", Some(7), 403));
        noted.push((note.event.action.text(), note.event.target));
    }
    let noted: Vec<_> = noted.iter().map(|(action, target)| (*action, target.as_str())).collect();
    let expected = [
        ("refused", "GET /console/audit"),
        ("refused", "POST /console/tokens"),
        ("refused", "POST /console/theme"),
        ("refused", "POST /console/theme"),
        ("task.export", "queue=theirs"),
        ("task.bulk", "tasks"),
    ];
    assert_eq!(noted, expected);
}
