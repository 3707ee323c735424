//! Which numbers have come: a bit for each.

#[derive(Debug, Default)]
pub(crate) struct Numbers {
    bits: Vec<u64>,
    different: u64,
}

impl Numbers {
    /// Whether the number is new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        let (place, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.bits.len() <= place {
            self.bits.resize(place + 1, 0);
        }
        let is_new = self.bits[place] & bit == 0;
        if is_new {
            self.bits[place] |= bit;
            self.different += 1;
        }
        is_new
    }

    /// How many different ones have come.
    pub(crate) fn different(&self) -> u64 {
        self.different
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_twice_counts_once() {
        let mut numbers = Numbers::default();
        let new: Vec<bool> = [0, 64, 64, 63, 0].into_iter().map(|number| numbers.insert(number)).collect();
        assert_eq!((new, numbers.different()), (vec![true, true, false, true, false], 3));
    }
}
