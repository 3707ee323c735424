//! The page of the databases, and its forms.

use axum::http::StatusCode;

use super::{between, browser, browser_at};
use crate::{audit::AuditAction, config::Role, desk::tests::shards::divided};

#[tokio::test]
async fn an_operator_moves_calls_off_and_drains_by_forms_and_others_only_look() {
    let (counter, [main, _east]) = divided().await;
    let mut browser = browser_at(counter, main, &Role::ALL, true, None);
    let path = "/console/databases";
    let offered = "action=\"/console/databases\"";
    browser.sign_in("producer").await;
    let page = browser.page(path).await;
    assert!(page.contains("64-127") && page.contains("No shard moves") && !page.contains(offered), "{page}");
    assert!(!browser.page("/console/databases?plan=yes").await.contains("id=\"plan\""), "a plan is for operators");
    let fields = [("action", "move"), ("shards", "0-3"), ("to", "east")];
    assert_eq!(browser.post(path, &fields).await.status, StatusCode::FORBIDDEN);

    browser.sign_in("operator").await;
    assert_eq!(
        browser.post_bare(path, &fields, "same-origin").await.status,
        StatusCode::FORBIDDEN,
        "without its token"
    );
    let done = browser.post(path, &fields).await;
    assert_eq!(done.location.as_deref(), Some(path), "{}", done.html);
    let page = browser.page(path).await;
    let moves = between(&page, "id=\"moves\"", "</table>").expect("a table");
    assert!(moves.contains(">0-3<") && moves.contains("planned") && moves.contains("Call off 0-3"), "{moves}");
    browser.post(path, &[("action", "call_off"), ("shards", "0-1")]).await;
    let page = browser.page(path).await;
    assert!(page.contains(">2-3<") && page.contains("called off"), "{page}");

    let wrong = browser.post(path, &[("action", "move"), ("shards", "9-3"), ("to", "east")]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(browser.post(path, &[("action", "no")]).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    browser.post(path, &[("action", "drain"), ("database", "east")]).await;
    let page = browser.page(path).await;
    assert!(
        page.contains("draining</span>") && page.contains("Undrain east") && !page.contains("Remove east"),
        "{page}"
    );
    let holds = browser.post(path, &[("action", "remove"), ("database", "east")]).await;
    assert!(holds.status == StatusCode::CONFLICT && holds.html.contains("still holds the shards"), "{}", holds.html);
    browser.post(path, &[("action", "undrain"), ("database", "east")]).await;
    assert!(!browser.page(path).await.contains("Undrain"));

    let mut noted = Vec::new();
    while let Ok(note) = browser.counter.notes.try_recv() {
        let event = note.event;
        noted.push((event.action.text(), event.target, event.status, event.detail.unwrap_or_default()));
    }
    for (action, target, status, detail) in [
        ("shard.move", "0-3", 200, "console: to east"),
        ("shard.call_off", "0-1", 200, "console: done"),
        ("shard.move", "9-3", 422, "console: "),
        ("database.drain", "east", 200, "console: done"),
        ("database.remove", "east", 409, "console: "),
        ("database.undrain", "east", 200, "console: done"),
    ] {
        let is_it = |note: &&(&str, String, u16, String)| (note.0, note.1.as_str(), note.2) == (action, target, status);
        let found = noted.iter().find(is_it).unwrap_or_else(|| panic!("{action} {target}: {noted:?}"));
        assert!(found.3.starts_with(detail), "{found:?}");
    }
}

#[tokio::test]
async fn a_rebalance_by_a_form_is_noted_with_its_moves() {
    let (counter, [main, _east]) = divided().await;
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), g % 64, 'q', 'scheduled', now(), now(), '{}', 'x' FROM generate_series(1, 640) AS g";
    sqlx::query(fill).execute(&main.pool).await.expect("written");
    let mut browser = browser_at(counter, main, &[], true, None);
    for expected in [" to east", "no moves"] {
        let done = browser.post("/console/databases", &[("action", "rebalance")]).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.html);
        let event = browser.counter.notes.try_recv().expect("noted").event;
        assert_eq!((event.action, event.target.as_str()), (AuditAction::ShardRebalance, "all"));
        let detail = event.detail.expect("the moves");
        assert!(detail.starts_with("console: ") && detail.ends_with(expected), "{detail}");
    }
}

#[tokio::test]
async fn a_rebalance_is_planned_before_anything_moves_and_the_load_is_shown_on_request() {
    let browser = browser(&[], true).await;
    let page = browser.page("/console/databases").await;
    assert!(page.contains("Estimate the load") && !page.contains("Finished/s"), "{page}");
    assert!(browser.page("/console/databases?load=yes").await.contains("Finished/s"));
    let page = browser.page("/console/databases?plan=yes").await;
    let plan = between(&page, "id=\"plan\"", "</div>").expect("a plan");
    assert!(plan.contains("No shard has to move") && plan.contains("100 %"), "{plan}");
    let done = browser.post("/console/databases", &[("action", "rebalance")]).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.html);
}
