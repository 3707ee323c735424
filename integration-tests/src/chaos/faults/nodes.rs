//! Faults of nodes: they are killed, frozen, restarted, added and replaced.

use std::time::Duration;

use anyhow::Result;

use super::{Kind, NODE_WITHIN, Needs, Part, Scene};
use crate::sandbox::last_release;

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "kill-node",
        row: "F1",
        says: "a node is killed, and starts again",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(kill(scene)),
    },
    Kind {
        name: "kill-at-point",
        row: "F2",
        says: "a node dies at a fail point of submit, claim, publish, confirm, settle, fire, collect or takeover",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(kill_at_point(scene)),
    },
    Kind {
        name: "stop-node",
        row: "F3",
        says: "a node leaves in order, and starts again",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(stop(scene)),
    },
    Kind {
        name: "freeze-node",
        row: "F4",
        says: "a node is stopped with SIGSTOP for up to four leases, and continues",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(freeze(scene)),
    },
    Kind {
        name: "freeze-master",
        row: "F5",
        says: "the master is stopped with SIGSTOP, and continues",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(freeze(scene)),
    },
    Kind {
        name: "kill-master",
        row: "F5",
        says: "the master is killed, and starts again",
        part: Part::Node,
        needs: Needs::Nothing,
        play: |scene| Box::pin(kill(scene)),
    },
    Kind {
        name: "join-node",
        row: "F38",
        says: "a fourth node joins, takes shards, and leaves",
        part: Part::None,
        needs: Needs::Nothing,
        play: |scene| Box::pin(join(scene)),
    },
    Kind {
        name: "old-node",
        row: "F39",
        says: "a node is replaced by one of the last release, and back",
        part: Part::Node,
        needs: Needs::LastRelease,
        play: |scene| Box::pin(replace(scene)),
    },
];

/// Fail points, each with the number of times that it passes before the node dies there.
const POINTS: [&str; 11] = [
    "after_submit=30*off->return",
    "after_claim=20*off->return",
    "after_publish=60*off->return",
    "after_confirm=60*off->return",
    "after_settle=20*off->return",
    "after_fire=3*off->return",
    "after_fire_made=3*off->return",
    "after_inbox_leave=5*off->return",
    "after_collect=10*off->return",
    "after_receive=10*off->return",
    "after_fence=return",
];

/// A node that does not meet its fail point is killed after this time.
const MET_WITHIN: Duration = Duration::from_secs(8);

async fn start(scene: &Scene) -> Result<()> {
    scene.victim().start()?;
    scene.victim().wait_ready(NODE_WITHIN).await
}

async fn kill(mut scene: Scene) -> Result<()> {
    scene.victim().kill();
    scene.hold().await;
    start(&scene).await
}

async fn kill_at_point(mut scene: Scene) -> Result<()> {
    let point = POINTS[scene.below(POINTS.len())];
    scene.victim().kill();
    scene.victim().start_with_failpoints(point)?;
    if scene.victim().wait_ended(MET_WITHIN).await.is_err() {
        scene.note_void("the node did not meet its fail point");
    }
    scene.victim().kill();
    start(&scene).await
}

async fn stop(mut scene: Scene) -> Result<()> {
    let stopped = scene.victim().stop(NODE_WITHIN).await;
    // A node that cannot leave in order, because a store is away, is killed as an operator would.
    scene.victim().kill();
    scene.hold().await;
    start(&scene).await?;
    stopped.map(drop)
}

async fn freeze(mut scene: Scene) -> Result<()> {
    scene.victim().pause()?;
    scene.hold().await;
    scene.victim().resume()?;
    scene.victim().wait_ready(NODE_WITHIN).await
}

async fn join(mut scene: Scene) -> Result<()> {
    scene.node = crate::chaos::NODES;
    start(&scene).await?;
    scene.hold().await;
    stop_for_good(&scene).await
}

async fn stop_for_good(scene: &Scene) -> Result<()> {
    let stopped = scene.victim().stop(NODE_WITHIN).await;
    scene.victim().kill();
    stopped.map(drop)
}

/// Stops the node in order, changes it, and starts it again.
pub(super) async fn start_again(scene: &Scene, change: impl FnOnce()) -> Result<()> {
    let stopped = stop_for_good(scene).await;
    change();
    start(scene).await?;
    stopped
}

async fn replace(mut scene: Scene) -> Result<()> {
    let old = last_release()?.program;
    stop_for_good(&scene).await?;
    scene.victim().set_program(old.as_deref());
    start(&scene).await?;
    scene.hold().await;
    let stopped = stop_for_good(&scene).await;
    scene.victim().set_program(None);
    start(&scene).await?;
    stopped
}
