//! While nothing is broken, a load is taken: a run that refuses everything keeps every other promise.

use std::collections::BTreeMap;

use super::super::{Verdict, history::History};

/// Of a few submissions so many may be refused or stay without an answer: a fault meets some on their way.
const OF_FEW_PERCENT_AT_MOST: usize = 50;
/// Of many, those that a fault meets are a small part.
const OF_MANY_PERCENT_AT_MOST: usize = 15;

/// A queue with fewer submissions than this is judged with the others only.
const OF_A_QUEUE: usize = 30;
/// From here on submissions are many: the batch that a fault meets is a small part of them.
const MANY: usize = 300;

pub(super) fn judge_calm(history: &History, verdict: &mut Verdict) {
    if history.calms.is_empty() {
        return;
    }
    let is_calm = |at_us: i64| {
        let mut calms = history.calms.iter();
        calms.any(|calm| calm.from_us <= at_us && calm.until_us.is_none_or(|until_us| at_us < until_us))
    };
    let mut queues: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for entry in history.entries.iter().filter(|entry| is_calm(entry.invoked_us) && !entry.is_withdrawn) {
        let (sent, accepted) = queues.entry(&entry.queue).or_default();
        *sent += 1;
        *accepted += usize::from(entry.is_accepted());
    }
    let (sent, accepted) =
        queues.values().fold((0, 0), |(sent, accepted), (more, of_them)| (sent + more, accepted + of_them));
    if !is_taken(sent, accepted) {
        verdict.others.add(|| format!("{accepted} of {sent} submissions were accepted while nothing was broken"));
        return;
    }
    // Each feature has queues of its own: one that is refused as a whole is a small part of the load.
    for (queue, (sent, accepted)) in queues {
        if sent >= OF_A_QUEUE && !is_taken(sent, accepted) {
            verdict
                .others
                .add(|| format!("{accepted} of {sent} submissions to {queue} were accepted while nothing was broken"));
        }
    }
}

const fn is_taken(sent: usize, accepted: usize) -> bool {
    let refused_percent = if sent < MANY { OF_FEW_PERCENT_AT_MOST } else { OF_MANY_PERCENT_AT_MOST };
    accepted > 0 && accepted * 100 >= sent * (100 - refused_percent)
}
