//! How many messages of a lane were in work at a time, as their consumers saw it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{Verdict, history::History};

/// Counts each message from its first beginning to its first end. After its report a message may come again, as a
/// copy that no longer counts.
pub(super) fn judge_limits(history: &History, verdict: &mut Verdict) {
    let mut open: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    for work in &history.works {
        let in_work = open.entry(&work.lane).or_default();
        if !work.begins {
            in_work.remove(work.message_id.as_str());
            ended.insert(&work.message_id);
        } else if !ended.contains(work.message_id.as_str()) && in_work.insert(&work.message_id) {
            let most = history.limits.get(&work.lane).copied().unwrap_or(usize::MAX);
            if in_work.len() > most {
                verdict.limits.add(|| format!("{}: {in_work:?} at {}, and {most} may be", work.lane, work.at_us));
            }
        }
    }
}
