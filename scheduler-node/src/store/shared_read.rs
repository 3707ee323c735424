//! Lets many callers share few reads.

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

/// A read that one task makes at a time, and what the last one found.
///
/// A caller needs a read that begins after its call. One that has begun before may miss what the caller heard of.
#[derive(Debug, Default)]
pub(super) struct SharedRead<T> {
    /// Counts the reads that have begun.
    begun: Mutex<u64>,
    last: AsyncMutex<Last<T>>,
}

#[derive(Debug, Default)]
pub(super) struct Last<T> {
    /// The number of the last read that has ended. One whose task was dropped never ends.
    ended: u64,
    found: T,
}

/// What a caller does.
#[derive(Debug)]
pub(super) enum Turn<'a, T> {
    /// It reads.
    Mine(Reading<'a, T>),
    /// It takes this: a read that began after its call has ended.
    Shared(MutexGuard<'a, Last<T>>),
}

/// A read under way. It counts for others once [`Self::end`] is called.
#[derive(Debug)]
pub(super) struct Reading<'a, T> {
    number: u64,
    last: MutexGuard<'a, Last<T>>,
}

impl<T> SharedRead<T> {
    /// Waits for the reads under way.
    pub(super) async fn turn(&self) -> Turn<'_, T> {
        let begun = *self.begun.lock();
        let last = self.last.lock().await;
        if last.ended > begun {
            return Turn::Shared(last);
        }
        let mut count = self.begun.lock();
        *count += 1;
        Turn::Mine(Reading { number: *count, last })
    }

    /// What the last read found, once no read is under way.
    pub(super) async fn last(&self) -> MutexGuard<'_, Last<T>> {
        self.last.lock().await
    }
}

impl<T> Reading<'_, T> {
    pub(super) fn end(mut self) {
        self.last.ended = self.number;
    }
}

impl<T> Deref for Last<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.found
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.last.found
    }
}

impl<T> DerefMut for Reading<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.last.found
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, pin::Pin};

    use futures::FutureExt;

    use super::*;

    const CALLERS: usize = 3;
    /// What may happen to a caller: it goes on, or its task is dropped.
    const STEPS: usize = 2 * CALLERS;
    /// A caller has called, waited, read and ended after four steps at most; a drop is another one.
    const LENGTH: u32 = 7;

    type Caller<'a> = Pin<Box<dyn Future<Output = u64> + 'a>>;

    /// Reads what the world shows, in two halves, as a read of a database takes time. Returns the state of the world
    /// that the caller knows afterwards.
    async fn call(shared: &SharedRead<u64>, world: &Cell<u64>) -> u64 {
        match shared.turn().await {
            Turn::Shared(last) => **last,
            Turn::Mine(mut reading) => {
                let seen = world.get();
                tokio::task::yield_now().await;
                *reading = seen;
                reading.end();
                seen
            }
        }
    }

    /// Runs the callers in the order that `order` spells. The world changes before each step. Returns the number of
    /// callers that were answered.
    fn run(mut order: usize) -> usize {
        let (shared, world) = (SharedRead::default(), Cell::new(0));
        let mut callers: [Option<Caller<'_>>; CALLERS] = [const { None }; CALLERS];
        let (mut began, mut answered) = ([None; CALLERS], 0);
        for _ in 0..LENGTH {
            world.set(world.get() + 1);
            let (step, caller) = (order % STEPS, order % CALLERS);
            order /= STEPS;
            if step >= CALLERS {
                callers[caller] = None;
                continue;
            }
            if began[caller].is_none() {
                began[caller] = Some(world.get());
                callers[caller] = Some(Box::pin(call(&shared, &world)));
            }
            let Some(known) = callers[caller].as_mut().and_then(FutureExt::now_or_never) else { continue };
            callers[caller] = None;
            answered += 1;
            assert!(Some(known) >= began[caller], "caller {caller} came at {began:?} and knows {known}");
        }
        answered
    }

    #[test]
    fn each_caller_knows_what_the_world_showed_after_its_call_in_every_order_of_calls_reads_and_drops() {
        let answered: usize = (0..STEPS.pow(LENGTH)).map(run).sum();
        assert!(answered > 100_000, "{answered} calls were answered");
    }

    #[test]
    fn callers_that_wait_for_one_read_share_the_next() {
        let (shared, world) = (SharedRead::default(), Cell::new(1));
        let mut callers: Vec<Caller<'_>> = (0..3).map(|_| Box::pin(call(&shared, &world)) as Caller<'_>).collect();
        assert!(callers.iter_mut().all(|caller| caller.now_or_never().is_none()));
        world.set(2);
        let known: Vec<_> = callers.iter_mut().map(|caller| caller.now_or_never()).collect();
        assert_eq!(known, [Some(1), None, None], "the read began before the other two had seen its end");
        assert_eq!(callers[1].as_mut().now_or_never(), Some(2));
        assert_eq!((callers[2].as_mut().now_or_never(), *shared.begun.lock()), (Some(2), 2), "one read for both");
    }
}
