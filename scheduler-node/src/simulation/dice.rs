//! Random numbers that follow from a seed.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

thread_local! {
    /// The dice of the node on a thread that runs the simulation.
    static SEEDED: RefCell<Option<Dice>> = const { RefCell::new(None) };
}

/// Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014), so that a seed means the same everywhere.
#[derive(Debug)]
pub struct Dice(Cell<u64>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    pub fn number(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.0.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&self, first: u64, last: u64) -> u64 {
        first + self.number() % (last - first + 1)
    }

    pub fn millis(&self, first: u64, last: u64) -> Duration {
        Duration::from_millis(self.between(first, last))
    }

    /// Whether an event of this probability, in percent, happens.
    pub fn is_percent(&self, percent: u64) -> bool {
        self.number() % 100 < percent
    }

    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// An index below `len`.
    pub fn index(&self, len: usize) -> usize {
        usize::try_from(self.number() % len as u64).expect("it is below a usize")
    }
}

/// Gives the node on this thread dice that follow from `seed`.
pub fn seed_the_node(seed: u64) {
    SEEDED.set(Some(Dice::new(seed)));
}

/// A roll of the node's seeded dice. `None`: the thread runs no simulation.
pub fn seeded_roll() -> Option<f64> {
    SEEDED.with_borrow(|dice| Some((dice.as_ref()?.number() >> 11) as f64 / (1_u64 << 53) as f64))
}
