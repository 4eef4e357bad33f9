//! A set of byte ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-adjacent ranges, keyed by their starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Adds `start..end`, merged with ranges that it touches.
    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        while let Some((&before, &stop)) = self.0.range(..=end).next_back() {
            if stop < start {
                break;
            }
            start = start.min(before);
            end = end.max(stop);
            self.0.remove(&before);
        }
        self.0.insert(start, end);
    }

    /// Whether any byte of `start..end` is in the set.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        start < end && self.0.range(..end).next_back().is_some_and(|(_, &stop)| stop > start)
    }

    /// The ranges, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Whether the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all ranges.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_behave_like_a_row_of_bits(
            inserts in prop::collection::vec((0_u64..64, 0_u64..64), 0..20),
            asked in prop::collection::vec((0_u64..64, 0_u64..64), 20),
        ) {
            let mut bits = [false; 64];
            let mut set = Intervals::default();
            for (start, end) in inserts {
                set.insert(start, end);
                (start..end).for_each(|bit| bits[usize::try_from(bit).unwrap()] = true);
            }
            for (start, end) in asked {
                let expected = (start..end).any(|bit| bits[usize::try_from(bit).unwrap()]);
                prop_assert_eq!(set.touches(start, end), expected);
            }
            let runs = bits.iter().enumerate().filter(|&(at, &bit)| bit && (at == 0 || !bits[at - 1])).count();
            prop_assert_eq!(set.0.len(), runs);
        }
    }
}
