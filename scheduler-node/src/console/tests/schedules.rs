//! Pages of schedules: list, set, pause, run, delete.

use axum::http::StatusCode;
use common::{ids::ScheduleName, schedule::key_of, wire::ScheduleRequest};

use super::{between, browser};
use crate::{config::Role, desk::tests::request};

const NIGHTLY: [(&str, &str); 6] = [
    ("action", "set"),
    ("queue", "reports"),
    ("cron", "30 2 * * 1"),
    ("time_zone", "Europe/Berlin"),
    ("overlap", "buffer_one"),
    ("headers", r#"{"a": "b\nc"}"#),
];

#[tokio::test]
async fn a_schedule_is_made_and_told_in_words_and_on_its_own_clock() {
    let browser = browser(&[], true).await;
    let path = "/console/schedules/nightly";
    assert_eq!(browser.get(path).await.status, StatusCode::NOT_FOUND);
    let payload = "{\r\n  \"n\": 12345678901234567890123\r\n}";
    let fields: Vec<_> = NIGHTLY.into_iter().chain([("payload", payload)]).collect();
    let set = browser.post(path, &fields).await;
    assert_eq!(set.location.as_deref(), Some(path), "{}", set.html);
    let page = browser.page(path).await;
    assert!(page.contains("At 02:30, on Monday."), "{page}");
    let next = between(&page, "Next fire times", "</table>").expect("a table");
    assert_eq!(next.matches(" 02:30:00 CE").count(), 5, "{next}");
    assert!(page.contains("12345678901234567890123"), "no digit is lost");
    assert!(page.contains(r"&#34;a&#34;: &#34;b\nc&#34;"), "{page}");
    let list = browser.page("/console/schedules").await;
    assert!(list.contains("At 02:30, on Monday.") && list.contains("30 2 * * 1 Europe/Berlin"), "{list}");
    let view = browser.counter.desk.schedule_get(ScheduleName::new("nightly"), 1).await.expect("made");
    assert_eq!(view.payload.expect("JSON").get(), "{\n  \"n\": 12345678901234567890123\n}");
}

#[tokio::test]
async fn a_fire_time_that_is_gone_leads_to_the_task_it_made() {
    let browser = browser(&[], true).await;
    browser.post("/console/schedules/s", &[("action", "set"), ("queue", "q"), ("every_ms", "3600000")]).await;
    assert!(browser.page("/console/schedules/s").await.contains("None since it was created"));
    sqlx::query("UPDATE duetime.schedule SET created_at = now() - interval '1 day'")
        .execute(&browser.test.pool)
        .await
        .expect("written");
    let desk = &browser.counter.desk;
    let name = ScheduleName::new("s");
    let view = desk.schedule_get(name.clone(), 1).await.expect("made");
    let key = key_of(&name, view.next_fire_times[0].shifted(-2 * 3_600_000));
    let json = format!(r#"{{"queue":"q","key":"{key}","delay_ms":100000}}"#);
    let id = desk.submit(request(&json)).await.expect("accepted").id;
    let page = browser.page("/console/schedules/s").await;
    let last = page.split_once("Last fire times").expect("a table").1;
    assert_eq!(last.matches("<tr data-row>").count(), 5);
    assert_eq!(last.matches("none, or no longer kept").count(), 4);
    assert!(last.contains(&format!("/console/tasks/{id}")), "{last}");
}

#[tokio::test]
async fn the_largest_payload_fits_into_the_form() {
    let browser = browser(&[], true).await;
    // Each character is encoded as three. The desk of the tests accepts smaller payloads.
    let payload = format!("\"{}\"", "ä".repeat(32_000));
    let fields: Vec<_> = NIGHTLY.into_iter().chain([("payload", payload.as_str())]).collect();
    let answer = browser.post("/console/schedules/s", &fields).await;
    assert!(answer.html.contains("payload") && answer.html.contains("1000"), "{}", answer.status);
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn what_is_wrong_with_a_schedule_is_told_at_its_field() {
    let browser = browser(&[], true).await;
    for (field, text, name) in [
        ("cron", "30 2 30 2 *", "cron"),
        ("time_zone", "Mars/Utopia", "time_zone"),
        ("every_ms", "1000", "every_ms"),
        ("payload", "{", "payload"),
        ("priority", "9", "priority"),
        ("headers", "a: b", "headers"),
        ("headers", r#"{"a": 1}"#, "headers"),
        ("queue", "a b", "queue"),
    ] {
        let others = NIGHTLY.into_iter().filter(|(other, _)| *other != field);
        let fields: Vec<_> = others.chain([(field, text)]).collect();
        let answer = browser.post("/console/schedules/s", &fields).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{name}");
        let label = answer.html.split("<label").find(|label| label.contains("class=\"wrong\"")).expect("told");
        assert!(label.contains(&format!("name=\"{name}\"")), "{name}: {label}");
    }
}

#[tokio::test]
async fn a_form_undoes_nothing_that_another_person_set_of_a_schedule_unless_its_sender_knows() {
    let browser = browser(&[], true).await;
    let (path, name) = ("/console/schedules/s", ScheduleName::new("s"));
    let form = |page: &str| -> Vec<(String, String)> {
        let seen = between(page, "name=\"seen\" value=\"", "\"").expect("the state that it shows");
        let fields = NIGHTLY.into_iter().chain([("seen", seen)]);
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let save = async |page: &str| {
        let fields = form(page);
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        browser.post(path, &fields).await
    };
    let put = async |every_ms: i64| {
        let request = ScheduleRequest::parse(&format!(r#"{{"queue":"q","every_ms":{every_ms}}}"#)).expect("a schedule");
        browser.counter.desk.schedule_put(name.clone(), request).await.expect("put");
    };
    let new = browser.get(path).await.html;
    put(60_000).await;
    let page = browser.page(path).await;
    // A pause is no part of the form.
    browser.counter.desk.schedule_pause(name.clone(), true).await.expect("paused");
    put(90_000).await;
    for (page, deed) in [(&new, "created"), (&page, "changed")] {
        let refused = save(page).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.html);
        assert!(refused.html.contains(&format!("was {deed} after this form was opened")), "{}", refused.html);
        assert!(refused.html.contains("name=\"cron\" value=\"30 2 * * 1\""), "the typed values stay");
        let kept = browser.counter.desk.schedule_get(name.clone(), 1).await.expect("there");
        assert!(serde_json::to_string(&kept).expect("JSON").contains("90000"), "it stays");
    }
    let refused = save(&page).await;
    browser.counter.desk.schedule_pause(name.clone(), false).await.expect("resumed");
    let saved = save(&refused.html).await;
    assert_eq!(saved.status, StatusCode::SEE_OTHER, "{}", saved.html);
    assert!(browser.page(path).await.contains("At 02:30, on Monday."));
    let page = browser.page(path).await;
    browser.counter.desk.schedule_delete(name.clone()).await.expect("deleted");
    let refused = save(&page).await;
    assert_eq!((refused.status, browser.get(path).await.status), (StatusCode::CONFLICT, StatusCode::NOT_FOUND));
    assert_eq!(save(&refused.html).await.status, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_schedule_is_run_paused_resumed_and_deleted() {
    let browser = browser(&[], true).await;
    let path = "/console/schedules/s";
    browser.post(path, &NIGHTLY).await;
    let run = browser.post(path, &[("action", "run")]).await;
    assert!(run.location.expect("a task").starts_with("/console/tasks/"));
    browser.post(path, &[("action", "pause")]).await;
    let page = browser.page(path).await;
    assert!(page.contains("None while it is paused") && page.contains("value=\"resume\""), "{page}");
    browser.post(path, &[("action", "resume")]).await;
    assert!(browser.page(path).await.contains("value=\"pause\""));
    assert!(browser.page(&format!("{path}/delete")).await.contains("id=\"confirm\""));
    let deleted = browser.post(path, &[("action", "delete")]).await;
    assert_eq!(deleted.location.as_deref(), Some("/console/schedules"));
    assert_eq!(browser.get(path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_schedule_that_is_saved_as_its_page_shows_it_stays_as_it_is() {
    let browser = browser(&[], true).await;
    let (path, name, desk) = ("/console/schedules/s", ScheduleName::new("s"), &browser.counter.desk);
    let written = r#"{"queue":"q","every_ms":60000,"partition_key":" eu ","payload_base64":"","content_type":"a/b"}"#;
    desk.schedule_put(name.clone(), ScheduleRequest::parse(written).expect("a schedule")).await.expect("put");
    let page = browser.page(path).await;
    let shown = |field: &str| between(&page, &format!("<input name=\"{field}\" value=\""), "\"").expect("a field");
    let names = ["queue", "every_ms", "partition_key", "payload_base64", "content_type"];
    let fields: Vec<_> = names.into_iter().map(|field| (field, shown(field))).chain([("action", "set")]).collect();
    let saved = browser.post(path, &fields).await;
    assert_eq!(saved.status, StatusCode::SEE_OTHER, "{}", saved.html);
    let view = desk.schedule_get(name, 1).await.expect("there");
    assert_eq!((view.rules.partition_key.as_deref(), view.payload_base64.as_deref()), (Some(" eu "), Some("")));
    assert_eq!(view.rules.content_type, "a/b");
}

#[tokio::test]
async fn a_payload_that_is_not_shown_stays_when_the_rest_is_set() {
    let browser = browser(&[], false).await;
    let name = ScheduleName::new("s");
    for (written, shown) in [
        (r#"{"queue":"q","every_ms":60000,"payload":{"secret":7}}"#, r#"{"secret":7}"#),
        (r#"{"queue":"q","every_ms":60000,"payload_base64":"AQID","content_type":"a/b"}"#, "AQID"),
    ] {
        let request = ScheduleRequest::parse(written).expect("a schedule");
        browser.counter.desk.schedule_put(name.clone(), request).await.expect("put");
        let page = browser.page("/console/schedules/s").await;
        assert!(!page.contains("secret") && !page.contains("AQID") && page.contains("the payload stays"), "{page}");
        let fields = [("action", "set"), ("queue", "q"), ("every_ms", "90000"), ("payload", "null")];
        let set = browser.post("/console/schedules/s", &fields).await;
        assert_eq!(set.status, StatusCode::SEE_OTHER, "{}", set.html);
        let view = browser.counter.desk.schedule_get(name.clone(), 1).await.expect("there");
        let json = serde_json::to_string(&view).expect("JSON");
        assert!(json.contains(shown) && json.contains("90000"), "{json}");
    }
}

#[tokio::test]
async fn who_may_only_look_at_schedules_is_offered_nothing_and_refused() {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in("operator").await;
    browser.post("/console/schedules/s", &NIGHTLY).await;
    browser.sign_in("producer").await;
    for path in ["/console/schedules", "/console/schedules/s"] {
        let page = browser.page(path).await;
        assert!(!page.split_once("<main").expect("a page").1.contains("method=\"post\""), "{path}");
    }
    assert_eq!(browser.get("/console/schedules/s/delete").await.status, StatusCode::FORBIDDEN);
    for action in ["set", "run", "pause", "delete"] {
        let answer = browser.post("/console/schedules/s", &[("action", action)]).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{action}");
    }
}

#[tokio::test]
async fn hostile_text_in_a_schedule_is_shown_as_text() {
    let browser = browser(&[], true).await;
    let evil = "</textarea><script>alert(1)</script>";
    let json = format!("\"{evil}\"");
    let header = format!("{{\"h\": {json}}}");
    let fields: Vec<_> = [("payload", json.as_str()), ("partition_key", evil), ("headers", &header)]
        .into_iter()
        .chain(NIGHTLY.into_iter().filter(|(name, _)| *name != "headers"))
        .collect();
    let set = browser.post("/console/schedules/s", &fields).await;
    assert_eq!(set.status, StatusCode::SEE_OTHER, "{}", set.html);
    let page = browser.page("/console/schedules/s").await;
    assert!(!page.contains("<script>") && !page.contains("</textarea><"), "{page}");
    let wrong = browser.post("/console/schedules/s", &[("action", "set"), ("cron", evil)]).await;
    assert!(!wrong.html.contains("<script>"), "{}", wrong.html);
}
