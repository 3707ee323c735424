//! Memory for the bodies of requests and answers, which callers share. A request's body reserves it as bytes arrive and
//! frees it when the request is done and its tasks are stored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use common::wire::Problem;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    AROUND_PAYLOAD_BYTES,
    places::{Place, WaitPlaces},
};
use crate::until::until;

/// How long a body waits for memory. Meanwhile back-pressure keeps the client from sending more.
const FREE_WITHIN: Duration = Duration::from_secs(10);

/// A body of up to this size may use the reserve for small ones.
const SMALL_BYTES: usize = 2 << 20;
/// One part in this many of the memory is reserved for small bodies, so that large ones never keep a single task out.
const SMALL_PART: usize = 8;
/// One caller gets at most one part in this many.
const CALLER_PART: usize = 2;

/// A new body leaves one part in this many of its caller's share free. Begun bodies need it: parsed, a batch takes more
/// than its text. Otherwise many small bodies could all wait for one another. The smallest, of at most
/// [`AROUND_PAYLOAD_BYTES`], leave nothing: reports and heartbeats would wait behind the batches of their own caller.
const HEADROOM_PART: usize = 16;

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
    all: Reserved,
    by_caller: HashMap<Arc<str>, Reserved>,
    /// One for each body that waits and is counted so.
    wants: Vec<Want>,
}

/// The memory that a body needs besides what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Want {
    caller: Arc<str>,
    bytes: usize,
    is_small: bool,
}

/// What bodies have reserved.
#[derive(Clone, Copy, Debug, Default)]
struct Reserved {
    bytes: usize,
    /// Those of them whose bodies wait for more.
    waiting: usize,
}

impl Reserved {
    fn all_wait(self) -> bool {
        self.bytes == self.waiting
    }
}

impl Totals {
    fn add(&mut self, caller: &Arc<str>, bytes: usize, counts_for_all: bool) {
        self.all.bytes += if counts_for_all { bytes } else { 0 };
        self.by_caller.entry(Arc::clone(caller)).or_default().bytes += bytes;
    }

    fn of(&self, caller: &Arc<str>) -> Reserved {
        self.by_caller.get(caller).copied().unwrap_or_default()
    }

    /// A body begins to wait for what it wants. `reserved`: the bytes that it has.
    fn begin_wait(&mut self, want: Want, reserved: usize) {
        self.all.waiting += reserved;
        self.by_caller.entry(Arc::clone(&want.caller)).or_default().waiting += reserved;
        self.wants.push(want);
    }

