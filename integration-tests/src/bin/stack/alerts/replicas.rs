//! Causes that concern a database with a standby, on a stage of their own.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use integration_tests::sandbox::Sandbox;

use super::scene::{Cause, Scene, Stage};

const LEAVES_WITHIN: Duration = Duration::from_secs(60);

const NOT_REPLICATED: Cause = Cause {
    alerts: &["DuetimeNotReplicated"],
    says: "no standby is named any more, although the nodes require a synchronous one",
    play: |scene| not_replicated(scene).boxed(),
};

const FAILED_OVER: Cause = Cause {
    alerts: &["DuetimeFailover"],
    says: "the primary is killed, and its standby is promoted",
    play: |scene| failed_over(scene).boxed(),
};

/// The failover comes last: it leaves the database without a standby.
pub(super) const ALONE: [&[Cause]; 2] = [&[NOT_REPLICATED], &[FAILED_OVER]];

pub(super) async fn stage() -> Result<Stage> {
    let cluster = Sandbox::builder().standby().nodes(2).unwatched().start().await?;
    for (number, node) in cluster.nodes().iter().enumerate() {
        node.set("DUETIME_DATABASE__0__REQUIRE_SYNCHRONOUS_STANDBY", "true");
        node.stop(LEAVES_WITHIN).await?;
        cluster.restart(number).await?;
    }
    cluster.settled().await?;
    super::stage(cluster, "prometheus-replicated").await
}

async fn name_standbys(scene: &Scene<'_>, names: &str) -> Result<()> {
    let primary = scene.cluster().postgres(0);
    primary.execute(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'")).await?;
    primary.execute("SELECT pg_reload_conf()").await
}

async fn not_replicated(scene: &Scene<'_>) -> Result<()> {
    name_standbys(scene, "").await?;
    scene.injected();
    scene.fired().await;
    name_standbys(scene, "*").await
}

async fn failed_over(scene: &Scene<'_>) -> Result<()> {
    scene.injected();
    scene.cluster().postgres(0).kill();
    scene.cluster().standby().promote().await?;
    scene.fired().await;
    Ok(())
}
