//! The rules of the fence: one owner for each epoch, rising epochs, and claims under an epoch that the node holds.

use std::collections::{BTreeMap, BTreeSet};

use super::read::{Start, Step};

/// The shard of a task: the last 16 bits of its id.
pub(super) fn shard_of(task: &str) -> u16 {
    u16::from_str_radix(task.get(task.len().saturating_sub(4)..).unwrap_or_default(), 16).unwrap_or_default()
}

/// What breaks the rules.
pub(super) fn faults(starts: &[Start]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut owners: BTreeMap<(u16, i64), usize> = BTreeMap::new();
    let mut times: BTreeMap<u16, BTreeMap<i64, (String, String)>> = BTreeMap::new();
    for (number, start) in starts.iter().enumerate() {
        let mut held: BTreeMap<u16, BTreeSet<i64>> = BTreeMap::new();
        let mut in_doubt = false;
        for line in &start.lines {
            match &line.step {
                Step::ShardAcquired { shard, epoch } => {
                    let epochs = held.entry(*shard).or_default();
                    if epochs.last().is_some_and(|last| last > epoch) {
                        faults.push(format!("shard {shard}: {} acquires epoch {epoch} after a later one", start.name));
                    }
                    epochs.insert(*epoch);
                    let owner = *owners.entry((*shard, *epoch)).or_insert(number);
                    if owner != number {
                        let (one, other) = (&starts[owner].name, &start.name);
                        faults.push(format!("shard {shard}: {one} and {other} both acquire epoch {epoch}"));
                    }
                }
                Step::Claimed { task, epoch, now, .. } | Step::Rescued { task, epoch, now, .. } => {
                    let shard = shard_of(task);
                    if !in_doubt && !held.get(&shard).is_some_and(|epochs| epochs.contains(epoch)) {
                        let name = &start.name;
                        faults.push(format!("shard {shard}: {name} claims {task} under epoch {epoch}, not its own"));
                    }
                    if let Some(now) = now {
                        let of_epoch = times.entry(shard).or_default().entry(*epoch);
                        let (first, last) = of_epoch.or_insert_with(|| (now.clone(), now.clone()));
                        if now < first {
                            first.clone_from(now);
                        }
                        if now > last {
                            last.clone_from(now);
                        }
                    }
                }
                step => in_doubt |= step.leaves_doubt(),
            }
        }
    }
    faults.extend(times.iter().flat_map(|(shard, epochs)| late_claims(*shard, epochs)));
    faults
}

/// Claims under an epoch after a claim under a later one, on the database's clock.
fn late_claims(shard: u16, epochs: &BTreeMap<i64, (String, String)>) -> Vec<String> {
    let pairs = epochs.iter().zip(epochs.iter().skip(1));
    pairs
        .filter(|((_, (_, last)), (_, (first, _)))| last > first)
        .map(|((epoch, (_, last)), (next, (first, _)))| {
            format!("shard {shard}: a claim under epoch {epoch} at {last}, after one under epoch {next} at {first}")
        })
        .collect()
}
