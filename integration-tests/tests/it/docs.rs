//! The documentation as a reader follows it. Every `sh` and `sql` fence of these pages is typed into one shell, in
//! order, beside a cluster such as `make up` starts. Each command must succeed and print what the page shows in the
//! `text` fence after it.
//!
//! `docs/before/` holds the state that a page assumes: files, a queue, tasks for the words in capitals.

mod follow;

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use follow::follow;
use integration_tests::{
    page::{Fence, Page},
    sandbox::{Prometheus, Sandbox, scratch},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{language::is_here, lasts, scenario};

/// The scrape interval of the sandbox's Prometheus.
const SCRAPED_EVERY: Duration = Duration::from_secs(1);
/// A rate is known after two scrapes that differ.
const TOLD_WITHIN: Duration = Duration::from_secs(60);
/// More than a node's drain takes.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// Follows a page on a cluster of its own, because its reader need not have read the others.
async fn page(name: &str) {
    pages(&[(name, "")]).await;
}

/// Follows pages that need little of a cluster on a shared one. Beside each is the page's `before`.
async fn pages(pages: &[(&str, &str)]) {
    scenario(Sandbox::builder(), async |sandbox| {
        // For a page that starts a node by hand.
        sandbox.add_node().await?;
        for (name, before) in pages {
            follow(sandbox, name, before).await?;
        }
        Ok(())
    })
    .await;
}

fn in_an_hour() -> Value {
    json!({ "queue": "mails", "delay_ms": 3_600_000 })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_can_be_followed() {
    page("README.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ten_minute_start_can_be_followed() {
    page("docs/start.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_concepts_can_be_followed() {
    pages(&[("docs/concepts.md", include_str!("docs/before/concepts.sh"))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_celery_can_be_followed() {
    page("docs/migrate-celery.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_from_cron_can_be_followed() {
    page("docs/migrate-cron.md").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operations_can_be_followed() {
    // Epochs go back with the restored databases, which the watcher would take for two owners.
    scenario(Sandbox::builder().unwatched(), async |sandbox| {
        sandbox.add_node().await?;
        let page = ("docs/operations.md", include_str!("docs/before/operations.sh"));
        let before = sandbox.client(0).submit(&in_an_hour()).await?.id;
        follow(sandbox, page.0, page.1).await?;
        let since = sandbox.client(0).submit(&in_an_hour()).await?.id;

        let running = 0..sandbox.nodes().len() - 1;
        for number in running.clone() {
            sandbox.node(number).stop(STOPPED_WITHIN).await?;
        }
        follow(sandbox, page.0, "").await?;
        for number in running {
            sandbox.restart(number).await?;
        }
        sandbox.settled().await?;
        ensure!(sandbox.client(0).get(&before).await?.state == "scheduled", "the tasks in the dump are restored");
        ensure!(
            sandbox.client(0).get(&since).await.is_err(),
            "the tasks missing in the dump are lost, as the page says"
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_can_be_followed() {
    pages(&[("docs/cli.md", include_str!("docs/before/cli.sh"))]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_developers_read_can_be_followed() {
    pages(&[
        ("docs/consumers.md", include_str!("docs/before/consumers.sh")),
        ("docs/reference.md", include_str!("docs/before/reference.sh")),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_and_kubernetes_can_be_followed() {
    pages(&[("examples/README.md", ""), ("docs/kubernetes.md", "")]).await;
}

/// All runbooks share one healthy cluster: their subject exists there, and their commands do it no harm.
#[tokio::test(flavor = "multi_thread")]
async fn the_runbooks_can_be_followed() {
    let mut names = Page::below("docs/runbooks");
    names.retain(|name| Page::read(name).fences().iter().any(Fence::is_typed));
    let before = include_str!("docs/before/runbooks.sh");
    pages(&names.iter().map(|name| (name.as_str(), before)).collect::<Vec<_>>()).await;
}

/// Each query returns something on a healthy cluster, except those that search for faults and find none.
#[tokio::test(flavor = "multi_thread")]
async fn the_queries_of_the_runbooks_are_answered() {
    if !is_here("prometheus") {
        return;
    }
    scenario(Sandbox::builder(), async |sandbox| {
        let targets: Vec<String> = sandbox.nodes().iter().map(|node| node.url().replace("http://", "")).collect();
        let folder = scratch().join("queries");
        std::fs::create_dir_all(&folder)?;
        let prometheus = Prometheus::start(&folder, &targets, &sandbox.node(0).config().token, "groups: []").await?;
        let fences = Page::below("docs/runbooks").into_iter().flat_map(|name| Page::read(&name).fences());
        let text: String = fences.filter(|fence| fence.language() == "promql").map(|fence| fence.text).collect();
        let mut silent: BTreeSet<&str> = text.lines().collect();
        let trouble = |query: &str| query.ends_with("> 0") || query.ends_with("== 0");
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            sandbox.client(0).submit(&json!({ "queue": "mails" })).await?;
            for query in silent.clone() {
                // One that Prometheus refuses is never answered.
                if prometheus.count(query).await.is_ok_and(|count| count > 0 || trouble(query)) {
                    silent.remove(query);
                }
            }
            if silent.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "these queries find no series: {silent:#?}");
            lasts(SCRAPED_EVERY).await;
        }
    })
    .await;
}
