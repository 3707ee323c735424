//! The console's pages of queues, schedules, the cluster and bulk operations, in a real browser.

use anyhow::ensure;
use integration_tests::sandbox::Sandbox;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    console::{look, put_off},
    in_state, language, scenario,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_person_runs_queues_and_schedules_in_a_browser() {
    if !language::is_here("npm") || !language::is_here("chromium") {
        return;
    }
    scenario(Sandbox::builder(), async |sandbox| {
        let client = sandbox.client(0);
        let first = put_off(&client, "orders", "order-0", "{}").await?;
        put_off(&client, "orders", "order-1", "{}").await?;
        let tasks = json!({ "queue": "orders", "count": 2 });
        look(sandbox, "pages.js", &tasks).await?;
        ensure!(in_state(&client, &first, "cancelled").await?.state == "cancelled");
        let queue: Value = client.call(Method::GET, "/v1/queues/reports", None::<&Value>).await?;
        ensure!(queue["policy"]["max_running"] == 3 && queue["paused"] == false, "{queue}");
        Ok(())
    })
    .await;
}
