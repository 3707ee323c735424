//! Faults of the links between one node and a store.

use std::time::Duration;

use anyhow::Result;

use super::{Kind, NODE_WITHIN, Needs, Part, Scene};
use crate::sandbox::{Links, Proxy};

/// The delay of a slow link in each direction.
const SLOW: Duration = Duration::from_millis(150);

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "cut-etcd",
        row: "F6",
        says: "a node's links to etcd are silent",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, |links| links.etcd.iter().collect(), Proxy::cut)),
    },
    Kind {
        name: "cut-postgres",
        row: "F7",
        says: "a node's links to PostgreSQL are silent",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_postgres, Proxy::cut)),
    },
    Kind {
        name: "cut-rabbit",
        row: "F8",
        says: "a node's links to RabbitMQ are silent",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_rabbit, Proxy::cut)),
    },
    Kind {
        name: "half-open-postgres",
        row: "F9",
        says: "a node's statements reach PostgreSQL, and no answer comes back",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_postgres, Proxy::mute)),
    },
    Kind {
        name: "half-open-rabbit",
        row: "F9",
        says: "a node's messages reach RabbitMQ, and no confirm comes back",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_rabbit, Proxy::mute)),
    },
    Kind {
        name: "half-open-etcd",
        row: "F9",
        says: "a node's requests reach etcd, and no answer comes back",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, |links| links.etcd.iter().collect(), Proxy::mute)),
    },
    Kind {
        name: "reset-postgres",
        row: "F36",
        says: "a node's connections to PostgreSQL are closed, and new ones too for a while",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_postgres, Proxy::refuse)),
    },
    Kind {
        name: "slow-postgres",
        row: "F21",
        says: "a node's links to PostgreSQL take 150 ms in each direction",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_postgres, |link| link.delay(SLOW))),
    },
    Kind {
        name: "slow-rabbit",
        row: "F9",
        says: "a node's links to RabbitMQ take 150 ms in each direction",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(broken(scene, Links::to_rabbit, |link| link.delay(SLOW))),
    },
];

async fn broken(mut scene: Scene, which: fn(&Links) -> Vec<&Proxy>, breaks: fn(&Proxy)) -> Result<()> {
    let node = scene.node;
    which(scene.sandbox().links(node)).into_iter().for_each(breaks);
    scene.hold().await;
    which(scene.sandbox().links(node)).into_iter().for_each(Proxy::heal);
    scene.victim().wait_ready(NODE_WITHIN).await
}
