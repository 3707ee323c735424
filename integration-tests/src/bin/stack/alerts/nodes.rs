//! Causes that concern nodes.

use std::time::Duration;

use anyhow::Result;
use futures::FutureExt;
use integration_tests::sandbox::{Node, Proxy, Tether, scratch};
use tokio::{io::AsyncWriteExt, net::TcpListener};

use super::scene::{Cause, Scene};

const ANOTHER_VERSION: Cause = Cause {
    alerts: &["DuetimeVersionSkew"],
    says: "a target in the job reports another version, as an old node would; it is not a node",
    play: |scene| another_version(scene).boxed(),
};

const LOST: Cause = Cause {
    alerts: &["DuetimeScrapeFailing", "DuetimeShardsUnowned"],
    says: "all nodes but the master are killed at once, and the master waits in case etcd has failed",
    play: |scene| lost(scene).boxed(),
};

const TAKEN_AWAY: Cause = Cause {
    alerts: &["DuetimeNodeMissing"],
    says: "a node leaves in order and is no longer a target of Prometheus, as after the end of its pod",
    play: |scene| taken_away(scene).boxed(),
};

const RESTARTING: Cause = Cause {
    alerts: &["DuetimeShardsMoving"],
    says: "a node is restarted again and again",
    play: |scene| restarting(scene).boxed(),
};

const FORGOTTEN: Cause = Cause {
    alerts: &["DuetimeFenceRefusals"],
    says: "a node is cut off from etcd and keeps claiming after others have taken its shards",
    play: |scene| forgotten(scene).boxed(),
};

const STRANGER: Cause = Cause {
    alerts: &["DuetimeSeveralMasters"],
    says: "a node with another etcd.prefix in the same job and on the same database",
    play: |scene| stranger(scene).boxed(),
};

const MISTAKEN: Cause = Cause {
    alerts: &["DuetimeConfigReloadFailed"],
    says: "the configuration file of a running node gets a mistake",
    play: |scene| mistaken(scene).boxed(),
};

const NONE_LEFT: Cause =
    Cause { alerts: &["DuetimeAbsent"], says: "all nodes are killed", play: |scene| none_left(scene).boxed() };

pub(super) const ALONE: [&[Cause]; 8] =
    [&[LOST], &[TAKEN_AWAY], &[RESTARTING], &[FORGOTTEN], &[ANOTHER_VERSION], &[MISTAKEN], &[STRANGER], &[NONE_LEFT]];

const LEAVES_WITHIN: Duration = Duration::from_secs(60);

async fn another_version(scene: &Scene<'_>) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", scene.stage.impostor_port)).await?;
    scene.injected();
    scene
        .fired_during(async {
            let body = "duetime_build_info{version=\"0.0.0-before\"} 1\n";
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n", body.len());
            loop {
                let (mut client, _) = listener.accept().await?;
                client.write_all(format!("{head}connection: close\r\n\r\n{body}").as_bytes()).await?;
            }
        })
        .await
}

async fn lost(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    let master = cluster.master().await?;
    let lost: Vec<usize> = (0..cluster.nodes().len()).filter(|node| *node != master).collect();
    scene.injected();
    lost.iter().for_each(|node| cluster.kill(*node));
    scene.fired().await;
    for node in lost {
        cluster.restart(node).await?;
    }
    cluster.settled().await
}

async fn taken_away(scene: &Scene<'_>) -> Result<()> {
    let (cluster, targets) = (scene.cluster(), &scene.stage.targets);
    cluster.node(0).stop(LEAVES_WITHIN).await?;
    scene.injected();
    scene.stage.prometheus.scrape_only(&targets[1..])?;
    scene.fired().await;
    scene.stage.prometheus.scrape_only(targets)?;
    cluster.restart(0).await?;
    cluster.settled().await
}

async fn restarting(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    scene.injected();
    scene
        .fired_during(async {
            loop {
                cluster.node(1).stop(LEAVES_WITHIN).await?;
                cluster.restart(1).await?;
            }
        })
        .await?;
    // The node may be stopping at this moment.
    cluster.kill(1);
    cluster.restart(1).await?;
    cluster.settled().await
}

async fn forgotten(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    let ways = || cluster.links(1).etcd.iter();
    scene.injected();
    ways().for_each(Proxy::cut);
    scene.fired().await;
    ways().for_each(Proxy::heal);
    cluster.settled().await
}

async fn stranger(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    let mut config = cluster.node(0).config().clone();
    config.name = "stranger".into();
    config.port = scene.stage.stranger_port;
    config.etcd_prefix = "/stranger".into();
    let node = Node::new(scratch(), config, Tether::Tethered)?;
    node.start()?;
    scene.injected();
    scene.fired().await;
    node.kill();
    cluster.settled().await
}

async fn mistaken(scene: &Scene<'_>) -> Result<()> {
    let node = scene.cluster().node(0);
    let right = node.config().toml();
    node.reload(&format!("{right}\n[scheduler]\nbatch = \"many\"\n"))?;
    scene.injected();
    scene.fired().await;
    node.reload(&right)
}

async fn none_left(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    scene.injected();
    for node in cluster.nodes() {
        node.kill();
    }
    scene.fired().await;
    for node in cluster.nodes() {
        node.start()?;
    }
    cluster.settled().await
}