    fn end_wait(&mut self, want: &Want, reserved: usize) {
        self.all.waiting -= reserved;
        if let Some(of_caller) = self.by_caller.get_mut(&want.caller) {
            of_caller.waiting -= reserved;
        }
        if let Some(index) = self.wants.iter().position(|other| other == want) {
            self.wants.swap_remove(index);
        }
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

    /// Memory for which a body waits as long as it takes.
    #[cfg(test)]
    pub(super) fn patient(bytes: usize) -> Self {
        Self { free_within: Duration::from_secs(3_600), ..Self::new(bytes) }
    }

    /// The memory of forms of sign-ins, whose callers are addresses. A stranger's form does not wait: meanwhile the
    /// node would hold what has arrived of it, which no share counts.
    pub(super) fn of_sign_ins() -> Self {
        Self { caller_part: ADDRESS_PART, free_within: Duration::ZERO, ..Self::new(SIGN_INS_BYTES) }
    }

    /// Whether the caller's share has room for a body that is small.
    pub(super) fn has_room(&self, caller: &Arc<str>) -> bool {
        let of_caller = self.taken.lock().of(caller).bytes;
        of_caller + SMALL_BYTES <= self.caller_share()
    }

    fn caller_share(&self) -> usize {
        self.bytes / self.caller_part
    }

    #[cfg(test)]
    pub(super) fn reserved_bytes(&self) -> usize {
        self.taken.lock().all.bytes
    }

    /// Adds what a body wants to what is `taken`. `headroom`: how much of the caller's share stays free.
    fn take(&self, taken: &mut Totals, want: &Want, headroom: usize) -> Result<(), Shortage> {
        self.fits(taken, want, headroom)?;
        taken.add(&want.caller, want.bytes, true);
        Ok(())
    }

    /// Whether there is room for it beside what is `taken`.
    fn fits(&self, taken: &Totals, want: &Want, headroom: usize) -> Result<(), Shortage> {
        let of_caller = taken.of(&want.caller).bytes;
        // A caller's only body has no other to leave room to.
        let headroom = if of_caller == 0 { 0 } else { headroom };
        if of_caller + want.bytes + headroom > self.caller_share() {
            return Err(Shortage::Caller);
        }
        let kept = if want.is_small { 0 } else { self.bytes / SMALL_PART };
        if taken.all.bytes + want.bytes > self.bytes - kept {
            return Err(Shortage::Total);
        }
        Ok(())
    }

    /// Whether all bodies that have reserved what is short wait themselves and none of them can go on, so that none
    /// frees it.
    fn is_stuck(&self, taken: &Totals, caller: &Arc<str>, shortage: Shortage) -> bool {
        let reserved = match shortage {
            Shortage::Total => taken.all,
            Shortage::Caller => taken.of(caller),
        };
        let has_reserved_it = |want: &&Want| shortage == Shortage::Total || want.caller == *caller;
        let can_go_on = |want: &Want| match self.fits(taken, want, 0) {
            // It is woken as well, and has yet to look.
            Ok(()) => true,
            // Bodies of other callers free it.
            Err(Shortage::Total) => !taken.all.all_wait(),
            Err(Shortage::Caller) => false,
        };
        reserved.all_wait() && !taken.wants.iter().filter(has_reserved_it).any(can_go_on)
    }

    fn give_back(&self, caller: &Arc<str>, bytes: usize, counts_for_all: bool) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.taken.lock();
        taken.all.bytes -= if counts_for_all { bytes } else { 0 };
        if let Some(of_caller) = taken.by_caller.get_mut(caller) {
            of_caller.bytes -= bytes;
            if of_caller.bytes == 0 {
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
            let want = Want { caller: Arc::clone(&caller), bytes, is_small: bytes <= SMALL_BYTES };
            memory.take(&mut memory.taken.lock(), &want, 0)?;
        } else {
            memory.taken.lock().add(&caller, bytes, false);
        }
        Ok(Self { memory: Arc::clone(memory), caller, bytes, counts_for_all: bounded })
    }

    /// Reserves memory up to `bytes`. Waits for it while another body may free some, at most for a while; then refuses
    /// the body.
    pub(super) async fn grow_to(&mut self, bytes: usize) -> Result<(), Problem> {
        self.grow_while_arriving(bytes, &WaitPlaces::default()).await
    }

    /// Like [`Self::grow_to`], for a body that is not whole yet: where none of the `places` is free, it does not wait.
    pub(super) async fn grow_while_arriving(&mut self, bytes: usize, places: &WaitPlaces) -> Result<(), Problem> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let within = self.memory.free_within;
        if self.bytes > 0 && bytes > self.memory.caller_share() {
            let detail = "the request takes more memory than one caller has here; send less at a time";
            return Err(Problem::payload_too_large(detail.to_owned()));
        }
        // A sign-in does not wait, and needs no more later.
        let begins = self.bytes == 0 && bytes > AROUND_PAYLOAD_BYTES && !within.is_zero();
        let headroom = if begins { self.memory.caller_share() / HEADROOM_PART } else { 0 };
        let mut wait =
            Wait { body: self, more, headroom, places, place: None, waiting: 0, taken: Err(Shortage::Total) };
        if within.is_zero() {
            wait.ends();
        } else {
            // What it saw last is the outcome, also when it has waited for too long.
            let _ = tokio::time::timeout(within, until(|| self.memory.freed.notified(), || wait.ends())).await;
        }
        let taken = wait.taken;
        drop(wait);
        taken.map_err(refused)?;
        self.bytes += more;
        Ok(())
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

fn refused(shortage: Shortage) -> Problem {
    let problem = match shortage {
        Shortage::Caller => {
            let detail = "the caller's other requests in flight are too large together; this one was not accepted";
            Problem::too_many(detail)
        }
        Shortage::Total => Problem::unavailable("too many large requests at once; this one was not accepted"),
    };
    problem.retry_after(AGAIN_AFTER_S)
}

/// One body's wait for more memory. Meanwhile it keeps what it has, so bodies that all wait would stand still: of them
/// the one that sees it is refused. The last that begins to wait sees it at once, and each that is woken looks again.
/// So those that wait need not hear of another that begins to.
struct Wait<'a> {
    body: &'a Reservation,
    more: usize,
    /// How much of the caller's share stays free.
    headroom: usize,
    places: &'a WaitPlaces,
    /// Its own, once it has had to wait.
    place: Option<Place<'a>>,
    /// What the body has reserved, as long as it is counted as waiting.
    waiting: usize,
    /// What the last look has brought.
    taken: Result<(), Shortage>,
}

impl Wait<'_> {
    fn want(&self) -> Want {
        let Reservation { caller, bytes: reserved, .. } = self.body;
        Want { caller: Arc::clone(caller), bytes: self.more, is_small: reserved + self.more <= SMALL_BYTES }
    }

