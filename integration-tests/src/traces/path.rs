//! Searches for a path of the model of claims that has the lines of each stream in their order.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

use stateright::Model;

use super::streams::{Event, Stream};
use crate::models::claim::{
    Claims,
    state::{
        Action, Bounds, Kind,
        Place::{Dead, Delivered, Dispatching, Scheduled},
        State, Statement, Work,
    },
};

/// The most places that one search visits: some tenths of a second. Runs need a few dozen.
const VISITED: usize = 20_000;

/// The most attempts of a task that the search follows: the model notes each in a bit.
const ATTEMPTS: u8 = 30;

/// The copies of an attempt and the statements that may be under way without a line.
const UNTOLD: u8 = 2;

/// What became of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Path,
    /// The lines cannot be put in any order that the model allows. `stuck`: the steps after the longest part that can.
    NoPath {
        stuck: Vec<String>,
    },
    /// The search reached its bound.
    Undecided,
}

/// A part of the lines that the model allows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Point {
    /// How many lines of each stream are done.
    done: Vec<usize>,
    /// The nodes that may have taken steps of dispatches without a line, one bit each.
    free: u64,
    /// Whether any node may have made other statements without a line.
    in_doubt: bool,
    state: State,
}

/// Compares the lines of one task with the model.
pub(super) fn check(streams: &[Stream]) -> Verdict {
    let search = Search::new(streams);
    if search.bounds.attempts > ATTEMPTS || search.bounds.nodes > 60 {
        return Verdict::Undecided;
    }
    let state = search.model.init_states().swap_remove(0);
    let begin = Point { done: vec![0; streams.len()], free: 0, in_doubt: false, state };
    let mut open = vec![search.past_free_lines(begin)];
    let mut visited: HashSet<Point> = open.iter().cloned().collect();
    let mut furthest = open[0].clone();
    while let Some(point) = open.pop() {
        if search.is_end(&point) {
            return Verdict::Path;
        }
        if point.done.iter().sum::<usize>() > furthest.done.iter().sum() {
            furthest = point.clone();
        }
        // The last one is tried first: lines before steps without one.
        for next in search.untold(&point).into_iter().chain(search.told(&point)) {
            if visited.len() >= VISITED {
                return Verdict::Undecided;
            }
            let next = search.past_free_lines(next);
            if search.holds(&next.state) && visited.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    let heads = streams.iter().zip(&furthest.done).filter_map(|(stream, done)| stream.events.get(*done));
    Verdict::NoPath { stuck: heads.map(|line| format!("{:?}", line.event)).collect() }
}

struct Search<'a> {
    streams: &'a [Stream],
    bounds: Bounds,
    model: Claims,
    /// The owner under each epoch that a line names.
    owners: BTreeMap<u8, usize>,
}

impl<'a> Search<'a> {
    fn new(streams: &'a [Stream]) -> Self {
        let (mut attempts, mut last, mut owners, mut copies) = (1, 0, BTreeMap::new(), UNTOLD);
        for stream in streams {
            for line in &stream.events {
                match line.event {
                    Event::Claimed { attempt, epoch } | Event::Rescued { attempt, epoch } => {
                        owners.insert(epoch, stream.node);
                        attempts = attempts.max(attempt);
                    }
                    Event::Published(attempt) | Event::Unfit(attempt) => {
                        (attempts, copies) = (attempts.max(attempt), copies.saturating_add(1));
                    }
                    Event::Dead(attempt) if attempt <= ATTEMPTS => last |= 1 << attempt,
                    Event::Failed(attempt) | Event::Cancelled(attempt) | Event::Succeeded(attempt) => {
                        attempts = attempts.max(attempt);
                    }
                    _ => {}
                }
            }
        }
        // The model revives a dead task only while an attempt is left.
        let is_revived = streams.iter().flat_map(|stream| &stream.events).any(|line| line.event == Event::Revived);
        attempts = attempts.saturating_add(u8::from(is_revived));
        let bounds = Bounds {
            nodes: streams.iter().map(|stream| stream.node + 1).max().unwrap_or(0),
            attempts,
            epochs: owners.last_key_value().map_or(1, |(epoch, _)| epoch.saturating_add(1)),
            copies,
            statements: usize::from(copies) + usize::from(UNTOLD),
            last,
            ends_at_end: false,
        };
        Self { streams, bounds, model: Claims::within(bounds), owners }
    }

    /// The point after all lines that are next in their streams and forbid nothing: submissions, and doubts, which only
    /// allow more. A path that has them later is also one that has them at once, so no other place is searched.
    fn past_free_lines(&self, mut point: Point) -> Point {
        for (number, stream) in self.streams.iter().enumerate() {
            while let Some(line) = stream.events.get(point.done[number]) {
                match line.event {
                    Event::Submitted => {}
                    Event::Doubt => point.in_doubt = true,
                    Event::DispatchDoubt => point.free |= 1 << stream.node,
                    _ => break,
                }
                point.done[number] += 1;
            }
        }
        point
    }

    fn is_end(&self, point: &Point) -> bool {
        self.streams.iter().zip(&point.done).all(|(stream, done)| *done == stream.events.len())
    }

    /// Whether the invariants hold. G1 is about what may come, so no line can break it.
    fn holds(&self, state: &State) -> bool {
        let properties = self.model.properties();
        let mut rules = properties.iter().filter(|property| !property.name.starts_with("G1 "));
        rules.all(|property| (property.condition)(&self.model, state))
    }

    /// The state after an action, if the model allows it.
    fn after(&self, state: &State, action: Action) -> Option<State> {
        let mut actions = Vec::new();
        self.model.actions(state, &mut actions);
        if actions.contains(&action) { self.model.next_state(state, action) } else { None }
    }

    fn after_all(&self, state: &State, actions: &[Action]) -> Option<State> {
        actions.iter().try_fold(state.clone(), |state, action| self.after(&state, *action))
    }

    /// The points after the next line of each stream. The last ones are tried first: of a node, the line that it wrote
    /// first.
    fn told(&self, point: &Point) -> Vec<Point> {
        let heads = self.streams.iter().enumerate().filter_map(|(number, stream)| {
            let line = stream.events.get(point.done[number])?;
            Some((stream.node, line.place, number, line.event))
        });
        let mut heads: Vec<_> = heads.collect();
        heads.sort_unstable_by_key(|(node, place, ..)| (*node, Reverse(*place)));
        let mut next = Vec::new();
        for (node, _, number, event) in heads {
            let mut after = point.clone();
            after.done[number] += 1;
            let states = self.by_line(&point.state, point.in_doubt, node, event);
            next.extend(states.into_iter().map(|state| Point { state, ..after.clone() }));
        }
        next
    }

    fn by_line(&self, state: &State, in_doubt: bool, node: usize, event: Event) -> Vec<State> {
        let same = || vec![state.clone()];
        let one = |state: Option<State>| state.into_iter().collect();
        match event {
            // Passed already.
            Event::Submitted | Event::Doubt | Event::DispatchDoubt => same(),
            Event::Claimed { attempt, epoch } if state.nodes[node].epoch == epoch => {
                one(self.taken(state, node, Kind::Claim, attempt))
            }
            Event::Rescued { attempt, epoch } if state.nodes[node].epoch == epoch => {
                one(self.taken(state, node, Kind::Rescue, attempt))
            }
            Event::Claimed { .. } | Event::Rescued { .. } => Vec::new(),
            Event::Published(attempt) => one(self.published(state, node, attempt)),
            Event::Confirmed(attempt) => one(self.confirmed(state, node, attempt)),
            Event::Unfit(attempt) => {
                let sent = self.published(state, node, attempt);
                one(sent.and_then(|sent| self.after_all(&sent, &[Action::Arrive(attempt), Action::Unknown(node)])))
            }
            Event::Returned(attempt) => {
                let arrived = self.arrived(state, attempt);
                one(arrived.and_then(|state| self.not_confirmed(&state, node, attempt)))
            }
            Event::NotConfirmed(attempt) => one(self.not_confirmed(state, node, attempt)),
            Event::Failed(attempt) => one(self.rejected(state, attempt).filter(|next| next.place == Scheduled)),
            Event::Dead(attempt) => one(self.rejected(state, attempt).filter(|next| next.place == Dead)),
            Event::Succeeded(attempt) if state.attempt == attempt => self.succeeded(state),
            Event::Cancelled(attempt) if state.attempt == attempt => one(self.after(state, Action::Cancel)),
            Event::Succeeded(_) | Event::Cancelled(_) => Vec::new(),
            Event::Expired => one(self.after(state, Action::Cancel)),
            Event::Revived if in_doubt && state.place == Scheduled => same(),
            Event::Revived => one(self.after(state, Action::Revive)),
            Event::Released if state.place == Scheduled && state.attempt == 0 => same(),
            Event::Released => Vec::new(),
        }
    }

    /// The points after one step that no line tells: of PostgreSQL, of a new owner, or of a node in doubt.
    fn untold(&self, point: &Point) -> Vec<Point> {
        let state = &point.state;
        let mut states: Vec<State> = Vec::new();
        states.extend(self.taken_over(state));
        for (place, statement) in state.statements.iter().enumerate() {
            if matches!(statement, Some(statement) if matches!(statement.kind, Kind::Deliver(_))) {
                states.extend(self.after(state, Action::Write(place)));
            }
        }
        for node in (0..self.bounds.nodes).filter(|node| point.free & (1 << node) != 0) {
            self.by_free_node(state, node, &mut states);
        }
        if point.in_doubt {
            states.extend(self.rejected(state, state.attempt));
            states.extend(self.succeeded(state));
            states.extend(self.after(state, Action::Cancel));
            states.extend(self.after(state, Action::Revive));
        }
        states.into_iter().map(|state| Point { state, ..point.clone() }).collect()
    }

    /// The next owner that a line names takes the shard over.
    fn taken_over(&self, state: &State) -> Option<State> {
        let (epoch, owner) = self.owners.range(state.fence + 1..).next()?;
        let steps = usize::from(epoch - state.fence);
        self.after_all(state, &vec![Action::TakeOver(*owner); steps])
    }

    fn by_free_node(&self, state: &State, node: usize, states: &mut Vec<State>) {
        // An epoch that no line names.
        if state.fence.is_multiple_of(2) {
            states.extend(self.after(state, Action::TakeOver(node)));
        }
        match state.nodes[node].work {
            Work::Held { attempt, .. } => states.extend(self.published(state, node, attempt)),
            Work::Sent(attempt) => {
                states.extend(self.confirmed(state, node, attempt));
                states.extend(self.after(state, Action::Unknown(node)));
            }
            Work::Idle | Work::Asked => {
                states.extend(self.taken(state, node, Kind::Claim, state.attempt + 1));
                states.extend(self.taken(state, node, Kind::Rescue, state.attempt));
            }
        }
    }

    /// A claim or a rescue that takes the task: its snapshot and its write are one step here, which loses no path.
    fn taken(&self, state: &State, node: usize, kind: Kind, attempt: u8) -> Option<State> {
        let state = match state.nodes[node].work {
            Work::Idle => state.clone(),
            _ => self.after(state, Action::GiveUp(node))?,
        };
        let ask = if kind == Kind::Claim { Action::Claim(node) } else { Action::Rescue(node) };
        let asked = self.after(&state, ask)?;
        let read = self.after(&asked, Action::Read(place_of(&asked, node, kind)?))?;
        let written = self.after(&read, Action::Write(place_of(&read, node, kind)?))?;
        matches!(written.nodes[node].work, Work::Held { attempt: held, .. } if held == attempt).then_some(written)
    }

    fn published(&self, state: &State, node: usize, attempt: u8) -> Option<State> {
        let is_held = matches!(state.nodes[node].work, Work::Held { attempt: held, .. } if held == attempt);
        if is_held { self.after(state, Action::Publish(node)) } else { None }
    }

    /// The message of this attempt is at the broker.
    fn arrived(&self, state: &State, attempt: u8) -> Option<State> {
        let copies = state.copies.get(usize::from(attempt.checked_sub(1)?))?;
        if copies.arrived > copies.rejected { Some(state.clone()) } else { self.after(state, Action::Arrive(attempt)) }
    }

    fn confirmed(&self, state: &State, node: usize, attempt: u8) -> Option<State> {
        if state.nodes[node].work != Work::Sent(attempt) {
            return None;
        }
        let is_there = state.copies[usize::from(attempt - 1)].arrived > 0;
        let arrived = if is_there { state.clone() } else { self.after(state, Action::Arrive(attempt))? };
        self.after(&arrived, Action::Confirm(node))
    }

    fn not_confirmed(&self, state: &State, node: usize, attempt: u8) -> Option<State> {
        let is_sent = state.nodes[node].work == Work::Sent(attempt);
        if is_sent { self.after(state, Action::Unknown(node)) } else { None }
    }

    /// The newest attempt fails: by a report, a deadline, or the broker.
    fn rejected(&self, state: &State, attempt: u8) -> Option<State> {
        if state.attempt != attempt || !matches!(state.place, Dispatching | Delivered) {
            return None;
        }
        self.after(&self.arrived(state, attempt)?, Action::Reject(attempt))
    }

    /// The task succeeds by a confirm, or by a report on any of its attempts.
    fn succeeded(&self, state: &State) -> Vec<State> {
        let arrived = (1..=state.attempt).filter_map(|attempt| Some((attempt, self.arrived(state, attempt)?)));
        arrived.filter_map(|(attempt, state)| self.after(&state, Action::Succeed(attempt))).collect()
    }
}

fn place_of(state: &State, node: usize, kind: Kind) -> Option<usize> {
    let is_it = |one: &Statement| one.node == node && one.kind == kind && one.is_awaited;
    state.statements.iter().position(|one| one.as_ref().is_some_and(is_it))
}
