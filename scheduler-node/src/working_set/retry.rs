//! Repeats a write until each row of the batch is written or refused. All loops that repeat a write do so here.
//!
//! An outage says nothing about the rows, so the write is repeated. A refusal of the data never passes and says
//! nothing about the neighbours, so the batch is split until the refused row stands alone. The caller sets that row
//! aside (see [`super::set_aside`]). What looks like a bug is either of the two, and time tells them apart.
//!
//! A block or a file that the server cannot read is an outage, unless a neighbour passes: then a row may be at fault,
//! as with what looks like a bug. A caller that takes rows in doubt gets such a row back.
//!
//! A row that the archive has no partition for yet, as one of a queue with a new retention, delays no other: it goes
//! back to a caller that takes rows in doubt.
//!
//! A row that another transaction holds may stay so for minutes. A loop that writes tasks takes it out of the batch and
//! tries it again later.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::failures::Failures;
use crate::store::{Error, Fault};

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause: a database that is back is noticed within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The failures by contention after which a batch is split, and a single row goes back to a caller that takes rows in
/// doubt: what another transaction holds, a row or a partition, must not delay others.
const CONTENDED_TRIES: u32 = 3;

/// The failures that look like a bug after which a batch is split: a migration may be under way for some seconds.
const BUG_TRIES: u32 = 8;

/// The failures that look like a bug after which [`until_done`] refuses a single row although its neighbours fail too:
/// some two minutes. A failure of every row is the fault of the schema or the server, and must not set a whole stream
/// aside.
const BUG_TRIES_ALONE: u32 = 120;

/// The rows of a batch that fail alone and are in doubt, while no row has passed, after which the rest of the batch is
/// left as it is. In a trouble of the server every row fails, and a statement for each would only add to it.
pub const DOUBTS_ALONE: usize = 16;

/// The parts in doubt after which the rest of a batch is not divided any more where it meets contention, by a caller
/// that takes rows in doubt. Each statement waits 2 s for a lock. If all of 1,000 rows go into a locked partition, that
/// makes 27 statements in 54 s, and not an hour of them: a loop without progress for a minute counts as stalled.
const CONTENDED_ALONE: usize = 4;

/// A row that the database refuses.
#[derive(Debug)]
pub struct Refused<'a, I> {
    pub item: &'a I,
    pub error: Error,
}

/// The result of a batch that was written until every row was written or refused.
#[derive(Debug)]
pub struct Done<'a, I, T> {
    /// One answer for each statement that passed.
    pub answers: Vec<T>,
    pub refused: Vec<Refused<'a, I>>,
    /// The rows of parts that the database refused because a shard has moved to another one. Nothing of them is
    /// written; the caller divides them again by the places of their shards.
    pub moved: Vec<&'a I>,
    /// The rows that another transaction holds. They are not written; the caller tries them again later.
    pub held: Vec<&'a I>,
    /// The rows that are left of an outage. Some of them may be written. Empty without a limit of patience.
    pub away: Vec<&'a I>,
    /// The parts that fail with what looks like a bug or cannot be read, or again and again by contention that no lock
    /// of their rows explains, each with its error. The rows, the server or another transaction are at fault. Parts for
    /// which the archive has no partition are here too. Empty after [`until_done`], which refuses a row of the first
    /// kind.
    pub doubtful: Vec<(&'a [I], Error)>,
}

impl<I, T> Default for Done<'_, I, T> {
    fn default() -> Self {
        let (answers, refused, moved, held, away, doubtful) = Default::default();
        Self { answers, refused, moved, held, away, doubtful }
    }
}

