//! [`pieces`]: the parts of objects to fetch before the next start.

use std::collections::HashMap;
use std::ops::Range;

use tarpon_oci::Digest;

use crate::model::{Touch, Trace};
use crate::ranges::Ranges;

/// Objects up to this size in bytes are fetched whole. This limit and [`PIECE_BYTES`] are results of measurements.
pub const WHOLE_BYTES: u64 = 128 << 10;
/// Larger objects are fetched in pieces of this size in bytes, which start at multiples of it.
pub const PIECE_BYTES: u64 = 32 << 10;

/// A part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The object.
    pub object: Digest,
    /// Size of the whole object in bytes.
    pub size: u64,
    /// The range; never empty.
    pub range: Range<u64>,
}

/// The pieces that contain everything that the trace touched, in the order of first touch, no byte twice. A large object of which more than
/// three quarters were touched is one piece.
pub fn pieces(trace: &Trace) -> Vec<Piece> {
    let mut touched: HashMap<Digest, u64> = HashMap::new();
    for touch in &trace.touches {
        *touched.entry(touch.object).or_default() += touch.range.end - touch.range.start;
    }
    let (mut taken, mut pieces): (HashMap<Digest, Ranges>, _) = (HashMap::new(), Vec::new());
    for touch in &trace.touches {
        let range = if is_whole(touch, touched[&touch.object]) { 0..touch.size } else { aligned(touch) };
        for range in taken.entry(touch.object).or_default().add(range) {
            push(&mut pieces, touch, range);
        }
    }
    pieces
}

fn is_whole(touch: &Touch, touched: u64) -> bool {
    touch.size <= WHOLE_BYTES || u128::from(touched) * 4 > u128::from(touch.size) * 3
}

fn aligned(touch: &Touch) -> Range<u64> {
    let Range { start, end } = touch.range;
    let end = end.checked_next_multiple_of(PIECE_BYTES).unwrap_or(u64::MAX).min(touch.size);
    start - start % PIECE_BYTES..end
}

/// Adds a piece; joins it with the previous one if it continues there.
fn push(pieces: &mut Vec<Piece>, touch: &Touch, range: Range<u64>) {
    match pieces.last_mut() {
        Some(last) if last.object == touch.object && last.range.end == range.start => last.range.end = range.end,
        _ => pieces.push(Piece { object: touch.object, size: touch.size, range }),
    }
}
