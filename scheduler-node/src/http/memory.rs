//! Memory for the bodies of requests and answers, which callers share. A request's body reserves it as bytes arrive and
//! frees it when the request is done and its tasks are stored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use common::wire::Problem;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::until::until;

/// How long a body waits for memory. Meanwhile back-pressure keeps the client from sending more.
const FREE_WITHIN: Duration = Duration::from_secs(10);

/// A body of up to this size may use the reserve for small ones.
const SMALL_BYTES: usize = 2 << 20;
/// One part in this many of the memory is reserved for small bodies, so that large ones never keep a single task out.
const SMALL_PART: usize = 8;
/// One caller gets at most one part in this many.
const CALLER_PART: usize = 2;

/// A body that begins leaves one part in this many of its caller's memory to those that have begun and need more:
/// parsed, a batch takes more than its text. Else bodies of up to 1 MiB, which take the memory for their text at once,
/// would wait for one another.
const LEFT_PART: usize = 16;

/// The memory of all forms of sign-ins: those of 8 addresses that take all they can.
const SIGN_INS_BYTES: usize = 32 << 20;
/// One address gets at most one part in this many: 512 of the largest forms. Everybody may come through one proxy.
const ADDRESS_PART: usize = 8;

/// `Retry-After` of a refusal, in seconds.
const AGAIN_AFTER_S: u32 = 1;

#[derive(Debug)]
pub(crate) struct BodyMemory {
    bytes: usize,
    /// One caller gets at most one part in this many.
    caller_part: usize,
    /// How long a body waits for memory; zero: it is refused at once.
    free_within: Duration,
    taken: Mutex<Totals>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Totals {
    bytes: usize,
    by_caller: HashMap<Arc<str>, usize>,
}

impl Totals {
    fn add(&mut self, caller: &Arc<str>, bytes: usize, counts_for_all: bool) {
        self.bytes += if counts_for_all { bytes } else { 0 };
        *self.by_caller.entry(Arc::clone(caller)).or_default() += bytes;
    }
}

/// Why there is no memory at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// All bodies together take too much.
    Total,
    /// The bodies of the caller take too much.
    Caller,
}

impl BodyMemory {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            caller_part: CALLER_PART,
            free_within: FREE_WITHIN,
            taken: Mutex::default(),
            freed: Notify::new(),
        }
    }

    /// The memory of forms of sign-ins, whose callers are addresses. A stranger's form does not wait: meanwhile the
    /// node would hold what has arrived of it, which no share counts.
    pub(super) fn of_sign_ins() -> Self {
        Self { caller_part: ADDRESS_PART, free_within: Duration::ZERO, ..Self::new(SIGN_INS_BYTES) }
    }

    /// Whether the caller's share has room for a body that is small.
    pub(super) fn has_room(&self, caller: &Arc<str>) -> bool {
        let of_caller = self.taken.lock().by_caller.get(caller).copied().unwrap_or(0);
        of_caller + SMALL_BYTES <= self.of_one_caller()
    }

    fn of_one_caller(&self) -> usize {
        self.bytes / self.caller_part
    }

    #[cfg(test)]
    pub(super) fn reserved_bytes(&self) -> usize {
        self.taken.lock().bytes
    }

    /// `left`: how much of the caller's share stays free.
    fn take(&self, caller: &Arc<str>, bytes: usize, is_small: bool, left: usize) -> Result<(), Shortage> {
        let mut taken = self.taken.lock();
        let of_caller = taken.by_caller.get(caller).copied().unwrap_or(0);
        // A caller's only body has no other to leave room to.
        let left = if of_caller == 0 { 0 } else { left };
        if of_caller + bytes + left > self.of_one_caller() {
            return Err(Shortage::Caller);
        }
        let kept = if is_small { 0 } else { self.bytes / SMALL_PART };
        if taken.bytes + bytes > self.bytes - kept {
            return Err(Shortage::Total);
        }
        taken.add(caller, bytes, true);
        Ok(())
    }

    fn give_back(&self, caller: &Arc<str>, bytes: usize, counts_for_all: bool) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.taken.lock();
        taken.bytes -= if counts_for_all { bytes } else { 0 };
        if let Some(of_caller) = taken.by_caller.get_mut(caller) {
            *of_caller -= bytes;
            if *of_caller == 0 {
                taken.by_caller.remove(caller);
            }
        }
        drop(taken);
        self.freed.notify_waiters();
    }
}

/// The memory that one body has reserved; freed on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Arc<BodyMemory>,
    caller: Arc<str>,
    bytes: usize,
    /// Whether it leaves less for other callers.
    counts_for_all: bool,
}

impl Reservation {
    pub(super) fn none(memory: &Arc<BodyMemory>, caller: Arc<str>) -> Self {
        Self { memory: Arc::clone(memory), caller, bytes: 0, counts_for_all: true }
    }

