//! The clock of a case: it jumps to the next deadline as soon as nothing else is to do.
//!
//! Tokio's paused clock stands still while a blocking thread runs. A thread that decodes a layer waits for bytes, which may come only
//! after a pause of the client: then nothing would ever happen again. So the clock also moves on, slowly, when it stood still for a
//! moment of real time.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, advance};

/// Real time in which a clock that can jump would have jumped.
const MOMENT: Duration = Duration::from_millis(4);
/// How far it then moves: little enough that a slow disk does not look like a silent registry.
const STEP: Duration = Duration::from_millis(100);

/// Runs `work` under such a clock.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (working, done) = channel::<()>();
    let moments = Arc::new(Notify::new());
    let notifier = moments.clone();
    let ticking = std::thread::spawn(move || {
        while done.recv_timeout(MOMENT) == Err(RecvTimeoutError::Timeout) {
            notifier.notify_one();
        }
    });
    let outcome = runtime.block_on(async {
        let moving = tokio::spawn(async move {
            loop {
                let before = Instant::now();
                moments.notified().await;
                if Instant::now() == before {
                    advance(STEP).await;
                }
            }
        });
        let outcome = work.await;
        moving.abort();
        outcome
    });
    drop(working);
    ticking.join().unwrap();
    outcome
}
