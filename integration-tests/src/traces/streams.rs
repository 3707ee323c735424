//! The lines of one task, without the names that tell it from others: nodes and epochs become small numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::read::{Start, Step};

/// A step of the task, as a node saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Submitted,
    /// `epoch`: the rank among the epochs of the shard that the run shows, see [`rank`].
    Claimed {
        attempt: u8,
        epoch: u8,
    },
    Rescued {
        attempt: u8,
        epoch: u8,
    },
    Published(u8),
    Confirmed(u8),
    /// Not sent, because it fits no format.
    Unfit(u8),
    Returned(u8),
    /// Nacked, or of unknown outcome.
    NotConfirmed(u8),
    Failed(u8),
    Succeeded(u8),
    /// Ended in any other way than with a success.
    Dead(u8),
    Cancelled(u8),
    Expired,
    Revived,
    Released,
    /// From here on the node may have taken steps that no line tells.
    Doubt,
}

/// The lines of one start of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    pub(super) events: Vec<Event>,
}

/// The rank of the epoch in this place. Ranks in between are for owners that no line tells.
pub(super) const fn rank(place: usize) -> u8 {
    (place as u8).saturating_mul(2) + 2
}

/// The lines of each task, by the number of their start.
pub(super) fn tasks_of(starts: &[Start]) -> BTreeMap<&str, BTreeMap<usize, Vec<usize>>> {
    let mut tasks: BTreeMap<&str, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for (number, start) in starts.iter().enumerate() {
        for (place, line) in start.lines.iter().enumerate() {
            if let Some(task) = line.step.task() {
                tasks.entry(task).or_default().entry(number).or_default().push(place);
            }
        }
    }
    tasks
}

/// The streams of a task: one for each start that has lines of it or left a claim possible, and one more for all others
/// that may have taken steps without a line.
pub(super) fn streams_of(starts: &[Start], lines: &BTreeMap<usize, Vec<usize>>) -> Vec<Stream> {
    let epochs = epochs_of(starts, lines);
    let place_of = |epoch: &i64| epochs.iter().position(|known| known == epoch).unwrap_or_default();
    let mut streams = Vec::new();
    let mut has_stranger = false;
    for (number, start) in starts.iter().enumerate() {
        let in_doubt = doubt(start);
        let Some(places) = lines.get(&number) else {
            has_stranger |= in_doubt.is_some();
            continue;
        };
        let mut stream = Stream::default();
        let mut doubt_at = in_doubt;
        for place in places {
            if doubt_at.is_some_and(|at| at < *place) {
                stream.events.push(Event::Doubt);
                doubt_at = None;
            }
            let step = &start.lines[*place].step;
            stream.events.extend(event(step, |epoch| rank(place_of(epoch))));
        }
        if doubt_at.is_some() {
            stream.events.push(Event::Doubt);
        }
        streams.push(stream);
    }
    if has_stranger {
        streams.push(Stream { events: vec![Event::Doubt] });
    }
    streams
}

/// The epochs under which the task was claimed.
fn epochs_of(starts: &[Start], lines: &BTreeMap<usize, Vec<usize>>) -> Vec<i64> {
    let steps = lines.iter().flat_map(|(start, places)| places.iter().map(|place| &starts[*start].lines[*place].step));
    let epochs: BTreeSet<i64> = steps
        .filter_map(|step| match step {
            Step::Claimed { epoch, .. } | Step::Rescued { epoch, .. } => Some(*epoch),
            _ => None,
        })
        .collect();
    epochs.into_iter().collect()
}

/// The place of the first line after which the node may have taken steps without one.
fn doubt(start: &Start) -> Option<usize> {
    let told = start.lines.iter().position(|line| line.step.leaves_doubt());
    told.or_else(|| (!start.is_whole).then_some(start.lines.len()))
}

fn event(step: &Step, rank: impl Fn(&i64) -> u8) -> Option<Event> {
    Some(match step {
        Step::Submitted { .. } => Event::Submitted,
        Step::Claimed { attempt, epoch, .. } => Event::Claimed { attempt: *attempt, epoch: rank(epoch) },
        Step::Rescued { attempt, epoch, .. } => Event::Rescued { attempt: *attempt, epoch: rank(epoch) },
        Step::Published { attempt, .. } => Event::Published(*attempt),
        Step::Confirmed { attempt, .. } => Event::Confirmed(*attempt),
        Step::Unfit { attempt, .. } => Event::Unfit(*attempt),
        Step::Returned { attempt, .. } => Event::Returned(*attempt),
        Step::Nacked { attempt, .. } | Step::Unknown { attempt, .. } => Event::NotConfirmed(*attempt),
        Step::Failed { attempt, .. } => Event::Failed(*attempt),
        Step::Finished { attempt, outcome, .. } if outcome == "succeeded" => Event::Succeeded(*attempt),
        Step::Finished { attempt, .. } => Event::Dead(*attempt),
        Step::Cancelled { attempt, .. } => Event::Cancelled(*attempt),
        Step::Expired { .. } => Event::Expired,
        Step::Revived { .. } => Event::Revived,
        Step::Released { .. } => Event::Released,
        _ => return None,
    })
}