    /// Reserves memory without a wait. If it is not `bounded`, there is always some, at the cost of the caller alone.
    pub(super) fn at_once(
        memory: &Arc<BodyMemory>,
        caller: Arc<str>,
        bytes: usize,
        bounded: bool,
    ) -> Result<Self, Shortage> {
        if bounded {
            memory.take(&caller, bytes, bytes <= SMALL_BYTES, 0)?;
        } else {
            memory.taken.lock().add(&caller, bytes, false);
        }
        Ok(Self { memory: Arc::clone(memory), caller, bytes, counts_for_all: bounded })
    }

    /// Reserves memory up to `bytes`. Waits for it for a while, then refuses the body.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let within = self.memory.free_within;
        if self.bytes > 0 && bytes > self.memory.of_one_caller() {
            let detail = "the request takes more memory than one caller has here; send less at a time";
            return Err(Problem::payload_too_large(detail.to_owned()));
        }
        // A sign-in does not wait, and needs no more later.
        let begins = self.bytes == 0 && !within.is_zero();
        let left = if begins { self.memory.of_one_caller() / LEFT_PART } else { 0 };
        let take = || self.memory.take(&self.caller, more, bytes <= SMALL_BYTES, left).ok();
        let is_taken = if within.is_zero() {
            take().is_some()
        } else {
            tokio::time::timeout(within, until(|| self.memory.freed.notified(), take)).await.is_ok()
        };
        if !is_taken {
            return Err(self.refusal(more, bytes, left));
        }
        self.bytes += more;
        Ok(())
    }

    fn refusal(&self, more: usize, bytes: usize, left: usize) -> Problem {
        let full = self.memory.take(&self.caller, more, bytes <= SMALL_BYTES, left);
        if full.is_ok() {
            // The memory has just been freed. The request is refused all the same, because its client may be gone.
            self.memory.give_back(&self.caller, more, true);
        }
        let problem = match full {
            Err(Shortage::Caller) => Problem::too_many(
                "the caller's other requests in flight are too large together; this one was not accepted",
            ),
            _ => Problem::unavailable("too many large requests at once; this one was not accepted"),
        };
        problem.retry_after(AGAIN_AFTER_S)
    }

    /// Frees everything beyond `bytes`.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let needless = self.bytes.saturating_sub(bytes);
        self.memory.give_back(&self.caller, needless, self.counts_for_all);
        self.bytes -= needless;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.give_back(&self.caller, self.bytes, self.counts_for_all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn memory() -> Arc<BodyMemory> {
        Arc::new(BodyMemory { free_within: Duration::from_millis(1), ..BodyMemory::new(128 * MIB) })
    }

    async fn status(reserved: &mut Reservation, bytes: usize) -> u16 {
        reserved.grow_to(bytes).await.map_or_else(|problem| problem.status, |()| 200)
    }

    #[tokio::test]
    async fn one_caller_has_its_share_and_leaves_the_rest_to_others() {
        let memory = memory();
        let of = |caller: &str| Reservation::none(&memory, caller.into());
        let (mut first, mut second) = (of("greedy"), of("greedy"));
        assert_eq!(status(&mut first, 60 * MIB).await, 200);
        assert_eq!(status(&mut second, 5 * MIB).await, 429);
        let mut other = of("other");
        assert_eq!(status(&mut other, 50 * MIB).await, 200);
        assert_eq!(status(&mut of("third"), 10 * MIB).await, 503, "the room is full but for small bodies");
        assert_eq!(status(&mut of("third"), MIB).await, 200);
        first.shrink_to(MIB);
        assert_eq!(status(&mut second, 5 * MIB).await, 200, "the caller's own room is free again");
        drop((first, second, other));
        let taken = memory.taken.lock();
        assert_eq!((taken.bytes, taken.by_caller.len()), (0, 0));
    }

    #[tokio::test]
    async fn a_body_waits_until_there_is_room() {
        let memory = Arc::new(BodyMemory { free_within: Duration::from_secs(60), ..BodyMemory::new(8 * MIB) });
        let mut first = Reservation::none(&memory, "a".into());
        first.grow_to(3 * MIB).await.expect("room");
        let mut second = Reservation::none(&memory, "a".into());
        let (taken, ()) = tokio::join!(second.grow_to(3 * MIB), async { drop(first) });
        taken.expect("room");
    }

    #[tokio::test]
    async fn a_body_that_begins_leaves_room_to_one_that_needs_more_unless_no_room_is_enough() {
        let memory = memory();
        let of = || Reservation::none(&memory, "a".into());
        let (mut first, mut second) = (of(), of());
        assert_eq!(status(&mut first, 58 * MIB).await, 200);
        assert_eq!(status(&mut second, 3 * MIB).await, 429);
        assert_eq!(status(&mut first, 64 * MIB).await, 200);
        assert_eq!(status(&mut first, 65 * MIB).await, 413, "it would wait for itself");
    }
}
