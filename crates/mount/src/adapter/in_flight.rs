//! [`InFlight`]: the requests that the kernel waits for, to detect a server that no longer answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Unanswered requests. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Started>>);

#[derive(Default)]
struct Started {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

/// One request; dropped once it is answered.
pub(crate) struct Request {
    all: InFlight,
    number: u64,
}

impl InFlight {
    /// Registers a new request.
    pub(crate) fn begin(&self) -> Request {
        let mut started = self.0.lock();
        let number = started.next;
        started.next += 1;
        started.since.insert(number, Instant::now());
        drop(started);
        Request { all: self.clone(), number }
    }

    /// When the oldest unanswered request began.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.0.lock().since.first_key_value().map(|(_, since)| *since)
    }

    /// Number of unanswered requests.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().since.len()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.all.0.lock().since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_is_the_first_that_is_not_answered() {
        let all = InFlight::default();
        assert_eq!(all.oldest(), None);
        let first = all.begin();
        let second = all.begin();
        let age = all.oldest();
        drop(second);
        assert_eq!((all.oldest(), all.len()), (age, 1));
        drop(first);
        assert_eq!((all.oldest(), all.len()), (None, 0));
    }
}
