//! Pages of queues: list, set, pause, delete.

use axum::http::StatusCode;
use common::{
    ids::QueueName,
    queue::{Format, Placement, QueuePolicy, ReceiptPolicy, Settle, Unroutable},
    retry::RetryPolicy,
    wire::QueueRequest,
};

use super::{Browser, between, browser};
use crate::{config::Role, desk::tests::request};

async fn signed_in(role: Role) -> Browser {
    let mut browser = browser(&Role::ALL, true).await;
    browser.sign_in(role.text()).await;
    browser
}

/// The form of a policy as it is sent when no field was changed.
fn as_shown(page: &str) -> Vec<(&str, &str)> {
    let form = between(page, "id=\"policy\"", "</form>").expect("a form");
    let mut fields = Vec::new();
    for input in form.split("<input name=\"").skip(1) {
        let (name, rest) = input.split_once('"').expect("a name");
        fields.push((name, between(rest, "value=\"", "\"").expect("a value")));
    }
    for select in form.split("<select name=\"").skip(1) {
        let (name, rest) = select.split_once('"').expect("a name");
        let options = rest.split_once("</select>").expect("an end").0;
        fields.push((name, between(options, "<option selected>", "<").unwrap_or("")));
    }
    let seen = between(form, "name=\"seen\" value=\"", "\"").expect("the state that it shows");
    fields.extend([("seen", seen), ("action", "set")]);
    fields
}

/// The form as it is shown, with another value of one field.
fn with<'a>(page: &'a str, field: &str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    as_shown(page).into_iter().map(|(name, shown)| (name, if name == field { value } else { shown })).collect()
}

async fn put(browser: &Browser, queue: &str, json: &str) {
    let request = QueueRequest::parse(json).expect("a policy");
    browser.counter.desk.queue_put(QueueName::new(queue), request).await.expect("put");
}

async fn policy(browser: &Browser, queue: &str) -> QueuePolicy {
    browser.counter.desk.queue_get(QueueName::new(queue)).await.expect("there").policy
}

#[tokio::test]
async fn a_form_undoes_nothing_that_another_person_set_unless_its_sender_knows() {
    let browser = browser(&[], true).await;
    let path = "/console/queues/q";
    put(&browser, "q", r#"{"max_attempts":3}"#).await;
    let page = browser.page(path).await;
    put(&browser, "q", r#"{"max_attempts":9}"#).await;
    // A page that names a mistake still changes the state that the first page showed.
    let wrong = browser.post(path, &with(&page, "timeout_ms", "soon")).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", wrong.html);
    for page in [&page, &wrong.html] {
        let refused = browser.post(path, &with(page, "timeout_ms", "7000")).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.html);
        assert!(refused.html.contains("was changed after this form was opened"), "{}", refused.html);
        assert_eq!(policy(&browser, "q").await.max_attempts, 9, "it stays");
    }
    let refused = browser.post(path, &with(&page, "timeout_ms", "7000")).await;
    for _ in ["once", "a double click, or a repetition after a lost answer"] {
        let saved = browser.post(path, &as_shown(&refused.html)).await;
        assert_eq!(saved.status, StatusCode::SEE_OTHER, "{}", saved.html);
    }
    let kept = policy(&browser, "q").await;
    assert_eq!((kept.max_attempts, kept.timeout_ms), (3, 7_000), "as it was typed");
}

#[tokio::test]
async fn a_form_of_a_new_queue_says_when_it_exists_meanwhile_and_one_of_a_deleted_queue_that_it_is_gone() {
    let browser = browser(&[], true).await;
    let path = "/console/queues/q";
    let new = browser.get(path).await.html;
    put(&browser, "q", r#"{"max_attempts":9}"#).await;
    let refused = browser.post(path, &with(&new, "max_attempts", "3")).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.html);
    assert!(refused.html.contains("was created after this form was opened"), "{}", refused.html);
    assert_eq!(policy(&browser, "q").await.max_attempts, 9);
    let saved = browser.post(path, &as_shown(&refused.html)).await;
    assert_eq!((saved.status, policy(&browser, "q").await.max_attempts), (StatusCode::SEE_OTHER, 3));

    let page = browser.page(path).await;
    browser.counter.desk.queue_delete(QueueName::new("q")).await.expect("deleted");
    let refused = browser.post(path, &as_shown(&page)).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.html);
    assert!(refused.html.contains("was deleted after this form was opened"), "{}", refused.html);
    assert_eq!(browser.get(path).await.status, StatusCode::NOT_FOUND);
    let saved = browser.post(path, &as_shown(&refused.html)).await;
    assert_eq!((saved.status, policy(&browser, "q").await.max_attempts), (StatusCode::SEE_OTHER, 3));
}

