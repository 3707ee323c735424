//! Faults of etcd.

use std::time::Duration;

use anyhow::Result;

use super::{Kind, Needs, Part, Scene};
use crate::chaos::LEASE_TTL;

/// How often the leader changes in one fault, and how long each leads.
const LEADERS: usize = 3;
const LEADS_FOR: Duration = Duration::from_secs(2);

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "kill-etcd",
        row: "F10",
        says: "all members of etcd are killed, and start again",
        part: Part::Etcd,
        needs: Needs::Nothing,
        play: |scene| Box::pin(kill(scene)),
    },
    Kind {
        name: "freeze-etcd",
        row: "F11",
        says: "all members of etcd are stopped with SIGSTOP for longer than all leases",
        part: Part::Etcd,
        needs: Needs::Nothing,
        play: |scene| Box::pin(freeze(scene)),
    },
    Kind {
        name: "freeze-etcd-member",
        row: "F12",
        says: "one of three members of etcd is stopped with SIGSTOP",
        part: Part::Etcd,
        needs: Needs::Large,
        play: |scene| Box::pin(freeze_member(scene)),
    },
    Kind {
        name: "change-etcd-leader",
        row: "F13",
        says: "the leader of etcd changes every 2 s",
        part: Part::Etcd,
        needs: Needs::Large,
        play: |scene| Box::pin(change_leader(scene)),
    },
    Kind {
        name: "compact-etcd",
        row: "F14",
        says: "etcd forgets all former revisions",
        part: Part::None,
        needs: Needs::Nothing,
        play: |scene| Box::pin(compact(scene)),
    },
    Kind {
        name: "wipe-etcd",
        row: "F15",
        says: "etcd loses everything, and starts empty",
        part: Part::Etcd,
        needs: Needs::Nothing,
        play: |scene| Box::pin(wipe(scene)),
    },
    Kind {
        name: "restore-etcd",
        row: "F15",
        says: "etcd is put back to what it held when the load began",
        part: Part::Etcd,
        needs: Needs::Nothing,
        play: |scene| Box::pin(restore(scene)),
    },
    Kind {
        name: "etcd-no-space",
        row: "F16",
        says: "etcd refuses to write by the alarm of its quota, until it is compacted, defragmented and disarmed",
        part: Part::Etcd,
        needs: Needs::Nothing,
        play: |scene| Box::pin(refuse_writes(scene)),
    },
];

async fn kill(mut scene: Scene) -> Result<()> {
    scene.sandbox().etcd().kill_all();
    scene.hold().await;
    scene.sandbox().etcd().restart_all().await
}

async fn freeze(scene: Scene) -> Result<()> {
    let etcd = scene.sandbox().etcd();
    for member in 0..etcd.count() {
        etcd.pause(member)?;
    }
    tokio::time::sleep(LEASE_TTL * 2).await;
    for member in 0..etcd.count() {
        etcd.resume(member)?;
    }
    Ok(())
}

async fn freeze_member(mut scene: Scene) -> Result<()> {
    let etcd = scene.sandbox().etcd();
    let member = scene.below(etcd.count());
    etcd.pause(member)?;
    scene.hold().await;
    etcd.resume(member)
}

async fn change_leader(scene: Scene) -> Result<()> {
    for _ in 0..LEADERS {
        scene.sandbox().etcd().move_leader().await?;
        tokio::time::sleep(LEADS_FOR).await;
    }
    Ok(())
}

async fn compact(scene: Scene) -> Result<()> {
    // It may be away in another fault.
    scene.sandbox().etcd().compact().await.ok();
    Ok(())
}

async fn wipe(scene: Scene) -> Result<()> {
    let etcd = scene.sandbox().etcd();
    etcd.wipe()?;
    etcd.restart_all().await
}

async fn restore(scene: Scene) -> Result<()> {
    let etcd = scene.sandbox().etcd();
    etcd.put_back(scene.stage.etcd_snapshot()).await?;
    etcd.restart_all().await
}

async fn refuse_writes(mut scene: Scene) -> Result<()> {
    let etcd = scene.sandbox().etcd();
    etcd.raise_no_space().await?;
    scene.hold().await;
    etcd.clear_no_space().await
}
