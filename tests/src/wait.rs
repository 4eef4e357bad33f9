//! Waits for what another process does.

use std::time::{Duration, Instant};

/// Polls until there is a value. Panics if there is none within `limit`.
pub fn wait_for<T>(limit: Duration, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        match poll() {
            Some(value) => return value,
            None => assert!(began.elapsed() < limit, "not within {limit:?}: {what}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
