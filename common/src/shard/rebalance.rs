//! Which shards should move so that no database carries much more than its share.

use super::move_check::{PlannedMove, Standing};
use crate::ids::{DatabaseIndex, ShardId};

/// How far above its share a database may be unless a request says otherwise. Moving the rest of an imbalance costs
/// more than it brings.
pub const TOLERANCE_PERCENT: u32 = 10;

/// The most that a request may tolerate: a database with twice its share.
pub const TOLERANCE_PERCENT_MOST: u32 = 100;

/// The load of a shard that has all rows, all bytes and all tasks a second of the cluster. With 65,536 databases of
/// it, sums still fit.
const WHOLE: u128 = 1_000_000_000_000;

/// What a shard or a database carries. Estimates will do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weight {
    pub rows: u64,
    pub bytes: u64,
    /// Tasks that end, in a day.
    pub rate: u64,
}

impl Weight {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows.saturating_add(other.rows),
            bytes: self.bytes.saturating_add(other.bytes),
            rate: self.rate.saturating_add(other.rate),
        }
    }

    /// The mean of the shard's shares of all rows, all bytes and the whole rate, in parts of [`WHOLE`]. What nothing
    /// has does not count. It is at least 1, so that shards without tasks are divided too, by their number.
    fn load(self, total: Self) -> u128 {
        let parts = [(self.rows, total.rows), (self.bytes, total.bytes), (self.rate, total.rate)];
        let shares = parts.into_iter().filter(|(_, total)| *total > 0);
        let (sum, count) = shares.fold((0, 0), |(sum, count), (part, total)| {
            (sum + u128::from(part) * WHOLE / u128::from(total), count + 1)
        });
        sum.checked_div(count).unwrap_or(1).max(1)
    }
}

/// One shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardLoad {
    pub shard: ShardId,
    /// Its place; of a shard that moves already, its target.
    pub database: DatabaseIndex,
    pub weight: Weight,
    /// Whether it moves already or is closed, so that it stays where `database` says.
    pub is_fixed: bool,
}

/// The moves, and the load of each database before and after them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Ascending by shard.
    pub moves: Vec<PlannedMove>,
    /// By database, in percent of the cluster's load.
    pub before_percent: Vec<f64>,
    pub after_percent: Vec<f64>,
    /// The most that a database carries afterwards, in percent of the cluster's load, as far as shards may move.
    pub limit_percent: f64,
}

/// Plans few moves after which draining and removed databases are empty, and no other one is more than
/// `tolerance_percent` above its share. Where single shards are heavier than that, the bound is the share and most of
/// the heaviest shard. With shards of the same load, no other plan has fewer moves.
///
/// The same input has the same plan, in whatever order the shards come. After the moves, a second plan has none.
pub fn plan(shards: &[ShardLoad], standings: &[Standing], tolerance_percent: u32) -> Plan {
    let mut work = Work::new(shards, standings);
    let before_percent = work.percents();
    let Some(limit) = work.limit(tolerance_percent) else {
        return Plan { after_percent: before_percent.clone(), before_percent, ..Plan::default() };
    };
    work.empty_the_closed();
    work.lighten_the_heavy(limit);
    Plan { moves: work.moves(), before_percent, after_percent: work.percents(), limit_percent: work.percent(limit) }
}

/// Plans only the moves that draining databases need.
pub fn plan_drain(shards: &[ShardLoad], standings: &[Standing]) -> Vec<PlannedMove> {
    let mut work = Work::new(shards, standings);
    work.empty_the_closed();
    work.moves()
}

/// A shard on its way through the plan.
#[derive(Clone, Copy)]
struct Piece {
    shard: ShardId,
    load: u128,
    from: usize,
    at: usize,
    is_fixed: bool,
}

struct Work<'a> {
    /// The heaviest first, then by number.
    pieces: Vec<Piece>,
    /// By database.
    loads: Vec<u128>,
    standings: &'a [Standing],
}

impl<'a> Work<'a> {
    fn new(shards: &[ShardLoad], standings: &'a [Standing]) -> Self {
        let total = shards.iter().fold(Weight::default(), |total, shard| total.plus(shard.weight));
        let piece = |shard: &ShardLoad| {
            let at = shard.database.get();
            Piece { shard: shard.shard, load: shard.weight.load(total), from: at, at, is_fixed: shard.is_fixed }
        };
        let mut pieces: Vec<Piece> = shards.iter().map(piece).filter(|piece| piece.at < standings.len()).collect();
        pieces.sort_by_key(|piece| (std::cmp::Reverse(piece.load), piece.shard));
        let mut loads = vec![0; standings.len()];
        for piece in &pieces {
            loads[piece.at] += piece.load;
        }
        Self { pieces, loads, standings }
    }

