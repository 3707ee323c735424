//! `lane_read.sql` and `task_pick.sql`: counts and starts tasks that wait for room.

use std::{collections::BTreeMap, time::Duration};

use common::{
    ids::{QueueName, ShardId, TaskId},
    priority::LEVELS,
    task::TaskState,
    time::UnixMicros,
};

use super::{
    row::Row,
    statement::{Statement, take_all},
    table::Rows,
};
use crate::store::{
    claim::Claimed,
    lane::{LaneCounts, LaneEnd, LaneEnds, Pick, STARTED_FAR_AHEAD, Walks},
};

/// The longest that a statement of PostgreSQL takes.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);

pub fn oldest(rows: &Rows, queue: &QueueName, from: Option<UnixMicros>, now: UnixMicros) -> UnixMicros {
    let is_of = |row: &&Row| {
        let is_ready = row.queue == *queue && row.state == TaskState::Ready;
        is_ready && Some(row.due_at) >= from && row.due_at <= now.plus(STARTED_FAR_AHEAD)
    };
    rows.values().filter(is_of).map(|row| row.due_at).min().unwrap_or(now)
}

pub fn read(
    rows: &Rows,
    queue: &QueueName,
    shards: &[ShardId],
    most: usize,
    (limit, from): (Option<i64>, Option<UnixMicros>),
) -> LaneCounts {
    let mut counts = LaneCounts::default();
    let is_of = |row: &&Row| row.queue == *queue;
    for row in rows.values().filter(is_of) {
        if row.state == TaskState::Ready && Some(row.due_at) >= from && shards.contains(&row.id.shard()) {
            let ready = &mut counts.ready[level(row)];
            *ready = most.min(*ready + 1);
            counts.shards.insert(row.id.shard());
        }
        if row.counted && row.state.is_in_flight() {
            counts.out += 1;
        }
    }
    counts.out = counts.out.min(usize::try_from(limit.unwrap_or(0)).unwrap_or(0));
    counts
}

/// `until`: the end of the time window in which the statement has to begin.
pub fn pick(pick: &Pick<'_>, until: UnixMicros) -> Statement<(Claimed, Walks)> {
    let mine = OwnedPick::of(pick);
    let (fences, presented) = (pick.fences.clone(), pick.fences.len());
    let (ordered, counted, choosing) = (pick.ordered, pick.counted, mine.clone());
    Statement {
        fences,
        choose: Box::new(move |rows, fences, now| {
            let chosen = choosing.candidates(rows, now).into_iter().map(|one| one.id);
            if now > until { Vec::new() } else { chosen.filter(|id| fences.contains_key(&id.shard())).collect() }
        }),
        recheck: Box::new(move |row, now| {
            row.state == TaskState::Ready && !row.has_expired(now) && now <= until.plus(STATEMENT_TIMEOUT)
        }),
        skips_locked: true,
        write: Box::new(move |table, snapshot, locks, now| {
            let claimed = take_all(table, locks, presented, now, |row| {
                row.attempt += 1;
                row.in_order |= ordered && row.partition_key.is_some();
                row.counted |= counted;
            });
            let mut walks = Walks::default();
            walks.ends = mine.ends(snapshot, now);
            walks.comes_due = mine.comes_due(snapshot, now);
            (claimed, walks)
        }),
    }
}

fn level(row: &Row) -> usize {
    usize::try_from(row.priority - 1).unwrap_or(0)
}

/// What a pick asks for.
#[derive(Clone)]
struct OwnedPick {
    queue: QueueName,
    shards: Vec<ShardId>,
    wanted: [usize; LEVELS],
    after: LaneEnds,
    ahead: Duration,
    ordered: bool,
    from: Option<UnixMicros>,
}

/// A task that a pick would start, and the lane that gives it.
struct Candidate {
    id: TaskId,
    level: usize,
    end: LaneEnd,
}

impl OwnedPick {
    fn of(pick: &Pick<'_>) -> Self {
        Self {
            queue: pick.queue.clone(),
            shards: pick.fences.keys().copied().collect(),
            wanted: pick.wanted,
            after: pick.after.clone(),
            ahead: pick.ahead,
            ordered: pick.ordered,
            from: pick.from,
        }
    }

    /// The lanes of a priority, in the order of a walk that begins after the end of the previous one.
    fn lanes(&self, rows: &Rows, of: usize) -> Vec<LaneEnd> {
        let is_ready = |row: &&Row| {
            row.queue == self.queue
                && row.state == TaskState::Ready
                && Some(row.due_at) >= self.from
                && level(row) == of
                && self.shards.contains(&row.id.shard())
        };
        let mut lanes: Vec<LaneEnd> =
            rows.values().filter(is_ready).map(|row| LaneEnd { shard: row.id.shard(), lane: row.lane() }).collect();
        lanes.sort();
        lanes.dedup();
        let after = &self.after[of];
        let begin = lanes.iter().position(|lane| Some(lane) > after.as_ref()).unwrap_or(0);
        lanes.rotate_left(begin);
        lanes
    }

