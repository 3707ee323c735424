//! The page of the databases, and its forms.

use axum::http::StatusCode;

use super::{between, browser, browser_at};
use crate::{config::Role, desk::tests::shards::divided};

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
        noted.push((note.event.action.text(), note.event.target, note.event.status));
    }
    let noted: Vec<_> = noted.iter().map(|(action, target, status)| (*action, target.as_str(), *status)).collect();
    for expected in [
        ("shard.move", "0-3", 200),
        ("shard.call_off", "0-1", 200),
        ("shard.move", "9-3", 422),
        ("database.drain", "east", 200),
        ("database.remove", "east", 409),
        ("database.undrain", "east", 200),
    ] {
        assert!(noted.contains(&expected), "{expected:?}: {noted:?}");
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