#[tokio::test]
async fn a_policy_is_made_changed_and_sent_again_as_it_is_shown() {
    let browser = signed_in(Role::Operator).await;
    let path = "/console/queues/mails";
    let nothing = browser.get(path).await;
    assert_eq!(nothing.status, StatusCode::NOT_FOUND);
    assert!(nothing.html.contains("Saving creates it"));
    let fields = [
        ("action", "set"),
        ("settle", "result"),
        ("placement", "single"),
        ("max_running", "3"),
        ("rate_per_second", "0.5"),
        ("ordered", "true"),
        ("priority_weights", "80, 20"),
        ("retry.kind", "exponential"),
        ("retry.base_ms", "500"),
        // Belongs to another kind, and has no effect with this one.
        ("retry.delay_ms", "7"),
    ];
    let set = browser.post(path, &fields).await;
    assert_eq!(set.location.as_deref(), Some(path), "{}", set.html);
    let queue = browser.counter.desk.queue_get(QueueName::new("mails")).await.expect("made");
    let policy = queue.policy.clone();
    assert_eq!((policy.settle, policy.max_running, policy.rate_per_second), (Settle::Result, Some(3), Some(0.5)));
    assert_eq!((policy.ordered, policy.priority_weights.clone()), (true, Some(vec![80, 20])));
    assert_eq!(serde_json::to_value(policy.retry).expect("JSON")["base_ms"], 500);

    let page = browser.page(path).await;
    let mut again = as_shown(&page);
    again.push(("ordered", "true"));
    assert_eq!(browser.post(path, &again).await.location.as_deref(), Some(path));
    let kept = browser.counter.desk.queue_get(QueueName::new("mails")).await.expect("there");
    assert_eq!(kept.policy, policy, "the form shows the stored policy");
    let list = browser.page("/console/queues").await;
    assert!(list.contains("done when reported · on one shard · ordered · at most 3 running · 0.5 a second"), "{list}");
}

#[tokio::test]
async fn no_field_of_a_policy_is_lost_by_the_form() {
    let browser = browser(&[], true).await;
    // Lists every field by name, so that the compiler reports a new field that this test, and perhaps the form,
    // lacks.
    let policy = QueuePolicy {
        settle: Settle::Result,
        max_attempts: 7,
        retry: RetryPolicy::Exponential { base_ms: 5, factor: 1.5, max_ms: 50, jitter: 0.25 },
        timeout_ms: 11,
        placement: Placement::Single,
        max_length: 12,
        exchange: Some(" other ".to_owned()),
        routing_key: Some(" there ".to_owned()),
        unroutable: Unroutable::SetAside,
        use_existing: true,
        receipt: ReceiptPolicy::Required,
        dedup_window_ms: 13,
        keep_succeeded_ms: 14,
        keep_dead_ms: 15,
        failure_alert_threshold: Some(16),
        priority_weights: Some(vec![3, 2, 1]),
        max_running: Some(17),
        rate_per_second: Some(0.125),
        ordered: true,
        retry_priority_drop: true,
        format: Format::CloudEvents,
        max_pending: Some(18),
        max_pending_bytes: Some(19),
        max_schedules: Some(20),
        max_submits_per_second: Some(21),
    };
    let json = serde_json::to_string(&policy).expect("JSON");
    let name = QueueName::new("q");
    let desk = &browser.counter.desk;
    desk.queue_put(name.clone(), QueueRequest::parse(&json).expect("a policy")).await.expect("put");
    let page = browser.page("/console/queues/q").await;
    assert_eq!(page.matches(" checked>").count(), 3, "all flags are ticked");
    let mut fields = as_shown(&page);
    fields.extend([("ordered", "true"), ("retry_priority_drop", "true"), ("use_existing", "true")]);
    let set = browser.post("/console/queues/q", &fields).await;
    assert_eq!(set.status, StatusCode::SEE_OTHER, "{}", set.html);
    assert_eq!(desk.queue_get(name).await.expect("there").policy, policy);
}

