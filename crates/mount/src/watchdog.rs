//! The watchdog: one thread that detects mounts removed by other processes, and ends connections that no longer answer.
//!
//! It depends on nothing that it watches: no async runtime, no session thread.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::connection::Connection;
use crate::kernel::{StepError, io_step};
use crate::mounted::LiveMounts;
use crate::pool::ConnectionPool;
use crate::table::Changes;

/// Interval between checks without events. Changes of the table of mounts wake it at once.
const ROUND: Duration = Duration::from_secs(2);
/// Minimum interval between rounds: while many mounts are made, the table changes all the time and is long.
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// A request unanswered for this long means that this server is broken: reads give up after 30 s.
const UNANSWERED_LIMIT: Duration = Duration::from_secs(120);

/// Starts the thread; it ends when the host and its mounts are gone.
pub(crate) fn start(mounts: Arc<LiveMounts>, pool: &Arc<ConnectionPool>) -> Result<(), StepError> {
    let mut changes = Changes::watch().map_err(|error| io_step("watch the table of mounts", &error))?;
    let pool = Arc::downgrade(pool);
    thread::Builder::new()
        .name("mount-watchdog".to_owned())
        .spawn(move || {
            while let Some(()) = make_round(&mounts, &pool, &mut changes) {
                thread::sleep(MIN_INTERVAL);
                if let Err(error) = changes.wait(ROUND) {
                    tracing::warn!(%error, "cannot wait for changes of the table of mounts");
                    thread::sleep(ROUND);
                }
            }
        })
        .map(drop)
        .map_err(|error| io_step("start a thread", &error))
}

fn make_round(mounts: &LiveMounts, pool: &Weak<ConnectionPool>, changes: &mut Changes) -> Option<()> {
    let pool = pool.upgrade()?;
    if let Err(error) = mounts.detect_unmounts(|| changes.read()) {
        tracing::warn!(%error, "cannot read the table of mounts");
    }
    for connection in pool.connections() {
        if connection.is_wedged(UNANSWERED_LIMIT) {
            break_off(&connection);
        }
    }
    pool.tidy();
    Some(())
}

/// Last resort against processes that would wait forever. If the kernel's abort file is not accessible, the only
/// remaining way is to end this process, the sole holder of the connection.
fn break_off(connection: &Connection) {
    tracing::error!(limit = ?UNANSWERED_LIMIT, "a FUSE request was not answered within the limit: aborting the connection");
    if let Err(error) = connection.abort() {
        tracing::error!(%error, "the connection cannot be aborted: ending the server");
        std::process::abort();
    }
}
