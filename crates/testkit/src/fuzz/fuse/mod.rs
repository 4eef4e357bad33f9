//! Parts of the target `fuse_requests`.

pub(super) mod image;
mod kernel;
pub(super) mod objects;
mod tree;

/// Reads choices from arbitrary bytes.
pub(super) struct Input<'d>(&'d [u8]);

/// Sizes, offsets and counts at which something changes.
const NUMBERS: [u64; 16] = [
    0,
    1,
    2,
    5,
    23,
    24,
    100,
    4_095,
    4_096,
    4_097,
    65_536,
    131_072,
    139_999,
    u32::MAX as u64,
    i64::MAX as u64,
    u64::MAX,
];

impl<'d> Input<'d> {
    pub(super) fn new(bytes: &'d [u8]) -> Self {
        Self(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// One of `count` choices; the first where nothing is left.
    fn choice(&mut self, count: usize) -> usize {
        usize::from(self.byte().unwrap_or(0)) % count.max(1)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.choice(choices.len())]
    }

    /// A number at a limit, or any small one, or any at all.
    fn number(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            place @ 0..=15 => NUMBERS[usize::from(place)],
            16 => u64::from_le_bytes(self.array()),
            17 => u64::from(u16::from_le_bytes(self.array())),
            small => u64::from(small),
        }
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// At most so many bytes.
    fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
