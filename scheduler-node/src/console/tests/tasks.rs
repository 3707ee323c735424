//! Pages of tasks: list, show, and their actions.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use common::{ids::TaskId, task::TaskState};
use futures::{future::join_all, poll};

use super::{Browser, between, browser};
use crate::{
    audit::AuditAction,
    config::Role,
    desk::tests::request,
    internal::{self, Origin},
    store::{PoolKind, tests::outlook::finished},
};

async fn submit(browser: &Browser, json: &str) -> TaskId {
    browser.counter.desk.submit(request(json)).await.expect("accepted").id
}

async fn state(browser: &Browser, id: TaskId) -> TaskState {
    browser.counter.desk.get(id).await.expect("it is there").state
}

/// Makes a task that failed for good, as it would look after days.
async fn dead(browser: &Browser, queue: &str, error: &str) -> TaskId {
    let id = submit(browser, &format!(r#"{{"queue":"{queue}"}}"#)).await;
    sqlx::query(
        "WITH gone AS (DELETE FROM duetime.task WHERE id = $1 RETURNING *)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, attempt, finished_at, status_msg, drop_on)
         SELECT id, shard, queue, 'dead', wake_at, due_at, payload, content_type, 3, now(), $2, (now() AT TIME ZONE 'UTC')::date + 14 FROM gone",
    )
    .bind(id.uuid())
    .bind(error)
    .execute(&browser.test.pool)
    .await
    .expect("written");
    id
}

#[tokio::test]
async fn every_part_of_the_filter_counts_and_pages_lead_on() {
    let browser = browser(&[], true).await;
    for n in 0..60 {
        submit(&browser, &format!(r#"{{"queue":"a","key":"k{n}","delay_ms":{}}}"#, 1_000_000 + n)).await;
    }
    submit(&browser, r#"{"queue":"b","delay_ms":1000000}"#).await;
    let page = browser.page("/console/tasks?queue=a&state=scheduled").await;
    assert_eq!(page.matches("<tr data-row>").count(), 50);
    assert!(page.contains("scheduled <small>60</small>"), "{page}");
    let next = between(&page, "rel=\"next\" href=\"", "\"").expect("a next page").replace("&#38;", "&");
    let page = browser.page(&next).await;
    assert_eq!(page.matches("<tr data-row>").count(), 10);
    assert!(page.contains("rel=\"prev\""));
    let one = browser.page("/console/tasks?key=k7").await;
    assert_eq!(one.matches("<tr data-row>").count(), 1);
    assert!(one.contains("Key: k7"));
    assert_eq!(browser.page("/console/tasks?state=dead").await.matches("<tr data-row>").count(), 0);
    let wrong = browser.get("/console/tasks?due_after=soon").await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(wrong.html.contains("soon"));
}

#[tokio::test]
async fn the_search_box_finds_an_id_or_a_key() {
    let browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    assert_eq!(browser.get(&format!("/console/find?q=+{id}")).await.location, Some(format!("/console/tasks/{id}")));
    assert_eq!(browser.get("/console/find?q=a%26b").await.location.as_deref(), Some("/console/tasks?key=a%26b"));
}

#[tokio::test]
async fn hostile_text_is_shown_as_text() {
    let browser = browser(&[], true).await;
    let evil = "<script>alert(1)</script>\\\"'><img src=x onerror=alert(2)>";
    let json = format!(
        r#"{{"queue":"a","key":"{evil}","partition_key":"{evil}","headers":{{"h":"{evil}"}},"payload":["{evil}"],"delay_ms":1000000}}"#
    );
    let id = submit(&browser, &json).await;
    dead(&browser, "a", evil).await;
    for path in [
        format!("/console/tasks/{id}"),
        "/console/tasks".to_owned(),
        "/console/dead".to_owned(),
        "/console/tasks?state=dead&error=%3Cscript%3E".to_owned(),
        "/console/tasks?key=%3Cscript%3Ealert(1)".to_owned(),
        format!("/console/tasks/{id}/cancel"),
        format!("/console/tasks/{id}?said=%3Cscript%3E"),
    ] {
        let page = browser.page(&path).await;
        assert!(!page.contains("<script>") && !page.contains("<img"), "{path}: {page}");
    }
    assert!(browser.page(&format!("/console/tasks/{id}")).await.contains("script&#62;alert(1)"));
    let trouble = browser.get("/console/%3Cscript%3E?%3Cscript%3E=1").await;
    assert!(!trouble.html.contains("<script>"), "{}", trouble.html);
}

#[tokio::test]
async fn payloads_are_shown_to_the_last_digit_or_not_at_all() {
    for show in [true, false] {
        let browser = browser(&[], show).await;
        let json = r#"{"queue":"a","delay_ms":1000000,"payload":{"order":12345678901234567890123,"price":1.10}}"#;
        let id = submit(&browser, json).await;
        let page = browser.page(&format!("/console/tasks/{id}")).await;
        assert_eq!(page.contains("12345678901234567890123"), show);
        assert_eq!(page.contains("1.10"), show);
        assert_eq!(page.contains("console.show_payloads"), !show);
    }
}

#[tokio::test]
async fn a_form_whose_sender_hangs_up_takes_effect_and_is_noted() {
    let mut browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    let help = browser.page("/console/help").await;
    let token = between(&help, "name=\"form_token\" value=\"", "\"").expect("every page carries it");
    // Whatever the spelling of the id in the path.
    let path = format!("/console/tasks/{}", id.to_string().to_uppercase());
    let fields = [("action", "cancel"), ("form_token", token)];
    let mut sent = Box::pin(browser.post_bare(&path, &fields, "same-origin"));
    assert!(poll!(&mut sent).is_pending());
    drop(sent);
    let noted = tokio::time::timeout(Duration::from_secs(30), browser.counter.notes.recv()).await;
    let noted = noted.expect("in time").expect("noted").event;
    assert_eq!((noted.action, noted.target, noted.status), (AuditAction::TaskCancel, id.to_string(), 200));
    assert_eq!(state(&browser, id).await, TaskState::Cancelled);
}

#[tokio::test]
async fn a_page_is_noted_with_the_id_that_its_request_was_given() {
    let mut browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    let request = Request::get(format!("/console/tasks/{id}")).header("x-request-id", "r-7");
    browser.send(request.body(Body::empty()).expect("a request")).await;
    let noted = browser.counter.notes.try_recv().expect("noted").event;
    assert_eq!((noted.action, noted.request_id.as_deref()), (AuditAction::TaskRead, Some("r-7")));
}

#[tokio::test]
async fn one_task_is_moved_run_and_cancelled() {
    let browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    let path = format!("/console/tasks/{id}");
    let moved = browser.post(&path, &[("action", "move"), ("to", "2099-01-02 03:04")]).await;
    assert_eq!(moved.location, Some(format!("{path}?said=move")), "{}", moved.html);
    assert!(browser.page(&path).await.contains("2099-01-02 03:04:00"));
    assert!(browser.page(&format!("{path}/cancel")).await.contains("This cannot be undone"));
    let cancelled = browser.post(&path, &[("action", "cancel")]).await;
    assert_eq!(cancelled.location, Some(format!("{path}?said=cancelled")));
    assert_eq!(state(&browser, id).await, TaskState::Cancelled);
    assert!(browser.page(&format!("{path}?said=cancelled")).await.contains("nothing is delivered from here on"));
    let late = browser.post(&path, &[("action", "run")]).await;
    assert_eq!(late.status, StatusCode::CONFLICT);
    for fields in [vec![("action", "explode")], vec![("action", "move")], vec![("action", "move"), ("to", "soon")]] {
        assert_eq!(browser.post(&path, &fields).await.status, StatusCode::UNPROCESSABLE_ENTITY, "{fields:?}");
    }
}

#[tokio::test]
async fn a_viewer_is_offered_nothing_and_refused_everything() {
    let mut browser = browser(&Role::ALL, true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    browser.sign_in("viewer").await;
    let path = format!("/console/tasks/{id}");
    let (list, task) = (browser.page("/console/tasks").await, browser.page(&path).await);
    assert!(!list.contains("name=\"action\"") && !task.contains("name=\"action\""));
    let bulk = [("action", "cancel"), ("scope", "all"), ("confirmed", "yes")];
    for (path, fields) in [(path.as_str(), &bulk[..1]), ("/console/tasks/bulk", &bulk[..])] {
        assert_eq!(browser.post(path, fields).await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert_eq!(state(&browser, id).await, TaskState::Scheduled);
    browser.sign_in("producer").await;
    assert!(browser.page("/console/tasks").await.contains("name=\"action\""));
    assert_eq!(browser.post(&path, &[("action", "cancel")]).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn many_are_counted_before_anything_is_done_to_them() {
    let browser = browser(&[], true).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(submit(&browser, &format!(r#"{{"queue":"a","key":"k{n}","delay_ms":1000000}}"#)).await);
    }
    let other = submit(&browser, r#"{"queue":"b","delay_ms":1000000}"#).await;
    let fields = [("action", "cancel"), ("scope", "all"), ("queue", "a")];
    let dry = browser.post("/console/tasks/bulk", &fields).await;
    assert_eq!(dry.status, StatusCode::OK);
    assert!(
        dry.html.contains("Found <b>5</b> tasks; the action would apply to <b>5</b>. Nothing has changed yet."),
        "{}",
        dry.html
    );
    assert_eq!(state(&browser, ids[0]).await, TaskState::Scheduled);
    let chosen: Vec<String> = ids[..2].iter().map(TaskId::to_string).collect();
    let selected =
        [("action", "cancel"), ("scope", "selected"), ("id", &chosen[0]), ("id", &chosen[1]), ("confirmed", "yes")];
    let done = browser.post("/console/tasks/bulk", &selected).await;
    assert!(done.html.contains("Applied to <b>2</b> of <b>2</b>"), "{}", done.html);
    let confirmed: Vec<_> = fields.into_iter().chain([("confirmed", "yes")]).collect();
    let done = browser.post("/console/tasks/bulk", &confirmed).await;
    assert!(done.html.contains("Applied to <b>3</b> of <b>3</b>"), "{}", done.html);
    for id in ids {
        assert_eq!(state(&browser, id).await, TaskState::Cancelled);
    }
    assert_eq!(state(&browser, other).await, TaskState::Scheduled);
    let nothing = browser.post("/console/tasks/bulk", &[("action", "run"), ("scope", "selected")]).await;
    assert_eq!(nothing.status, StatusCode::UNPROCESSABLE_ENTITY);
}

async fn submit_many<const N: usize>(browser: &Browser) -> [TaskId; N] {
    let task = r#"{"queue":"a","delay_ms":1000000}"#;
    join_all([task; N].map(|task| submit(browser, task))).await.try_into().expect("one id a task")
}

/// Shifts chosen tasks by an hour. Returns whether each has its new due time, and the page.
async fn shift<const N: usize>(browser: &Browser, ids: [TaskId; N]) -> ([bool; N], String) {
    let due = async || join_all(ids.map(async |id| browser.counter.desk.get(id).await.expect("there").due_at)).await;
    let before = due().await;
    let chosen = ids.map(|id| id.to_string());
    let rest = [("action", "move"), ("scope", "selected"), ("by_min", "60"), ("confirmed", "yes")];
    let fields: Vec<_> = chosen.iter().map(|id| ("id", id.as_str())).chain(rest).collect();
    let page = browser.post("/console/tasks/bulk", &fields).await.html;
    let after = due().await;
    (std::array::from_fn(|nth| after[nth] == before[nth].plus(Duration::from_secs(3_600))), page)
}

#[tokio::test]
async fn a_shift_of_chosen_tasks_leaves_out_the_one_that_another_transaction_locks() {
    let browser = browser(&[], true).await;
    let ids = submit_many::<3>(&browser).await;
    let _lock = browser.test.lock_row(ids[1]).await;
    let (shifted, page) = shift(&browser, ids).await;
    assert!(page.contains("Applied to <b>2</b> of <b>3</b>") && page.contains("1 are locked"), "{page}");
    assert!(page.contains("Do not reload this page"), "{page}");
    assert_eq!(shifted, [true, false, true]);
}

#[tokio::test]
async fn a_shift_of_chosen_tasks_that_an_outage_ends_says_what_it_has_done() {
    let browser = browser(&[], true).await;
    let ids = submit_many::<3>(&browser).await;
    browser.test.fail_with("53100", "UPDATE", "task", "id", &ids[1].to_string()).await;
    let (shifted, page) = shift(&browser, ids).await;
    assert!(page.contains("Applied to <b>1</b> of <b>3</b>"), "{page}");
    assert!(page.contains("2 were not tried") && page.contains("ended early"), "{page}");
    assert_eq!(shifted, [true, false, false]);
}

#[tokio::test]
async fn a_shift_of_chosen_tasks_that_takes_long_asks_before_it_goes_on_with_the_rest() {
    let browser = browser(&[], true).await;
    let ids = submit_many::<12>(&browser).await;
    // A task that sleeps while the machine stands still does not run out of time.
    browser.test.be_patient(PoolKind::Write).await;
    // The five seconds of a request are over before all have slept, after fewer tasks on a busy machine.
    let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
        CREATE TRIGGER slow BEFORE UPDATE ON duetime.task FOR EACH STATEMENT EXECUTE FUNCTION public.slow()";
    sqlx::raw_sql(slow).execute(&browser.test.pool).await.expect("created");
    let (shifted, page) = shift(&browser, ids).await;
    let done = shifted.iter().filter(|shifted| **shifted).count();
    assert!((1..ids.len()).contains(&done), "{done}: {page}");
    assert!(page.contains(&format!("Applied to <b>{done}</b> of <b>{done}</b>")), "{page}");
    assert!(page.contains("Do not reload this page") && page.contains("Continue"), "{page}");
    assert!(shifted[..done].iter().all(|shifted| *shifted), "the first ones: {shifted:?}");
    let is_hidden = ids.map(|id| page.contains(&format!("name=\"id\" value=\"{id}\"")));
    assert_eq!(is_hidden, shifted.map(|shifted| !shifted), "the form goes on with the others");
}

#[tokio::test]
async fn a_chosen_task_that_is_not_there_is_not_told_to_be_in_flight() {
    let browser = browser(&[], true).await;
    let here = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await.to_string();
    let gone = TaskId::from_uuid(uuid::Uuid::nil()).to_string();
    let chosen = [("id", here.as_str()), ("id", gone.as_str())];
    let fields = [("action", "run"), ("scope", "selected"), chosen[0], chosen[1], ("confirmed", "yes")];
    let page = browser.post("/console/tasks/bulk", &fields).await.html;
    assert!(page.contains("Applied to <b>1</b> of <b>2</b>") && page.contains("1 are not there"), "{page}");
    assert!(!page.contains("in flight") && !page.contains("Do not reload"), "{page}");
}

#[tokio::test]
async fn a_task_is_not_locked_by_others_when_its_change_fails_for_another_reason() {
    let browser = browser(&[], true).await;
    let ids = submit_many::<3>(&browser).await;
    // As a write that has failed holds its row until it is rolled back.
    let _lock = browser.test.lock_row(ids[1]).await;
    let full_from_the_second_on = "CREATE SEQUENCE public.changes;
        CREATE FUNCTION public.fill_disk() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN
            IF nextval('public.changes') > 1 THEN RAISE EXCEPTION 'the disk is full' USING ERRCODE = '53100'; END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER fill_disk BEFORE UPDATE ON duetime.task FOR EACH STATEMENT EXECUTE FUNCTION public.fill_disk()";
    sqlx::raw_sql(full_from_the_second_on).execute(&browser.test.pool).await.expect("created");
    let (shifted, page) = shift(&browser, ids).await;
    assert!(page.contains("2 were not tried") && page.contains("ended early"), "{page}");
    assert_eq!(shifted, [true, false, false]);
}

#[tokio::test]
async fn many_are_moved_once_it_was_said_where_to() {
    let browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    let moved = browser.post("/console/tasks/bulk", &[("action", "move"), ("scope", "all"), ("queue", "a")]).await;
    assert!(moved.html.contains("name=\"by_min\""), "{}", moved.html);
    let fields =
        [("action", "move"), ("scope", "all"), ("queue", "a"), ("to", "2099-01-02 03:04"), ("confirmed", "yes")];
    let done = browser.post("/console/tasks/bulk", &fields).await;
    assert!(done.html.contains("Applied to <b>1</b> of <b>1</b>"), "{}", done.html);
    let task = browser.counter.desk.get(id).await.expect("it is there");
    assert_eq!(task.due_at.to_string(), "2099-01-02T03:04:00.000000Z");
}

#[tokio::test]
async fn what_a_form_did_to_many_tasks_is_noted_with_the_counts_and_the_request() {
    let mut browser = browser(&[], true).await;
    let id = submit(&browser, r#"{"queue":"a","delay_ms":1000000}"#).await;
    submit(&browser, r#"{"queue":"b","delay_ms":1000000}"#).await;
    let (id, path) = (id.to_string(), "/console/tasks/bulk");
    for (fields, expected) in [
        (
            [("action", "move"), ("scope", "all"), ("queue", "a"), ("to", "2099-01-02 03:04")],
            r#"1, done 1: {"action":"move","due_at":"2099-01-02T03:04:00.000000Z","filter":{"queue":"a"}}"#.to_owned(),
        ),
        (
            [("action", "move"), ("scope", "selected"), ("id", id.as_str()), ("by_min", "60")],
            format!(r#"1, done 1: {{"action":"move","ids":"{id}","shift_ms":3600000}}"#),
        ),
        (
            [("action", "cancel"), ("scope", "all"), ("queue", ""), ("error", "")],
            r#"2, done 2: {"action":"cancel","all":true}"#.to_owned(),
        ),
    ] {
        let fields: Vec<_> = fields.into_iter().chain([("confirmed", "yes")]).collect();
        browser.post(path, &fields).await;
        let noted = browser.counter.notes.try_recv().expect("noted").event;
        assert_eq!((noted.action, noted.target.as_str(), noted.status), (AuditAction::TaskBulk, "tasks", 200));
        assert_eq!(noted.detail, Some(format!("console: matched {expected}")));
    }
}

#[tokio::test]
async fn dead_tasks_are_grouped_and_a_group_is_retried() {
    let browser = browser(&[], true).await;
    let mut timed_out = Vec::new();
    for _ in 0..3 {
        timed_out.push(dead(&browser, "a", "timed out & gone").await);
    }
    let other = dead(&browser, "a", "no such user").await;
    dead(&browser, "b", "").await;
    let page = browser.page("/console/dead").await;
    assert_eq!(page.matches("<tr data-row>").count(), 3, "{page}");
    assert!(page.find("timed out &#38; gone").expect("grouped") < page.find("no such user").expect("grouped"));
    assert!(page.contains("no error text"));
    let link = between(&page, "<td><a href=\"", "\"").expect("a link").replace("&#38;", "&");
    assert_eq!(browser.page(&link).await.matches("<tr data-row>").count(), 3, "{link}");
    let fields = [
        ("action", "retry"),
        ("scope", "all"),
        ("state", "dead"),
        ("queue", "a"),
        ("error", "timed out & gone"),
        ("confirmed", "yes"),
    ];
    let done = browser.post("/console/tasks/bulk", &fields).await;
    assert!(done.html.contains("Applied to <b>3</b> of <b>3</b>"), "{}", done.html);
    assert_eq!(state(&browser, timed_out[0]).await, TaskState::Scheduled);
    assert_eq!(state(&browser, other).await, TaskState::Dead);
}

/// The fields of the form for the queue's only group of dead tasks, as a browser sends them.
fn sent_by_a_browser(page: &str, queue: &str) -> Vec<(String, String)> {
    let queue = format!("name=\"queue\" value=\"{queue}\"");
    let form = page.split("<form ").find(|form| form.contains(&queue)).expect("a form");
    let hidden = |name: &str| {
        let value = between(form, &format!("name=\"{name}\" value=\""), "\"").expect("a field");
        // The page's own line breaks become LF when it is read, and CR LF when the form is sent.
        value.replace("&#38;", "&").replace("\r\n", "\n").replace('\n', "\r\n")
    };
    let fields = ["scope", "state", "queue", "error", "filter"].map(|name| (name.to_owned(), hidden(name)));
    fields.into_iter().chain([("action".to_owned(), "retry".to_owned())]).collect()
}

async fn post_confirmed(browser: &Browser, fields: &[(String, String)]) -> String {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let fields: Vec<_> = fields.chain([("confirmed", "yes")]).collect();
    browser.post("/console/tasks/bulk", &fields).await.html
}

#[tokio::test]
async fn a_group_is_retried_whatever_line_breaks_its_error_has() {
    let browser = browser(&[], true).await;
    for (queue, error) in [("lf", "a\nb"), ("crlf", "a\r\nb"), ("old", "a\nb")] {
        let id = dead(&browser, queue, error).await;
        let mut fields = sent_by_a_browser(&browser.page("/console/dead").await, queue);
        // A page of an older version has no such field.
        fields.retain(|(name, _)| queue != "old" || name != "filter");
        let done = post_confirmed(&browser, &fields).await;
        assert!(done.contains("Applied to <b>1</b> of <b>1</b>"), "{queue}: {done}");
        assert_eq!(state(&browser, id).await, TaskState::Scheduled, "{queue}");
    }
}

#[tokio::test]
async fn a_group_whose_error_is_blank_is_no_whole_queue() {
    let browser = browser(&[], true).await;
    let blank = dead(&browser, "a", " ").await;
    let link =
        between(&browser.page("/console/dead").await, "<td><a href=\"", "\"").expect("a link").replace("&#38;", "&");
    let fields = sent_by_a_browser(&browser.page("/console/dead").await, "a");
    let other = dead(&browser, "a", "other").await;
    assert_eq!(browser.page(&link).await.matches("<tr data-row>").count(), 1, "{link}");
    let done = post_confirmed(&browser, &fields).await;
    assert!(done.contains("Applied to <b>1</b> of <b>1</b>"), "{done}");
    assert_eq!(state(&browser, blank).await, TaskState::Scheduled);
    assert_eq!(state(&browser, other).await, TaskState::Dead);
}

#[tokio::test]
async fn a_filter_with_line_breaks_stays_when_another_is_applied() {
    let browser = browser(&[], true).await;
    dead(&browser, "a", "x\ny").await;
    dead(&browser, "a", "xy").await;
    for path in ["/console/tasks", "/console/bulk"] {
        let page = browser.page(&format!("{path}?error=x%0Ay")).await;
        let kept = between(&page, "type=\"checkbox\" name=\"filter\" value=\"", "\"").expect("a box");
        assert_eq!(kept, "error=x%0Ay", "{path}");
        assert!(!page.contains("<input name=\"error\""), "{path}: {page}");
    }
    let page = browser.page("/console/tasks?filter=error%3Dx%250Ay&queue=a&state=").await;
    assert_eq!(page.matches("<tr data-row>").count(), 1, "{page}");
}

#[tokio::test]
async fn the_page_of_the_dead_says_how_far_it_looked() {
    let browser = browser(&[], true).await;
    assert!(browser.page("/console/dead").await.contains("No tasks are dead."));
    finished(&browser.test, "a", "dead", "-1 h", 402, 201).await;
    let page = browser.page("/console/dead").await;
    assert!(page.contains("only the 200 largest groups") && !page.contains("examine"), "{page}");
    finished(&browser.test, "a", "cancelled", "1 h", 10_001, 1).await;
    let page = browser.page("/console/dead").await;
    assert!(
        page.contains("at most some 10,000 tasks") && page.contains("None of the examined tasks is dead."),
        "{page}"
    );
    assert!(browser.page("/console").await.contains("Dead<b>0+</b>"));
}

#[tokio::test]
async fn the_overview_says_what_is_of_the_cluster_and_what_of_this_node() {
    let browser = browser(&[], true).await;
    for delay_ms in [600_000, 600_000, 7_200_000] {
        submit(&browser, &format!(r#"{{"queue":"a","delay_ms":{delay_ms}}}"#)).await;
    }
    let page = browser.page("/console").await;
    assert!(page.contains("Scheduled<b>3</b>"), "{page}");
    assert!(page.contains("Due in the next hour <span class=\"faint\">2 tasks"), "{page}");
    assert!(page.contains("Due in the next day <span class=\"faint\">3 tasks"), "{page}");
    assert!(page.contains("This node"));
}

#[tokio::test]
async fn an_error_of_ours_is_told_with_its_id_by_the_page_and_by_the_api() {
    let browser = browser(&[], false).await;
    sqlx::query("ALTER TABLE duetime.task RENAME COLUMN progress TO moved_on")
        .execute(&browser.test.pool)
        .await
        .unwrap();
    let counted = internal::count(Origin::Database);
    let page = browser.get("/console/tasks").await;
    assert_eq!(page.status, StatusCode::INTERNAL_SERVER_ERROR, "{}", page.html);
    let id = between(&page.html, "under error_id ", "<").expect("the id").trim();
    assert_eq!(id.len(), 32, "{}", page.html);
    let answer = browser.get("/v1/tasks?queue=orders").await;
    let problem: serde_json::Value = serde_json::from_str(&answer.html).expect("a problem");
    assert_eq!(
        (answer.status, &problem["type"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &"urn:duetime:problem:internal".into())
    );
    let id = problem["error_id"].as_str().expect("an id");
    assert!(problem["detail"].as_str().expect("a detail").contains(id), "{problem}");
    assert!(internal::count(Origin::Database) >= counted + 2);
    assert!(browser.get("/metrics").await.html.contains("duetime_internal_errors_total{origin=\"database\"}"));
}