impl<'a, I, T> Done<'a, I, T> {
    /// Takes the rows that are held out of `part`. Returns the parts between them.
    fn take_held(&mut self, part: &'a [I], held: &[bool]) -> Vec<&'a [I]> {
        self.held.extend(part.iter().zip(held).filter(|(_, is_held)| **is_held).map(|(item, _)| item));
        let mut begin = 0;
        let free = held.split(|is_held| *is_held).map(|free| {
            let part = &part[begin..begin + free.len()];
            begin += free.len() + 1;
            part
        });
        free.collect()
    }
}

/// The result of a batch that was tried once.
#[derive(Debug)]
pub struct Tried<'a, I, T> {
    pub answers: Vec<T>,
    pub refused: Vec<Refused<'a, I>>,
    /// The parts that an outage, contention or what looks like a bug kept from being written, each with its error.
    pub left: Vec<(&'a [I], Error)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Again,
    Split,
    Refuse,
    /// The row, the server or another transaction is at fault.
    Doubt,
}

/// Decides after a failure. `tries`: the failures of this part, this one included. `others_pass`: some rows of the
/// same batch were written. `gives_back`: the caller takes rows in doubt. `in_doubt`: the parts in doubt so far
/// because of contention.
fn next(fault: Fault, tries: u32, rows: usize, others_pass: bool, gives_back: bool, in_doubt: usize) -> Next {
    let stays_whole = rows == 1 || in_doubt >= CONTENDED_ALONE;
    let hopeless = match fault {
        Fault::Outage | Fault::Moved => return Next::Again,
        Fault::Contention if stays_whole && gives_back && tries >= CONTENDED_TRIES => return Next::Doubt,
        Fault::Contention => return if rows > 1 && tries >= CONTENDED_TRIES { Next::Split } else { Next::Again },
        Fault::Data => !seeded!(RefusalRepeated),
        Fault::Bug => tries >= if rows > 1 || others_pass || gives_back { BUG_TRIES } else { BUG_TRIES_ALONE },
    };
    match (hopeless, rows) {
        (false, _) => Next::Again,
        (true, 1) if fault == Fault::Bug && gives_back => Next::Doubt,
        (true, 1) => Next::Refuse,
        (true, _) => Next::Split,
    }
}

/// What has failed of a batch in a way that may concern some of its rows. If no row has passed until there is much of
/// one kind, all rows fail.
#[derive(Debug, Default)]
struct FailedParts {
    /// Parts. Their split goes level by level, so after twice [`DOUBTS_ALONE`] few are single rows yet.
    unreadable: usize,
    /// Single rows. Their split goes down to the rows first, so that one of the others passes soon. Many rows may lack
    /// a partition, and each large part has one of them.
    alone_without_partition: usize,
}

impl FailedParts {
    /// Decides after a part of so many `rows` has failed `tries` times ([`next`]).
    fn next<I, T>(&mut self, error: &Error, tries: u32, rows: usize, done: &Done<'_, I, T>, gives_back: bool) -> Next {
        let others_pass = !done.answers.is_empty();
        if gives_back && error.lacks_partition() {
            // It fails at once, and a pause would only delay the others.
            self.alone_without_partition += usize::from(rows == 1);
            let is_split = rows > 1 && (others_pass || self.alone_without_partition < DOUBTS_ALONE);
            return if is_split { Next::Split } else { Next::Doubt };
        }
        let in_doubt = done.doubtful.iter().filter(|(_, error)| error.is_contention()).count();
        self.unreadable += usize::from(error.is_unreadable_file() && tries >= BUG_TRIES);
        let may_be_a_row = gives_back && (others_pass || self.unreadable <= 2 * DOUBTS_ALONE);
        let fault = if may_be_a_row && error.is_unreadable_file() { Fault::Bug } else { error.fault() };
        next(fault, tries, rows, others_pass, gives_back, in_doubt)
    }
}

/// Writes `items` with `write` until each is written, refused, or belongs in another database. `what`
/// names them in the log, which has only the first failure. It waits for locks as long as others hold them, so it
/// suits rows that no application locks.
pub async fn until_done<'a, I, T, F>(what: &str, items: &'a [I], write: impl Fn(&'a [I]) -> F) -> Done<'a, I, T>
where
    F: Future<Output = Result<T, Error>>,
{
    repeat(what, items, None, None, |_| std::future::ready(Vec::new()), write).await
}

/// As [`until_done`], but leaves out the rows that another transaction holds. `held` finds out after contention, for
/// each row of a part; an empty answer means none. So one lock costs the batch one wait. Rows in doubt go back to the
/// caller too, so that one costs the others some seconds and not minutes (see [`super::suspects`]). These are rows that
/// fail as with a bug or cannot be read, and rows that meet a lock on more than themselves, such as on a partition of
/// the archive. Rows without a partition are among them. `patience`: after an outage of this time the rest goes back to
/// the caller; `None`: it waits for the end of the outage. `without_partition`: the caller's failures for want of a
/// partition, of which the log has only the first, as such rows come again in each pass.
pub async fn until_done_or_held<'a, I, T, F, H>(
    what: &str,
    items: &'a [I],
    patience: Option<Duration>,
    without_partition: &Failures,
    held: impl Fn(&'a [I]) -> H,
    write: impl Fn(&'a [I]) -> F,
) -> Done<'a, I, T>
where
    F: Future<Output = Result<T, Error>>,
    H: Future<Output = Vec<bool>>,
{
    repeat(what, items, patience, Some(without_partition), held, write).await
}

/// `without_partition`: as above; `None`: the caller takes no rows in doubt.
async fn repeat<'a, I, T, F, H>(
    what: &str,
    items: &'a [I],
    patience: Option<Duration>,
    without_partition: Option<&Failures>,
    held: impl Fn(&'a [I]) -> H,
    write: impl Fn(&'a [I]) -> F,
) -> Done<'a, I, T>
where
    F: Future<Output = Result<T, Error>>,
    H: Future<Output = Vec<bool>>,
{
    let mut done = Done::default();
    let mut parts: VecDeque<(&[I], u32)> = VecDeque::from([(items, 0)]);
    let (mut pause, mut logged, mut away_since) = (FIRST_PAUSE, false, None);
    let mut failed_parts = FailedParts::default();
    while let Some((part, failures)) = parts.pop_front() {
        if part.is_empty() {
            continue;
        }
        let error = match write(part).await {
            Ok(answer) => {
                done.answers.push(answer);
                (pause, away_since) = (FIRST_PAUSE, None);
                continue;
            }
            Err(error) if error.is_moved() => {
                done.moved.extend(part);
                continue;
            }
            Err(error) => error,
        };
        let is_known = error.lacks_partition() && without_partition.is_some_and(|lacking| !lacking.begin());
        if !is_known && !std::mem::replace(&mut logged, true) {
            tracing::warn!(database = %error.database, rows = items.len(), error = &error as &dyn std::error::Error, "{what} could not be written; retrying");
        }
        if error.fault() == Fault::Outage && !error.lacks_partition() {
            let since = *away_since.get_or_insert_with(Instant::now);
            if patience.is_some_and(|patience| since.elapsed() >= patience) {
                done.away.extend(part.iter().chain(parts.drain(..).flat_map(|(part, _)| part)));
                break;
            }
        }
        let held = if error.is_contention() { held(part).await } else { Vec::new() };
        if held.contains(&true) {
            parts.extend(done.take_held(part, &held).into_iter().map(|free| (free, 0)));
            continue;
        }
        match failed_parts.next(&error, failures + 1, part.len(), &done, without_partition.is_some()) {
            Next::Refuse => done.refused.push(Refused { item: &part[0], error }),
            Next::Doubt => done.doubtful.push((part, error)),
            // The first half is divided down to its rows before the second. That a lock delays many shows soon, and so
            // does a row with a partition among many without one.
            Next::Split if error.is_contention() || error.lacks_partition() => {
                let [before, after] = halves(part);
                parts.push_front((after, failures));
                parts.push_front((before, failures));
            }
            Next::Split => parts.extend(halves(part).map(|half| (half, failures))),
            Next::Again => {
                parts.push_back((part, failures + 1));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
    done
}

/// Tries each of `items` once; a refusal splits the batch. For loops that come back to the remaining rows by
/// themselves. What looks like a bug or cannot be read splits the batch too, but its row is left: the fault may be that
/// of the schema or the server (see [`super::suspects`]). So is a row that the archive has no partition for yet.
pub async fn try_each<'a, I, T, F>(items: &'a [I], write: impl Fn(&'a [I]) -> F) -> Tried<'a, I, T>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut tried = Tried { answers: Vec::new(), refused: Vec::new(), left: Vec::new() };
    if items.is_empty() {
        return tried;
    }
    let mut doubts_alone = 0;
    // Both halves are written before the first is split, so that a half without a fault passes early.
    let mut parts = vec![(items, write(items).await)];
    while let Some((part, written)) = parts.pop() {
        let error = match written {
            Ok(answer) => {
                tried.answers.push(answer);
                continue;
            }
            Err(error) => error,
        };
        let is_alone = part.len() == 1;
        let is_split = match error.fault() {
            Fault::Data if is_alone => {
                tried.refused.push(Refused { item: &part[0], error });
                continue;
            }
            Fault::Data => true,
            _ if error.may_concern_some_rows() => {
                doubts_alone += usize::from(is_alone);
                let others_pass = !tried.answers.is_empty() || parts.iter().any(|(_, written)| written.is_ok());
                !is_alone && (others_pass || doubts_alone < DOUBTS_ALONE)
            }
            Fault::Outage | Fault::Contention | Fault::Moved | Fault::Bug => false,
        };
        if is_split {
            let [before, after] = halves(part);
            let (before_written, after_written) = (write(before).await, write(after).await);
            parts.extend([(after, after_written), (before, before_written)]);
        } else {
            tried.left.push((part, error));
        }
    }
    tried
}

pub fn halves<I>(part: &[I]) -> [&[I]; 2] {
    let (before, after) = part.split_at(part.len() / 2);
    [before, after]
}

#[cfg(test)]
mod tests;
