//! Clocks that are set: those of a node and of a database, between the process and the machine's clock.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use rand::seq::SliceRandom;

use super::{Kind, Needs, Part, Scene, nodes};
use crate::sandbox::{Clock, Postgres};

const HOUR_S: i64 = 3_600;
/// What a database's clock is set ahead and back by. Its tasks may come early by that much and no more.
const STEP_S: i64 = 10;

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "set-node-clock",
        row: "F34",
        says: "the clock of a node is set an hour ahead and an hour back while it runs",
        part: Part::Node,
        needs: Needs::NodeClock,
        play: |scene| Box::pin(set_node_clock(scene)),
    },
    Kind {
        name: "set-database-clock",
        row: "F35",
        says: "the clock of the second database is set 10 s ahead and 10 s back; its tasks may be that early",
        part: Part::Clock,
        needs: Needs::DatabaseClock,
        play: |scene| Box::pin(set_database_clock(scene)),
    },
];

async fn set_node_clock(mut scene: Scene) -> Result<()> {
    let clock = Clock::new()?;
    let went_by_it = nodes::start_again(&scene, || scene.victim().set_clock(Some(&clock))).await;
    let mut steps = [HOUR_S, -HOUR_S];
    steps.shuffle(&mut scene.random);
    for ahead_s in steps {
        clock.set(ahead_s)?;
        scene.hold().await;
    }
    // It leaves by a wrong clock and comes back by the right one.
    let went_back = nodes::start_again(&scene, || scene.victim().set_clock(None)).await;
    went_by_it.and(went_back)
}

async fn set_database_clock(mut scene: Scene) -> Result<()> {
    let server = scene.sandbox().postgres(1);
    let clock = Clock::new()?;
    restart(server, Some(&clock)).await?;
    scene.stage.ledger().clock_ahead(shards(&scene).await?, Duration::from_secs(STEP_S.unsigned_abs()));
    clock.set(STEP_S)?;
    scene.hold().await;
    clock.set(-STEP_S)?;
    scene.stage.ledger().clock_back();
    scene.hold().await;
    clock.set(0)?;
    restart(server, None).await
}

async fn restart(server: &Postgres, clock: Option<&Clock>) -> Result<()> {
    server.stop().await?;
    server.set_clock(clock);
    server.restart().await
}

/// The shards of the second database. None moves in this fault, which is played alone.
async fn shards(scene: &Scene) -> Result<BTreeSet<u32>> {
    let mut connection = scene.stage.primary(1).await?;
    let shards: Vec<i32> =
        sqlx::query_scalar("SELECT id FROM duetime.shard WHERE status = 'here'").fetch_all(&mut connection).await?;
    Ok(shards.into_iter().map(u32::try_from).collect::<Result<_, _>>()?)
}
