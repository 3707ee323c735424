//! Finds a short form of a plan that fails: fewer faults and tasks, and still the same guarantee is broken.

use super::{mutant::Mutant, plan::Plan, run::run};

/// The guarantee that a run of the plan breaks.
fn broken(plan: &Plan, mutant: Option<Mutant>) -> Option<String> {
    let broken = run(plan, mutant).broken?;
    broken.split_once(':').map(|(guarantee, _)| guarantee.to_owned())
}

/// Leaves out one fault or task after the other, until none can be left out.
pub fn shortest(plan: &Plan, mutant: Option<Mutant>) -> Plan {
    let guarantee = broken(plan, mutant);
    let mut shortest = plan.clone();
    loop {
        let shorter = shorter(&shortest).find(|shorter| broken(shorter, mutant) == guarantee);
        match shorter {
            Some(shorter) => shortest = shorter,
            None => return shortest,
        }
    }
}

/// The plan without each of its faults, and without each of its tasks.
fn shorter(plan: &Plan) -> impl Iterator<Item = Plan> {
    let without_fault = |leave| {
        let mut shorter = plan.clone();
        shorter.faults.remove(leave);
        shorter
    };
    let without_task = |leave| {
        let mut shorter = plan.clone();
        shorter.tasks.remove(leave);
        shorter
    };
    (0..plan.faults.len()).map(without_fault).chain((0..plan.tasks.len()).map(without_task))
}