    /// The lanes that give a task, as many as are wanted, and the last lane that the walk saw.
    fn walk(&self, rows: &Rows, of: usize, now: UnixMicros) -> (Vec<LaneEnd>, Option<LaneEnd>) {
        let (mut giving, mut last) = (Vec::new(), None);
        for lane in self.lanes(rows, of) {
            if giving.len() == self.wanted[of] {
                break;
            }
            last = Some(lane.clone());
            if self.due_at(rows, &lane, of).is_some_and(|due_at| due_at <= now.plus(self.ahead)) {
                giving.push(lane);
            }
        }
        (giving, last)
    }

    /// When the first task is due that the lane may give.
    fn due_at(&self, rows: &Rows, lane: &LaneEnd, of: usize) -> Option<UnixMicros> {
        if self.is_by_order(lane) {
            return self.head(rows, lane).filter(|head| is_head_of(head, lane, of)).map(|head| head.due_at);
        }
        rows.values().filter(|row| self.is_in(row, lane, of)).map(|row| row.due_at).min()
    }

    /// Whether a task waits for room in the lane.
    fn is_in(&self, row: &Row, lane: &LaneEnd, of: usize) -> bool {
        row.queue == self.queue
            && row.state == TaskState::Ready
            && Some(row.due_at) >= self.from
            && level(row) == of
            && row.id.shard() == lane.shard
            && row.lane() == lane.lane
    }

    fn comes_due(&self, rows: &Rows, now: UnixMicros) -> Option<UnixMicros> {
        let wanted = (0..LEVELS).filter(|of| self.wanted[*of] > 0);
        let first = wanted.flat_map(|of| self.lanes(rows, of).into_iter().map(move |lane| (lane, of)));
        let due = first.filter_map(|(lane, of)| self.due_at(rows, &lane, of));
        due.filter(|due_at| *due_at > now.plus(self.ahead)).min()
    }

    fn is_by_order(&self, lane: &LaneEnd) -> bool {
        self.ordered && lane.lane != "-"
    }

    /// The head of an ordered lane: the task that was started and is not finished, otherwise the first.
    fn head<'a>(&self, rows: &'a Rows, lane: &LaneEnd) -> Option<&'a Row> {
        let of_key: Vec<&Row> =
            rows.values().filter(|row| row.queue == self.queue && row.lane() == lane.lane).collect();
        let first = of_key.iter().filter(|row| row.state != TaskState::Waiting).min_by_key(|row| (row.due_at, row.id));
        of_key.iter().find(|row| row.in_order).or(first).copied()
    }

    fn candidates(&self, rows: &Rows, now: UnixMicros) -> Vec<Candidate> {
        let mut all = Vec::new();
        for of in (0..LEVELS).filter(|of| self.wanted[*of] > 0) {
            let (giving, _) = self.walk(rows, of, now);
            let mut found: BTreeMap<(usize, usize), Candidate> = BTreeMap::new();
            let most = self.wanted[of].div_ceil(giving.len().max(1));
            for (step, lane) in giving.into_iter().enumerate() {
                for (turn, id) in self.oldest(rows, &lane, of, most, now).into_iter().enumerate() {
                    found.insert((turn, step), Candidate { id, level: of, end: lane.clone() });
                }
            }
            all.extend(found.into_values().take(self.wanted[of]));
        }
        all
    }

    /// The tasks that a lane gives.
    fn oldest(&self, rows: &Rows, lane: &LaneEnd, of: usize, most: usize, now: UnixMicros) -> Vec<TaskId> {
        if self.is_by_order(lane) {
            return self.head(rows, lane).map(|head| head.id).into_iter().collect();
        }
        let is_due = |row: &Row| row.due_at <= now.plus(self.ahead) && !row.has_expired(now);
        let is_in = |row: &&Row| self.is_in(row, lane, of) && is_due(row);
        let mut oldest: Vec<&Row> = rows.values().filter(is_in).collect();
        oldest.sort_by_key(|row| (row.due_at, row.id));
        oldest.into_iter().take(most).map(|row| row.id).collect()
    }

    fn ends(&self, rows: &Rows, now: UnixMicros) -> LaneEnds {
        let mut ends = LaneEnds::default();
        let candidates = self.candidates(rows, now);
        for (of, end) in ends.iter_mut().enumerate().filter(|(of, _)| self.wanted[*of] > 0) {
            let last_wanted = candidates.iter().filter(|one| one.level == of).nth(self.wanted[of] - 1);
            *end = last_wanted.map(|one| one.end.clone()).or_else(|| self.walk(rows, of, now).1);
        }
        ends
    }
}

fn is_head_of(head: &Row, lane: &LaneEnd, of: usize) -> bool {
    head.state == TaskState::Ready && level(head) == of && head.id.shard() == lane.shard
}
