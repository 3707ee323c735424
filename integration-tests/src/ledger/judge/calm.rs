//! While nothing is broken, a load is taken: a run that refuses everything keeps every other promise.

use super::super::{Verdict, history::History};

/// The part of the submissions that is refused on purpose, as by a rollback, is smaller than this.
const REFUSED_PERCENT_AT_MOST: usize = 50;

pub(super) fn judge_calm(history: &History, verdict: &mut Verdict) {
    if history.calms.is_empty() {
        return;
    }
    let is_calm = |at_us: i64| {
        let mut calms = history.calms.iter();
        calms.any(|calm| calm.from_us <= at_us && calm.until_us.is_none_or(|until_us| at_us < until_us))
    };
    let (mut sent, mut accepted) = (0, 0);
    for entry in history.entries.iter().filter(|entry| is_calm(entry.invoked_us)) {
        sent += 1;
        accepted += usize::from(entry.is_accepted());
    }
    if accepted == 0 || accepted * 100 < sent * (100 - REFUSED_PERCENT_AT_MOST) {
        verdict.others.add(|| format!("{accepted} of {sent} submissions were accepted while nothing was broken"));
    }
}
