//! The beginnings of spans in the decoded layer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tarpon_oci::limits;

/// Beginnings of spans, ascending, as offsets in the decoded layer. One thread decodes and records them. Another walks the tar
/// behind it and cuts files there. A beginning is recorded before any byte behind it is returned.
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

    /// Whether a place in a span is surely as good as a `later` one: it is in the same span, or in one that is always short enough to be
    /// decoded at once, because its bytes do not grow when they are encoded ([`limits::CHUNK_ENCODED_BYTES`] has room for frames).
    pub(crate) fn is_as_seekable(&self, place: u64, later: u64) -> bool {
        let list = self.list();
        let span_of = |offset| list.partition_point(|start| *start <= offset);
        let (next, of_later) = (span_of(place), span_of(later));
        let start = next.checked_sub(1).and_then(|span| list.get(span));
        let length = start.zip(list.get(next)).map(|(start, end)| end - start);
        next == of_later || length.is_some_and(|length| length <= limits::CHUNK_BYTES)
    }

    fn list(&self) -> MutexGuard<'_, Vec<u64>> {
        // A push cannot leave the list in an invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
