//! Knows which loops have a unit of work without progress for too long.
//!
//! A loop calls [`at_work`] when a unit of work begins and drops the guard when it ends. A loop that waits for work
//! has no guard, so it is never stalled. A loop and its children find the pulse of their node and the name of the
//! loop in a task-local, which `Crew::spawn` and `spawn_child` set. A `JoinSet` sets none: take the guard first and
//! move it in.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::LoopKind;

/// Longer than any unit of work: statements end after 5 s, and a drain ends within 10 s. A submission is resolved
/// within 5 s, and its waiting tasks are looked at for 5 s more. The dispatcher looks at waiting tasks for 40 s. A move
/// of a shard has progress with each page.
const BOUND: Duration = Duration::from_secs(60);

/// A batch may wait 30 s for the broker's confirms, and then for a settler that has a bound of its own.
const PUBLISHER_BOUND: Duration = Duration::from_secs(120);

/// A turn of the archive's partitions waits for locks on large tables, and no task waits for it.
const ARCHIVER_BOUND: Duration = Duration::from_secs(600);

tokio::task_local! {
    static LOOP: (Pulse, LoopKind);
}

/// The units of work of one node. Clones share them.
#[derive(Clone, Debug)]
pub struct Pulse {
    units: Arc<Mutex<Units>>,
    bound: fn(LoopKind) -> Duration,
}

#[derive(Debug, Default)]
struct Units {
    begun: u64,
    /// The last progress of each unit of work under way.
    under_way: BTreeMap<u64, (LoopKind, Instant)>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self::with_bound(|kind| match kind {
            LoopKind::Publisher => PUBLISHER_BOUND,
            LoopKind::Archiver => ARCHIVER_BOUND,
            _ => BOUND,
        })
    }
}

impl Pulse {
    pub fn with_bound(bound: fn(LoopKind) -> Duration) -> Self {
        Self { units: Arc::default(), bound }
    }

    fn work(&self, kind: LoopKind, now: Instant) -> Work {
        let mut units = self.units.lock();
        units.begun += 1;
        let unit = units.begun;
        units.under_way.insert(unit, (kind, now));
        Work(Some((self.clone(), unit)))
    }

    /// The number of units of work that have begun.
    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.units.lock().begun
    }

    /// The loops with a unit of work that has made no progress for longer than the bound.
    pub fn stalled(&self, now: Instant) -> BTreeSet<LoopKind> {
        let units = self.units.lock();
        let silent = |(kind, at): &&(LoopKind, Instant)| now.saturating_duration_since(*at) > (self.bound)(*kind);
        units.under_way.values().filter(silent).map(|(kind, _)| *kind).collect()
    }

    /// The reasons that `/readyz` shows, one for each stalled loop.
    pub fn reasons(&self, now: Instant) -> Vec<String> {
        let reason = |kind: LoopKind| {
            format!("the loop {} has made no progress for more than {} s", kind.text(), (self.bound)(kind).as_secs())
        };
        self.stalled(now).into_iter().map(reason).collect()
    }

    /// Runs a loop; its units of work count as those of `kind`.
    pub(crate) fn run<F: Future>(&self, kind: LoopKind, run: F) -> impl Future<Output = F::Output> + use<F> {
        LOOP.scope((self.clone(), kind), run)
    }
}

/// Runs a child; its units of work count as those of the loop that spawns it.
pub(super) fn inherited<T>(child: impl Future<Output = T>) -> impl Future<Output = T> {
    let parent = LOOP.try_with(Clone::clone).ok();
    async move {
        match parent {
            Some(parent) => LOOP.scope(parent, child).await,
            None => child.await,
        }
    }
}

/// A unit of work that is under way until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Work(Option<(Pulse, u64)>);

impl Work {
    /// Notes progress.
    pub fn beat(&self) {
        self.beat_at(Instant::now());
    }

    fn beat_at(&self, now: Instant) {
        let Some((pulse, unit)) = &self.0 else { return };
        if let Some((_, at)) = pulse.units.lock().under_way.get_mut(unit) {
            *at = now;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some((pulse, unit)) = &self.0 {
            pulse.units.lock().under_way.remove(unit);
        }
    }
}

/// Begins a unit of work of the calling loop. Outside a loop nothing is watched.
pub fn at_work() -> Work {
    LOOP.try_with(|(pulse, kind)| pulse.work(*kind, Instant::now())).unwrap_or(Work(None))
}

#[cfg(test)]
mod tests;
