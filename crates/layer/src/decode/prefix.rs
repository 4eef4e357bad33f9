//! Blocks of deflate without content, which shift a stream that begins in the middle of a byte.
//!
//! A span begins at any bit. zlib-rs begins at a byte, and its safe interface takes no single bits. So the decoder first gets blocks that
//! decode to nothing and end at the bit where the span begins.

/// An empty block with fixed codes (RFC 1951, section 3.2.6): not final, type 1, end of block.
const FIXED: Bits = Bits { bits: 0b010, length: 10 };

/// An empty block with dynamic codes (section 3.2.7), whose length is odd.
///
/// | bits | meaning |
/// |---|---|
/// | 0 to 2 | not final, type 2 |
/// | 3 to 16 | 257 codes for literals, 1 for distances, 19 for code lengths |
/// | 17 to 73 | lengths of the codes for code lengths, 3 bits each: 1 for "repeat zero" (third) and "length 1" (eighteenth), else 0 |
/// | 74 to 89 | 138 and 118 literals have no code |
/// | 90, 91 | the codes of the end of block and of the one distance have length 1 |
/// | 92 | end of block |
const DYNAMIC: Bits = {
    let lengths = (1 << (17 + 3 * 2)) | (1 << (17 + 3 * 17));
    let literals = (1 << 74) | ((138 - 11) << 75) | (1 << 82) | ((118 - 11) << 83);
    Bits { bits: 0b100 | (15 << 13) | lengths | literals, length: 93 }
};

/// Bits in the order of the stream, lowest first.
#[derive(Clone, Copy)]
struct Bits {
    bits: u128,
    length: u32,
}

impl Bits {
    fn then(self, next: Self) -> Self {
        Self { bits: self.bits | (next.bits << self.length), length: self.length + next.length }
    }
}

/// Whole bytes of a stream.
pub(super) struct Prefix {
    bytes: [u8; 16],
    length: usize,
}

impl Prefix {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Empty blocks, and behind them the bits of `first` that follow its lowest `used_bits`, of which there are 1 to 7.
pub(super) fn ending_with(used_bits: u8, first: u8) -> Prefix {
    let used = u32::from(used_bits);
    let mut bits = if used.is_multiple_of(2) { Bits { bits: 0, length: 0 } } else { DYNAMIC };
    while bits.length % 8 != used % 8 {
        bits = bits.then(FIXED);
    }
    bits = bits.then(Bits { bits: u128::from(first >> used), length: 8 - used });
    Prefix { bytes: bits.bits.to_le_bytes(), length: (bits.length / 8) as usize }
}

#[cfg(test)]
mod tests {
    use flate2::{Decompress, FlushDecompress};

    use super::ending_with;

    #[test]
    fn the_prefix_decodes_to_nothing_and_leaves_the_bits_of_the_first_byte() {
        for used in 1..=7_u8 {
            // A block with fixed codes that is final: the literal "a" (code 0x91), end of block.
            let code = u32::from(0x91_u8.reverse_bits());
            let block = 0b011 | (code << 3);
            let stream = (u64::from(block) << used).to_le_bytes();
            let prefix = ending_with(used, stream[0]);
            let mut inflate = Decompress::new(false);
            let mut out = [0; 4];
            inflate.decompress(prefix.bytes(), &mut out, FlushDecompress::None).unwrap();
            assert_eq!(inflate.total_in(), prefix.bytes().len() as u64, "{used} bits");
            assert_eq!(inflate.total_out(), 0, "{used} bits");
            inflate.decompress(&stream[1..], &mut out, FlushDecompress::None).unwrap();
            assert_eq!(&out[..usize::try_from(inflate.total_out()).unwrap()], b"a", "{used} bits");
        }
    }

    #[test]
    fn it_needs_at_most_sixteen_bytes() {
        let longest = (1..=7).map(|used| ending_with(used, 0xff).bytes().len()).max();
        assert_eq!(longest, Some(16));
    }
}
