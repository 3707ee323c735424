//! The lines of one task, without the names that tell it from others: nodes and epochs become small numbers.
//!
//! A node writes a step's line when it has the answer of PostgreSQL or of RabbitMQ. Its dispatches, each request of a
//! client for one task, and its other statements take different connections. So between them the order of the lines
//! tells nothing: the next attempt may be claimed before the answer that says that the one before has failed. They are
//! streams of their own. So a rescue after the task's end is accepted here, as one before it; the judge of the
//! deliveries sees what comes of it.

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
    /// From here on the node may have made statements other than dispatches that no line tells.
    Doubt,
    /// From here on the node may have taken steps of dispatches that no line tells.
    DispatchDoubt,
}

impl Event {
    /// Whether the step is one of a dispatch: each of them begins after the one before it has its answer.
    const fn is_of_dispatch(self) -> bool {
        match self {
            Self::Claimed { .. } | Self::Rescued { .. } | Self::Published(_) | Self::Confirmed(_) => true,
            Self::Unfit(_) | Self::Returned(_) | Self::NotConfirmed(_) | Self::DispatchDoubt => true,
            Self::Submitted | Self::Failed(_) | Self::Succeeded(_) | Self::Dead(_) | Self::Cancelled(_) => false,
            Self::Expired | Self::Revived | Self::Released | Self::Doubt => false,
        }
    }

    /// Whether the step is what a client asked for one task: it waits for no other step, and no other one waits for it.
    const fn is_of_request(self) -> bool {
        matches!(self, Self::Cancelled(_) | Self::Revived)
    }
}

/// What is noted where a node may have taken steps without a line.
const DOUBTS: [Event; 2] = [Event::Doubt, Event::DispatchDoubt];

/// Lines of one start of a node whose order is the order of their steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stream {
    /// The number of the start among those of the task.
    pub(super) node: usize,
    pub(super) events: Vec<Line>,
}

/// A line of one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Line {
    /// Its place among all lines of the task that its start wrote: nearly always the order of the steps.
    pub(super) place: usize,
    pub(super) event: Event,
}

impl Stream {
    const fn of(node: usize) -> Self {
        Self { node, events: Vec::new() }
    }
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

/// The streams of a task. Each start that has lines of it has one for dispatches, one for each request, and one for the
/// rest. One more is for all other starts that may have taken steps without a line.
pub(super) fn streams_of(starts: &[Start], lines: &BTreeMap<usize, Vec<usize>>) -> Vec<Stream> {
    let epochs = epochs_of(starts, lines);
    let place_of = |epoch: &i64| epochs.iter().position(|known| known == epoch).unwrap_or_default();
    let (mut streams, mut nodes, mut has_stranger) = (Vec::new(), 0, false);
    for (number, start) in starts.iter().enumerate() {
        let in_doubt = doubt(start);
        let Some(places) = lines.get(&number) else {
            has_stranger |= in_doubt.is_some();
            continue;
        };
        let [mut dispatch, mut others] = [Stream::of(nodes), Stream::of(nodes)];
        let mut events = Vec::new();
        let mut doubt_at = in_doubt;
        for place in places {
            if doubt_at.is_some_and(|at| at < *place) {
                events.extend(DOUBTS);
                doubt_at = None;
            }
            events.extend(event(&start.lines[*place].step, |epoch| rank(place_of(epoch))));
        }
        if doubt_at.is_some() {
            events.extend(DOUBTS);
        }
        for (place, event) in events.into_iter().enumerate() {
            let line = Line { place, event };
            match event {
                event if event.is_of_dispatch() => dispatch.events.push(line),
                event if event.is_of_request() => streams.push(Stream { node: nodes, events: vec![line] }),
                _ => others.events.push(line),
            }
        }
        streams.extend([dispatch, others].into_iter().filter(|stream| !stream.events.is_empty()));
        nodes += 1;
    }
    if has_stranger {
        let lines = DOUBTS.into_iter().enumerate().map(|(place, event)| Line { place, event });
        streams.push(Stream { node: nodes, events: lines.collect() });
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
pub(super) fn doubt(start: &Start) -> Option<usize> {
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
