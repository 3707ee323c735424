//! The nemesis: plays one to three faults at a time, by a seeded plan, with quiet between.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Result;
use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use tokio::{task::JoinSet, time::Instant};

use super::{
    NODES, Plan,
    faults::{self, Kind, Part, Scene},
    stage::{Stage, between},
};
use crate::ledger::GRACE;

/// A run below this is short: its faults and pauses are.
const SHORT: Duration = Duration::from_secs(150);
/// Faults of one round begin within this time.
const APART_MS: u64 = 2_000;
/// Within this time after the last heal all nodes are ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// After each so many rounds of a long run, the nemesis rests until no copy is excused, and then for this time: about
/// an eighth of a run. Shorter pauses leave no second in which a copy would be a finding. The first rest comes early,
/// so that a run of some minutes has one.
const RESTS_EVERY: u64 = 10;
const FIRST_REST: u64 = 3;
const REST: Duration = Duration::from_secs(30);

/// Plays faults until the time of the plan is over.
pub(super) async fn rage(stage: &Arc<Stage>, plan: &Plan, say: fn(&str)) -> Result<()> {
    let until = Instant::now() + plan.time;
    let is_short = plan.time < SHORT;
    let mut random = stage.random("nemesis", 0);
    let mut deck = Vec::new();
    stage.ledger().calm();
    pause(&mut random, is_short, until).await;
    for round in 0.. {
        if Instant::now() >= until {
            break;
        }
        let kinds = deal(&mut random, &mut deck, plan, is_short);
        if kinds.is_empty() {
            break;
        }
        play(stage, &mut random, &kinds, round, is_short, say).await;
        if ready(stage).await {
            stage.ledger().calm();
        }
        pause(&mut random, is_short, until).await;
        if is_rest(round, is_short) {
            say("the nemesis rests");
            tokio::time::sleep_until((Instant::now() + GRACE + REST).min(until)).await;
        }
    }
    Ok(())
}

fn is_rest(round: u64, is_short: bool) -> bool {
    !is_short && round % RESTS_EVERY == FIRST_REST
}

/// Quiet, in which the cluster comes back to normal and its lateness is measured.
async fn pause(random: &mut StdRng, is_short: bool, until: Instant) {
    let (least_ms, most_ms) = if is_short { (1_500, 3_000) } else { (5_000, 10_000) };
    tokio::time::sleep_until((Instant::now() + between(random, least_ms, most_ms)).min(until)).await;
}

