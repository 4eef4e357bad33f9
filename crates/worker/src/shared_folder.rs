//! Whether the folder of a tier answers: a call on a shared file system whose server is away may never return.
//!
//! The user of a worker looks, on a thread of its own: a process that confines itself must have one thread only.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// How long it may take: readers wait for the worker meanwhile.
const LIMIT: Duration = Duration::from_secs(2);
/// Most threads that wait for folders. Those that are left are of folders that do not answer.
const THREADS: usize = 8;

static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// The folder, if it exists and answers.
pub(crate) fn that_answers(folder: PathBuf) -> Option<PathBuf> {
    let looked_at = folder.clone();
    within(LIMIT, move || looked_at.is_dir()).then_some(folder)
}

fn within(limit: Duration, look: impl FnOnce() -> bool + Send + 'static) -> bool {
    let place = Place::take();
    if place.number >= THREADS {
        return false;
    }
    let (sender, receiver) = mpsc::channel();
    let look = move || {
        let _place = place;
        // Fails if nothing waits for it any more.
        let _sent = sender.send(look());
    };
    let started = thread::Builder::new().name("tarpon-tier".into()).spawn(look);
    started.is_ok() && receiver.recv_timeout(limit).unwrap_or(false)
}

/// A thread that looks, among all of them.
struct Place {
    number: usize,
}

impl Place {
    fn take() -> Self {
        Self { number: LOOKING.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        LOOKING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use super::*;

    fn wait_until_none_looks() {
        let began = Instant::now();
        while LOOKING.load(Ordering::Relaxed) > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "threads end when their folders answer");
            thread::yield_now();
        }
    }

    #[test]
    fn a_folder_that_does_not_answer_counts_as_missing_and_costs_a_limited_number_of_threads() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(that_answers(folder.path().to_owned()).as_deref(), Some(folder.path()));
        assert_eq!(that_answers(folder.path().join("missing")), None);
        wait_until_none_looks();
        let (answer, answered) = mpsc::channel::<()>();
        let (answered, threads) = (Arc::new(Mutex::new(answered)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..3 * THREADS {
            let (answered, threads) = (answered.clone(), threads.clone());
            let look = move || {
                threads.fetch_add(1, Ordering::Relaxed);
                answered.lock().unwrap().recv().is_err()
            };
            assert!(!within(Duration::ZERO, look));
        }
        drop(answer);
        wait_until_none_looks();
        assert_eq!(threads.load(Ordering::Relaxed), THREADS);
        assert!(that_answers(folder.path().to_owned()).is_some());
    }
}
