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

    pub(crate) fn has(&self, number: u64) -> bool {
        self.bits.get((number / 64) as usize).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
    }

    /// How many of these numbers the others lack.
    pub(crate) fn lacking_in(&self, others: &Self) -> u64 {
        let others = others.bits.iter().chain(std::iter::repeat(&0));
        self.bits.iter().zip(others).map(|(bits, others)| u64::from((bits & !others).count_ones())).sum()
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
        assert_eq!([63, 64, 65, 1_000].map(|number| numbers.has(number)), [true, true, false, false]);
    }

    #[test]
    fn numbers_that_others_lack_are_counted_whichever_are_more() {
        let of = |all: &[u64]| {
            let mut numbers = Numbers::default();
            for number in all {
                numbers.insert(*number);
            }
            numbers
        };
        assert_eq!(of(&[1, 2, 300]).lacking_in(&of(&[2])), 2);
        assert_eq!(of(&[2]).lacking_in(&of(&[1, 2, 300])), 0);
    }
}
