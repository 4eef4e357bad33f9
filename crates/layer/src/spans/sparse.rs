//! Finds the bytes of a window that a span needs.
//!
//! Deflate refers at most 32 KiB back, so a span refers to the window from its first 32 KiB only. Those are decoded with two
//! artificial windows instead of the real one, which differ everywhere and whose two bytes at a place encode that place. Wherever
//! the two decodings differ, the byte was copied from the window, and the two bytes show from where. This needs no decoder of our own.

use miniz_oxide::inflate::core::inflate_flags::{TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

use super::WINDOW_BYTES;

/// Places of a window.
pub(super) struct Needed {
    places: Box<[bool; WINDOW_BYTES]>,
    /// Bytes that were decoded for this.
    decoded: usize,
}

impl Needed {
    /// The places that decoding `encoded` from `state` refers to.
    pub(super) fn by(state: &BlockBoundaryState, encoded: &[u8]) -> Self {
        let decoded = |byte: fn([u8; 2]) -> u8| {
            let mut out = vec![0; 2 * WINDOW_BYTES];
            out.iter_mut().take(WINDOW_BYTES).zip(0_u16..).for_each(|(slot, place)| *slot = byte(place.to_le_bytes()));
            let mut inflate = DecompressorOxide::from_block_boundary_state(state);
            let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
            let (_, _, count) = decompress(&mut inflate, encoded, &mut out, WINDOW_BYTES, flags);
            out.truncate(WINDOW_BYTES + count);
            out
        };
        let (one, other) = (decoded(|[low, _]| low), decoded(|[low, high]| low.wrapping_add(1 + high)));
        let decoded = one.len() - WINDOW_BYTES;
        let mut places = Box::new([false; WINDOW_BYTES]);
        for (one, other) in one.into_iter().zip(other).skip(WINDOW_BYTES) {
            if one != other {
                let high = other.wrapping_sub(one) - 1;
                places[usize::from(u16::from_le_bytes([one, high])) % WINDOW_BYTES] = true;
            }
        }
        Self { places, decoded }
    }

    /// Whether enough was decoded that later bytes cannot refer to the window.
    pub(super) fn is_all(&self) -> bool {
        self.decoded == WINDOW_BYTES
    }

    /// Sets the unneeded bytes to zero. Returns the number of needed ones.
    pub(super) fn thin(&self, window: &mut [u8; WINDOW_BYTES]) -> usize {
        let pairs = window.iter_mut().zip(self.places.iter());
        pairs.filter(|(_, needed)| !**needed).for_each(|(byte, _)| *byte = 0);
        self.places.iter().filter(|needed| **needed).count()
    }
}