    /// Takes the memory, or sees that none will be freed or that no place is free. `None`: the body has to wait.
    fn ends(&mut self) -> Option<()> {
        let Reservation { memory, bytes: reserved, .. } = self.body;
        let want = self.want();
        let mut totals = memory.taken.lock();
        self.taken = memory.take(&mut totals, &want, self.headroom);
        let Err(shortage) = self.taken else { return Some(()) };
        let places = self.places;
        self.place = self.place.take().or_else(|| places.take());
        if self.place.is_none() {
            return Some(());
        }
        // A body that has reserved nothing keeps no other waiting, and those that have look for themselves.
        if *reserved == 0 {
            return None;
        }
        if self.waiting == 0 {
            self.waiting = *reserved;
            totals.begin_wait(want.clone(), *reserved);
        }
        if !memory.is_stuck(&totals, &want.caller, shortage) {
            return None;
        }
        // Under the same lock, so that no second one leaves for the same reason before this one has freed its memory.
        totals.end_wait(&want, std::mem::take(&mut self.waiting));
        Some(())
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.waiting > 0 {
            self.body.memory.taken.lock().end_wait(&self.want(), self.waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tokio::time::Instant;

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
        assert_eq!((taken.all.bytes, taken.all.waiting, taken.by_caller.len()), (0, 0, 0));
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

    #[tokio::test(start_paused = true)]
    async fn bodies_that_all_hold_memory_and_wait_for_more_do_not_stand_still() {
        // All of one caller, and of two callers whose shares have room where the whole has none.
        for (memory_bytes, callers, bodies, short) in [(128 * MIB, 1, 16, 429), (64 * MIB, 2, 14, 503)] {
            let memory = Arc::new(BodyMemory::new(memory_bytes));
            let of = |nth: usize| Reservation::none(&memory, format!("caller {}", nth % callers).into());
            let mut begun: Vec<_> = (0..bodies).map(of).collect();
            for bytes in [MIB, 4 * MIB] {
                for reserved in &mut begun {
                    assert_eq!(status(reserved, bytes).await, 200);
                }
            }
            let began = Instant::now();
            let grown = begun.into_iter().map(|mut reserved| async move { status(&mut reserved, 8 * MIB).await });
            let statuses = join_all(grown).await;
            let with = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
            assert_eq!((with(short), with(200)), (1, bodies - 1), "{statuses:?}");
            assert_eq!(began.elapsed(), Duration::ZERO, "none waits until others give up");
            let taken = memory.taken.lock();
            assert_eq!((taken.all.bytes, taken.all.waiting, taken.by_caller.len()), (0, 0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_refused_while_others_that_wait_can_go_on() {
        // MiB of all memory, what bodies have reserved and want, and what another one has and frees. The first body to
        // look after that finds no room, but another one does; and a body waits for one that others will let go on.
        let cases = [
            (160, &[("a", 32, 32), ("a", 8, 8), ("a", 20, 20)][..], ("a", 20)),
            (64, &[("a", 14, 4), ("a", 14, 14)][..], ("b", 28)),
        ];
        for (all, bodies, stored) in cases {
            let memory = Arc::new(BodyMemory::new(all * MIB));
            let begun = async |caller: &str, size: usize| {
                let mut reserved = Reservation::none(&memory, caller.into());
                assert_eq!(status(&mut reserved, MIB).await, 200);
                assert_eq!(status(&mut reserved, size * MIB).await, 200);
                reserved
            };
            let mut grown = Vec::new();
            for (caller, size, more) in bodies {
                let mut reserved = begun(caller, *size).await;
                grown.push(async move { status(&mut reserved, (size + more) * MIB).await });
            }
            let stored = begun(stored.0, stored.1).await;
            let (statuses, ()) = tokio::join!(join_all(grown), async { drop(stored) });
            assert_eq!(statuses, vec![200; bodies.len()]);
            assert!(memory.taken.lock().wants.is_empty());
        }
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

    #[tokio::test]
    async fn a_small_body_passes_beside_large_ones_of_its_caller() {
        let memory = memory();
        let of = || Reservation::none(&memory, "a".into());
        let (mut first, mut large) = (of(), of());
        assert_eq!(status(&mut first, 62 * MIB).await, 200);
        assert_eq!(status(&mut of(), 300).await, 200);
        assert_eq!(status(&mut large, MIB).await, 429, "it leaves room to the first");
    }
}