/// The faults of the next round: from a shuffled deck, so that each comes once before one comes twice.
fn deal(random: &mut StdRng, deck: &mut Vec<&'static Kind>, plan: &Plan, is_short: bool) -> Vec<&'static Kind> {
    let count = if is_short { 1 } else { [1, 1, 1, 2, 2, 3][random.random_range(0..6_usize)] };
    let mut dealt: Vec<&'static Kind> = Vec::new();
    for _ in 0..count {
        if deck.is_empty() {
            deck.extend(faults::all().filter(|kind| is_wanted(kind, plan)));
            deck.shuffle(random);
        }
        let Some(place) = deck.iter().rposition(|kind| fits(kind, &dealt)) else { break };
        dealt.push(deck.remove(place));
    }
    dealt
}

/// Whether a fault can be played beside those that are dealt: two parts of which the cluster needs one never break at
/// the same time.
fn fits(kind: &Kind, dealt: &[&'static Kind]) -> bool {
    if dealt.iter().any(|other| other.name == kind.name || other.part == Part::Clock) {
        return false;
    }
    let of_part = dealt.iter().filter(|other| other.part == kind.part).count();
    match kind.part {
        Part::None => true,
        // Two of three nodes may be broken at the same time.
        Part::Node => of_part < 2,
        Part::Clock => dealt.is_empty(),
        Part::Home | Part::Second | Part::Etcd | Part::Rabbit => of_part == 0,
    }
}

fn is_wanted(kind: &Kind, plan: &Plan) -> bool {
    let is_named = plan.faults.is_empty() || plan.faults.iter().any(|name| name == kind.name);
    is_named && kind.needs.lack().is_none() && !(plan.small && kind.needs.is_large())
}

/// Plays the faults of one round at about the same time, and waits until all are healed.
async fn play(
    stage: &Arc<Stage>,
    random: &mut StdRng,
    kinds: &[&'static Kind],
    round: u64,
    is_short: bool,
    say: fn(&str),
) {
    let victims = victims(stage, random, kinds).await;
    let mut faults = JoinSet::new();
    for ((kind, node), place) in kinds.iter().copied().zip(victims).zip(0..) {
        let begins_after = between(random, 0, if place == 0 { 0 } else { APART_MS });
        let void = Arc::new(OnceLock::new());
        let scene = Scene { stage: Arc::clone(stage), random: stage.random(kind.name, round), node, is_short, void };
        faults.spawn(play_one(kind, scene, begins_after, say));
    }
    faults.join_all().await;
}

/// A node for each fault, no node twice: the master for the first fault that is the master's.
async fn victims(stage: &Stage, random: &mut StdRng, kinds: &[&'static Kind]) -> Vec<usize> {
    let mut free: Vec<usize> = (0..NODES).collect();
    free.shuffle(random);
    let masters_place = kinds.iter().position(|kind| kind.name.ends_with("-master"));
    let master = if masters_place.is_some() { stage.sandbox.master().await.ok() } else { None };
    free.retain(|node| Some(*node) != master);
    (0..kinds.len())
        .map(|place| match master {
            Some(master) if masters_place == Some(place) => master,
            _ => free.pop().unwrap_or(0),
        })
        .collect()
}

async fn play_one(kind: &'static Kind, scene: Scene, begins_after: Duration, say: fn(&str)) {
    tokio::time::sleep(begins_after).await;
    let (stage, void) = (Arc::clone(&scene.stage), Arc::clone(&scene.void));
    let victim = match kind.part {
        Part::Node => format!(" {}", stage.sandbox.node(scene.node).name()),
        _ => String::new(),
    };
    let what = format!("{} {}{victim}", kind.row, kind.name);
    let fault = stage.ledger().fault(&what);
    let began = Instant::now();
    let outcome = (kind.play)(scene).await;
    stage.ledger().heal(fault);
    if let Some(why) = void.get() {
        say(&format!("{what}: void, {why}"));
        stage.ledger().void(fault, why);
    }
    match outcome {
        Ok(()) => say(&format!("{what}: healed after {:.1} s", began.elapsed().as_secs_f64())),
        Err(error) => {
            // The further lines are the end of a node's log, which is kept.
            let error = format!("{error:#}");
            let wrong = format!("{what}: {}", error.lines().next().unwrap_or_default());
            say(&wrong);
            stage.ledger().wrong(&wrong);
        }
    }
}

/// Whether all nodes are ready in time after a round; one that is not becomes a finding.
async fn ready(stage: &Stage) -> bool {
    let deadline = Instant::now() + READY_WITHIN;
    let mut late = BTreeSet::new();
    for node in &stage.sandbox.nodes()[..NODES] {
        let left = deadline.saturating_duration_since(Instant::now());
        if node.wait_ready(left).await.is_err() {
            late.insert(node.name());
        }
    }
    for name in &late {
        stage.ledger().wrong(&format!("{name} was not ready {READY_WITHIN:?} after the last heal"));
    }
    late.is_empty()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_long_run_rests_after_its_first_rounds_and_each_ten_and_a_short_one_never() {
        let rests = |is_short| (0..25).filter(|round| is_rest(*round, is_short)).collect::<Vec<u64>>();
        assert_eq!((rests(false), rests(true)), (vec![3, 13, 23], Vec::new()));
    }

    #[test]
    fn no_round_breaks_two_parts_of_which_the_cluster_needs_one() {
        let plan = Plan { seed: 1, time: SHORT, rate: 1, small: false, faults: Vec::new(), folder: PathBuf::new() };
        let mut random = StdRng::seed_from_u64(1);
        let (mut deck, mut most) = (Vec::new(), 0);
        for _ in 0..2_000 {
            let dealt = deal(&mut random, &mut deck, &plan, false);
            let of_part = |part| dealt.iter().filter(|kind| kind.part == part).count();
            let names: BTreeSet<&str> = dealt.iter().map(|kind| kind.name).collect();
            assert_eq!(names.len(), dealt.len(), "a kind comes twice");
            assert!(of_part(Part::Node) <= 2, "of three nodes one goes on: {names:?}");
            for part in [Part::Home, Part::Second, Part::Etcd, Part::Rabbit] {
                assert!(of_part(part) <= 1, "a store is broken in two ways: {names:?}");
            }
            assert!(of_part(Part::Clock) == 0 || dealt.len() == 1, "a clock is set beside another fault: {names:?}");
            most = most.max(dealt.len());
        }
        assert_eq!(most, 3);
    }
}
