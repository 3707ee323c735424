//! Many runs, the short form of one that fails, and the proof that broken rules are found.

use std::{str::FromStr, time::Instant};

use super::{
    mutant::Mutant,
    plan::{Fault, Kind, Plan},
    run::run,
    shrink::shortest,
};

/// The runs of a test run. `DUETIME_SIM_SEEDS` asks for another number, `DUETIME_SIM_FIRST` for another first seed.
const SEEDS: u64 = 3_000;

/// The most runs that it takes to find a broken rule.
const FOUND_WITHIN: u64 = 10_000;

/// Runs each of which is run twice.
const REPEATED: u64 = 40;

fn wanted<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

fn explained(seed: u64) -> String {
    let short = shortest(&Plan::of(seed), None);
    let broken = run(&short, None).broken.unwrap_or_default();
    format!("{broken}\nDUETIME_SIM_SEED={seed} repeats the run; its short form:\n{short}")
}

#[test]
#[expect(clippy::print_stdout, reason = "people read the figures of many runs")]
fn runs_with_faults_of_every_kind_keep_the_guarantees() {
    let seeds = match wanted("DUETIME_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = wanted("DUETIME_SIM_FIRST").unwrap_or(0);
            first..first + wanted("DUETIME_SIM_SEEDS").unwrap_or(SEEDS)
        }
    };
    let (begun, runs) = (Instant::now(), seeds.end - seeds.start);
    let (mut steps, mut copies, mut virtual_s, mut failed) = (0, 0, 0, Vec::new());
    for seed in seeds {
        let ended = run(&Plan::of(seed), None);
        (steps, copies, virtual_s) = (steps + ended.steps, copies + ended.copies, virtual_s + ended.took.as_secs());
        if let Some(broken) = ended.broken {
            println!("seed {seed}: {broken}");
            failed.push(seed);
        }
    }
    println!("{runs} runs: {steps} steps, {copies} copies, {virtual_s} s of virtual time in {:?}", begun.elapsed());
    let first: Vec<String> = failed.iter().take(3).map(|seed| explained(*seed)).collect();
    assert!(failed.is_empty(), "{} of {runs} runs failed: {failed:?}\n{}", failed.len(), first.join("\n"));
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..REPEATED {
        let plan = Plan::of(seed);
        assert_eq!(run(&plan, None), run(&plan, None), "seed {seed}");
    }
    assert_ne!(run(&Plan::of(1), None).trace, run(&Plan::of(2), None).trace);
}

#[test]
#[expect(clippy::print_stdout, reason = "people read how soon each is found")]
fn each_broken_rule_is_found() {
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        // A run that fails without the broken rule does not count.
        let fails = |plan: &Plan| run(plan, Some(mutant)).broken.filter(|_| run(plan, None).broken.is_none());
        let found = (0..FOUND_WITHIN).find_map(|seed| Some((seed, fails(&Plan::of(seed))?)));
        match found {
            Some((seed, broken)) => println!("{mutant:?}: after {} runs ({broken})", seed + 1),
            None => missed.push(mutant),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn a_run_that_fails_is_shortened_as_long_as_it_fails() {
    let mutant = Some(Mutant::ReturnTrusted);
    let plan = (0..FOUND_WITHIN).map(Plan::of).find(|plan| run(plan, mutant).broken.is_some()).expect("it is found");
    let short = shortest(&plan, mutant);
    assert!(run(&short, mutant).broken.is_some());
    assert!(short.tasks.len() < plan.tasks.len(), "{short}");
    assert!(matches!(short.faults[..], [Fault { kind: Kind::Returned, .. }]), "{short}");
}
