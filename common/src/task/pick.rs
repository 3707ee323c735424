//! Which of the tasks that wait for room go first: how many of each priority.

/// Priorities, 1 (first) to 5.
pub const LEVELS: usize = 5;

/// One number a priority, the first one's first.
pub type Levels = [usize; LEVELS];

/// Unless a queue weighs its priorities: this part of the picks is of the highest priority that has tasks waiting, the rest of the
/// lowest, so that nothing waits for ever.
const TO_THE_HIGHEST: f64 = 0.8;

/// How many to take of each priority: `room` in all, or everything that is `ready` when that is less. A priority that has nothing
/// (left) gives its share to the others at once.
///
/// `weights`: a priority is drawn as often as its weight says, among those that have tasks; priorities beyond the last weight have
/// the last one's. `dice01` is rolled once for each task, 0 <= roll < 1.
pub fn shares(ready: Levels, room: usize, weights: Option<&[u32]>, mut dice01: impl FnMut() -> f64) -> Levels {
    let mut shares = [0; LEVELS];
    for _ in 0..room {
        let left = |level: &usize| shares[*level] < ready[*level];
        let levels: Vec<usize> = (0..LEVELS).filter(left).collect();
        let (Some(highest), Some(lowest)) = (levels.first(), levels.last()) else { break };
        let roll = dice01();
        let level = match weights {
            Some(weights) if !weights.is_empty() => weighted(&levels, weights, roll),
            _ if roll < TO_THE_HIGHEST => *highest,
            _ => *lowest,
        };
        shares[level] += 1;
    }
    shares
}

fn weighted(levels: &[usize], weights: &[u32], roll: f64) -> usize {
    let weight = |level: usize| f64::from(weights[level.min(weights.len() - 1)]);
    let mut mark = roll * levels.iter().map(|level| weight(*level)).sum::<f64>();
    for level in levels {
        mark -= weight(*level);
        if mark < 0.0 {
            return *level;
        }
    }
    levels[levels.len() - 1]
}

#[cfg(test)]
mod tests;
