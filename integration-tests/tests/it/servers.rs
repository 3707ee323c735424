//! The servers under the scenarios are the ones that were asked for.

use anyhow::{Context, Result, ensure};
use integration_tests::{
    http,
    sandbox::{Sandbox, server_folders},
};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};

use crate::scenario;

/// The version that each running store names, by the folder that `integration-tests/newer` makes for it.
async fn running(sandbox: &Sandbox) -> Result<[(&'static str, String); 3]> {
    let mut database = PgConnection::connect(&sandbox.database_url(0)).await?;
    let postgresql: String = sqlx::query_scalar("SHOW server_version").fetch_one(&mut database).await?;
    let url = format!("{}/version", sandbox.etcd().endpoints()[0]);
    let etcd: Value = http::plain().get(&url).send().await?.json().await?;
    let etcd = etcd["etcdserver"].as_str().context("etcd names its version")?.to_owned();
    Ok([("postgresql", postgresql), ("etcd", etcd), ("rabbitmq", sandbox.rabbit().version().await?)])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_run_on_the_chosen_servers() {
    scenario(Sandbox::builder().nodes(1), async |sandbox| {
        let running = running(sandbox).await?;
        for folder in server_folders()? {
            let wanted = std::fs::read_to_string(folder.join("version"))?;
            let name = folder.file_name().and_then(|name| name.to_str()).context("a folder has a name")?;
            let version = running.iter().find(|(server, _)| *server == name);
            let (_, version) = version.with_context(|| format!("no server is called {name}"))?;
            // PostgreSQL's answer ends with the revision of its package.
            ensure!(version.starts_with(wanted.trim()), "{name} {version} runs, not {wanted}");
        }
        Ok(())
    })
    .await;
}
