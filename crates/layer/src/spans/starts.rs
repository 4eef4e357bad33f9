//! The beginnings of spans in the decoded layer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    fn list(&self) -> MutexGuard<'_, Vec<u64>> {
        // A push cannot leave the list in an invalid state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