#[tokio::test]
async fn what_is_wrong_is_told_at_its_field_and_nothing_typed_is_lost() {
    let browser = signed_in(Role::Operator).await;
    for (fields, name) in [
        ([("max_attempts", "many"), ("timeout_ms", "5")], "max_attempts"),
        ([("max_attempts", "0"), ("timeout_ms", "5")], "max_attempts"),
        ([("ordered", "true"), ("timeout_ms", "5")], "ordered"),
        ([("retry.kind", "fixed"), ("timeout_ms", "5")], "retry.delay_ms"),
    ] {
        let all: Vec<_> = fields.into_iter().chain([("action", "set")]).collect();
        let answer = browser.post("/console/queues/q", &all).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{name}");
        let label = answer.html.split("<label").find(|label| label.contains("class=\"wrong\"")).expect("told");
        assert!(label.contains(&format!("name=\"{name}\"")), "{label}");
        assert!(answer.html.contains("name=\"timeout_ms\" value=\"5\""), "the typed values stay");
    }
    assert_eq!(browser.get("/console/queues/q").await.status, StatusCode::NOT_FOUND, "nothing was made");
    let odd = browser.get("/console/queues?open=a%2Fb").await;
    assert_eq!(odd.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(browser.get("/console/queues?open=q").await.location.as_deref(), Some("/console/queues/q"));
}

#[tokio::test]
async fn a_queue_is_paused_resumed_and_deleted_once_it_is_empty() {
    let browser = signed_in(Role::Operator).await;
    let task = browser.counter.desk.submit(request(r#"{"queue":"q","delay_ms":100000}"#)).await.expect("accepted");
    let path = "/console/queues/q";
    browser.post(path, &[("action", "pause")]).await;
    assert!(browser.page("/console/queues").await.contains("value=\"resume\""));
    assert!(browser.page(path).await.contains("paused"));
    browser.post(path, &[("action", "resume")]).await;
    assert!(browser.page(path).await.contains("value=\"pause\""));
    assert!(browser.page(&format!("{path}/delete")).await.contains("id=\"confirm\""));
    let full = browser.post(path, &[("action", "delete")]).await;
    assert_eq!(full.status, StatusCode::CONFLICT);
    browser.counter.desk.cancel(task.id).await.expect("cancelled");
    let deleted = browser.post(path, &[("action", "delete")]).await;
    assert_eq!(deleted.location.as_deref(), Some("/console/queues"), "{}", deleted.html);
    assert_eq!(browser.get(path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn who_may_only_look_is_offered_nothing_and_refused() {
    for role in [Role::Viewer, Role::Producer] {
        let browser = signed_in(role).await;
        browser.counter.desk.submit(request(r#"{"queue":"q","delay_ms":100000}"#)).await.expect("accepted");
        for path in ["/console/queues", "/console/queues/q"] {
            let page = browser.page(path).await;
            let main = page.split_once("<main").expect("a page").1;
            assert!(!main.contains("method=\"post\""), "{path}");
        }
        assert!(browser.page("/console/queues/q").await.contains("1800000"), "the policy can be read");
        assert_eq!(browser.get("/console/queues/q/delete").await.status, StatusCode::FORBIDDEN);
        for action in ["set", "pause", "delete"] {
            let answer = browser.post("/console/queues/q", &[("action", action)]).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{role} {action}");
        }
        assert_eq!(browser.get("/console/queues/none").await.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn the_rate_is_told_since_the_look_that_the_url_tells_of() {
    let browser = browser(&[], true).await;
    let desk = &browser.counter.desk;
    let cancel_one = || async {
        let task = desk.submit(request(r#"{"queue":"q","delay_ms":100000}"#)).await.expect("accepted");
        desk.cancel(task.id).await.expect("cancelled");
    };
    cancel_one().await;
    let page = browser.page("/console/queues/q").await;
    assert!(!page.contains("a minute in the last"));
    let again = between(&page, "<a href=\"/console/queues/q?", "\"").expect("a link").replace("&#38;", "&");
    cancel_one().await;
    let then = browser.page(&format!("/console/queues/q?{again}")).await;
    assert!(then.contains("a minute in the last"), "{then}");
    let other = again.replace("node=", "node=0");
    assert!(!browser.page(&format!("/console/queues/q?{other}")).await.contains("a minute in the last"));
}
