//! The beginnings of spans in the decoded layer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tarpon_oci::limits;

/// Possible beginnings of spans, ascending, as offsets in the decoded layer: all of them for zstd, and for gzip up to four for each span,
/// of which one is chosen. One thread decodes and records them. Another walks the tar behind it and cuts files there. A beginning is recorded
/// before any byte behind it is returned.
#[derive(Debug, Clone, Default)]
pub struct SpanStarts(Arc<Mutex<Vec<u64>>>);

impl SpanStarts {
    pub(super) fn push(&self, offset: u64) {
        self.list().push(offset);
    }

    /// The first known beginning behind `offset`.
    pub(crate) fn next_after(&self, offset: u64) -> Option<u64> {
        let list = self.list();
        list.get(list.partition_point(|start| *start <= offset)).copied()
    }

    /// Whether a span begins there.
    pub(crate) fn contains(&self, offset: u64) -> bool {
        self.list().binary_search(&offset).is_ok()
    }

    /// Whether a place gives as much random access as a `later` one, as far as this is known while the layer is decoded: it is in the same
    /// span, or its span is short enough ([`limits::CHUNK_ENCODED_BYTES`], [`limits::MEMBER_BYTES`]) unless it grew when it was encoded. A
    /// wrong answer costs random access, and nothing else.
    pub(crate) fn is_as_seekable(&self, place: u64, later: u64) -> bool {
        let list = self.list();
        let after = |offset| list.partition_point(|start| *start <= offset);
        let (after_place, after_later) = (after(place), after(later));
        let start = after_place.checked_sub(1).and_then(|span| list.get(span));
        let length = start.zip(list.get(after_place)).map(|(start, end)| end - start);
        after_place == after_later || length.is_some_and(|length| length <= limits::CHUNK_BYTES)
    }

    fn list(&self) -> MutexGuard<'_, Vec<u64>> {
        // A push cannot leave the list in an invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_same_or_in_a_short_span_is_as_seekable_as_a_later_one() {
        let starts = SpanStarts::default();
        let (long, short) = (limits::CHUNK_BYTES + 1, limits::CHUNK_BYTES);
        [0, long, long + short].into_iter().for_each(|start| starts.push(start));
        assert!(starts.is_as_seekable(5, long - 1), "the same span");
        assert!(!starts.is_as_seekable(5, long), "the first span is too long");
        assert!(!starts.is_as_seekable(long - 1, long + short));
        assert!(starts.is_as_seekable(long, long + short), "the second span is short");
        assert!(starts.is_as_seekable(long + short, long + short + 7), "the last span has no end yet");
    }
}
