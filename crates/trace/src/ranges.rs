//! [`Ranges`]: a set of bytes of one object.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges with gaps between them: start → end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `range`; returns the parts of it that are new.
    pub(crate) fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() || self.has(&range) {
            return Vec::new();
        }
        let met = self.0.range(..=range.end).rev().take_while(|(_, end)| **end >= range.start);
        let mut met: Vec<(u64, u64)> = met.map(|(start, end)| (*start, *end)).collect();
        met.reverse();
        let (mut whole, mut at, mut new) = (range.clone(), range.start, Vec::new());
        for (start, end) in met {
            if at < start {
                new.push(at..start);
            }
            at = at.max(end);
            whole = whole.start.min(start)..whole.end.max(end);
            self.0.remove(&start);
        }
        if at < range.end {
            new.push(at..range.end);
        }
        self.0.insert(whole.start, whole.end);
        new
    }

    fn has(&self, range: &Range<u64>) -> bool {
        self.0.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn added_ranges_agree_with_a_bit_set(adds in prop::collection::vec((0_u64..64, 0_u64..64), 0..24)) {
            let mut bits = [false; 64];
            let mut ranges = Ranges::default();
            for (start, end) in adds {
                let mut new = [false; 64];
                for byte in start..end {
                    let bit = usize::try_from(byte).unwrap();
                    new[bit] = !std::mem::replace(&mut bits[bit], true);
                }
                let mut said = [false; 64];
                for byte in ranges.add(start..end).into_iter().flatten() {
                    said[usize::try_from(byte).unwrap()] = true;
                }
                prop_assert_eq!(said, new);
            }
            let runs = bits.iter().enumerate().filter(|&(at, &bit)| bit && (at == 0 || !bits[at - 1])).count();
            prop_assert_eq!(ranges.0.len(), runs);
        }
    }
}