    fn is_open(&self, database: usize) -> bool {
        self.standings[database] == Standing::Serving
    }

    /// The open database with the least load, the first of several.
    fn lightest(&self) -> Option<usize> {
        (0..self.loads.len()).filter(|database| self.is_open(*database)).min_by_key(|database| self.loads[*database])
    }

    /// The most that one database may carry. A list of pieces can always be divided so that none has more than its
    /// share and the heaviest piece less that piece's share (Graham's bound), so such a plan exists. `None`: no
    /// database is open.
    fn limit(&self, tolerance_percent: u32) -> Option<u128> {
        let open = (0..self.loads.len()).filter(|database| self.is_open(*database)).count() as u128;
        let total: u128 = self.loads.iter().sum();
        let heaviest = self.pieces.first().map_or(0, |piece| piece.load);
        let tolerated = (total * u128::from(100 + tolerance_percent)).checked_div(open * 100)?;
        let possible = (total + heaviest * (open - 1)).checked_div(open)?;
        Some(tolerated.max(possible))
    }

    /// Moves all shards out of the databases that are not open, the heaviest first, each to the lightest.
    fn empty_the_closed(&mut self) {
        for nth in 0..self.pieces.len() {
            let piece = self.pieces[nth];
            if piece.is_fixed || self.is_open(piece.at) {
                continue;
            }
            let Some(target) = self.lightest() else { return };
            self.put(nth, target);
        }
    }

    /// Moves shards out of the open databases above `limit` until none is left above it, or only with fixed shards.
    fn lighten_the_heavy(&mut self, limit: u128) {
        let mut stuck = vec![false; self.loads.len()];
        loop {
            let heavy = (0..self.loads.len())
                .filter(|database| self.is_open(*database) && !stuck[*database] && self.loads[*database] > limit)
                // The first of several with the same load.
                .max_by_key(|database| (self.loads[*database], std::cmp::Reverse(*database)));
            let (Some(source), Some(target)) = (heavy, self.lightest()) else { return };
            match self.next_piece(source, target, limit) {
                Some(nth) => self.put(nth, target),
                None => stuck[source] = true,
            }
        }
    }

    /// The piece to move next: the lightest one after which `source` is no longer above `limit`, else the heaviest for
    /// which `target` has room. So the fewest pieces move.
    fn next_piece(&self, source: usize, target: usize, limit: u128) -> Option<usize> {
        let excess = self.loads[source] - limit;
        let fits = |piece: &Piece| !piece.is_fixed && piece.at == source && self.loads[target] + piece.load <= limit;
        let fitting = || self.pieces.iter().enumerate().filter(|(_, piece)| fits(piece));
        let last = fitting().rev().find(|(_, piece)| piece.load >= excess);
        let lightest = last.and_then(|(_, found)| fitting().find(|(_, piece)| piece.load == found.load));
        lightest.or_else(|| fitting().next()).map(|(nth, _)| nth)
    }

    fn put(&mut self, nth: usize, target: usize) {
        let piece = &mut self.pieces[nth];
        self.loads[piece.at] -= piece.load;
        self.loads[target] += piece.load;
        piece.at = target;
    }

    fn moves(&self) -> Vec<PlannedMove> {
        let planned = |piece: &Piece| PlannedMove {
            shard: piece.shard,
            source: DatabaseIndex::new(piece.from),
            target: DatabaseIndex::new(piece.at),
        };
        let mut moves: Vec<PlannedMove> =
            self.pieces.iter().filter(|piece| piece.at != piece.from).map(planned).collect();
        moves.sort_unstable();
        moves
    }

    fn percents(&self) -> Vec<f64> {
        self.loads.iter().map(|load| self.percent(*load)).collect()
    }

    fn percent(&self, load: u128) -> f64 {
        let total: u128 = self.loads.iter().sum();
        if total == 0 { 0.0 } else { load as f64 * 100.0 / total as f64 }
    }
}

#[cfg(test)]
mod tests;
