use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::*;

const STEPS: usize = 8;

/// Each step is a fault or a change, and the test does not always wait for it. In the end every shard must have one
/// owner again. At no moment may two nodes hold the newest epoch of a shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_in_the_end_every_shard_has_one_owner() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let (etcd, _) = own_etcd(1).await;
    let world = World::on(etcd.endpoints()).with_short_leases();
    let mut nodes = vec![world.start("node-0").await, world.start("node-1").await];
    for step in 0..STEPS {
        let what = turn(&mut dice, &world, &etcd, &mut nodes, step).await;
        println!("step {step}: {what}, {} nodes", nodes.len());
        let rest = Duration::from_millis(dice.random_range(0..2_000));
        let until = Instant::now() + rest;
        while Instant::now() < until {
            check(&world, &nodes);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let rest: Vec<&TestNode> = nodes.iter().collect();
    balanced(&rest).await;
    check(&world, &nodes);
    // Checks what a claim would have found out.
    for node in &nodes {
        let rows = world.fences.rows.lock();
        assert!(node.owned().iter().all(|(shard, epoch)| rows[shard] == *epoch), "{} holds a dead epoch", node.me);
    }
}

async fn turn(dice: &mut StdRng, world: &World, etcd: &Etcd, nodes: &mut Vec<TestNode>, step: usize) -> &'static str {
    let one = dice.random_range(0..nodes.len());
    match dice.random_range(0..8) {
        0..=3 if nodes.len() < 5 => {
            nodes.push(world.start(&format!("node-{}", step + 2)).await);
            "a node joins"
        }
        4 if nodes.len() > 1 => {
            nodes.swap_remove(one).crash();
            "a node crashes"
        }
        5 if nodes.len() > 1 => {
            nodes.swap_remove(one).leave().await;
            "a node leaves"
        }
        6 => {
            etcd.pause(0).unwrap();
            tokio::time::sleep(Duration::from_millis(dice.random_range(0..2 * TTL.as_millis() as u64))).await;
            etcd.resume(0).unwrap();
            "etcd stalls"
        }
        _ => {
            etcd.kill(0);
            tokio::time::sleep(Duration::from_millis(dice.random_range(0..2_000))).await;
            etcd.restart_all().await.unwrap();
            "etcd restarts"
        }
    }
}

/// Forgets dead epochs, as a refused claim does, and finds no two owners of a living one.
fn check(world: &World, nodes: &[TestNode]) {
    let rows = world.fences.rows.lock().clone();
    let mut living: BTreeMap<ShardId, &NodeId> = BTreeMap::new();
    for node in nodes {
        for (shard, epoch) in node.owned_shards.claimable() {
            if rows.get(&shard).is_some_and(|row| *row > epoch) {
                node.owned_shards.forget_epoch(shard, epoch);
            } else if let Some(other) = living.insert(shard, &node.me) {
                panic!("{other} and {} both hold {shard} under {epoch}", node.me);
            }
        }
    }
}
