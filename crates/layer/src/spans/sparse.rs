//! Which bytes of a window a span needs.
//!
//! Deflate refers at most 32 KiB back, so a span refers to the window from its first 32 KiB only. Those are decoded with
//! three made-up windows instead of the real one, whose bytes say where they come from: byte `i` is the low byte of `i`, the
//! high byte of `i`, and the complement of the low byte. Wherever the first and the last decoding differ, the byte was copied
//! from the window, and from where is what they say. No decoder of our own is needed for that, and the windows of real layers
//! shrink to a third.

use miniz_oxide::inflate::core::inflate_flags::{TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

use super::WINDOW_BYTES;

/// Sets to zero what decoding `encoded` from `state` does not need of `window`.
pub(super) fn thin(window: &mut [u8; WINDOW_BYTES], state: &BlockBoundaryState, encoded: &[u8]) {
    let mut scratch = vec![0; 2 * WINDOW_BYTES];
    let mut decoded = |byte: fn([u8; 2]) -> u8| {
        scratch.iter_mut().zip(0..=u16::MAX).for_each(|(slot, place)| *slot = byte(place.to_le_bytes()));
        let mut inflate = DecompressorOxide::from_block_boundary_state(state);
        let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (_, _, count) = decompress(&mut inflate, encoded, &mut scratch, WINDOW_BYTES, flags);
        scratch[WINDOW_BYTES..WINDOW_BYTES + count].to_vec()
    };
    let (low, high, marked) = (decoded(|[low, _]| low), decoded(|[_, high]| high), decoded(|[low, _]| !low));
    let mut thinned = [0; WINDOW_BYTES];
    for ((low, high), marked) in low.into_iter().zip(high).zip(marked) {
        if low != marked {
            let place = usize::from(u16::from_le_bytes([low, high])) % WINDOW_BYTES;
            thinned[place] = window[place];
        }
    }
    *window = thinned;
}
