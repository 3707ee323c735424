//! Which of the tasks that wait for room start first: how many of each priority.

/// The number of priorities, 1 (first) to 5.
pub const LEVELS: usize = 5;

/// One number for each priority, the highest priority first.
pub type Levels = [usize; LEVELS];

/// The default split: this part of the picks goes to the highest priority with waiting tasks, the rest to the lowest,
/// so that the lowest does not wait for ever. The priorities between them wait until one of the two is empty; a queue
/// in which none may wait for so long has weights.
const TO_THE_HIGHEST: f64 = 0.8;

/// How many tasks to take of each priority: `room` in all, or every `ready` task when there are fewer. A priority
/// without remaining tasks leaves its share to the others at once.
///
/// `weights`: a priority is drawn in proportion to its weight, among those with tasks; priorities beyond the last
/// weight use the last one. `dice01` rolls once for each task, 0 <= roll < 1.
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
