//! What a holder is started with, and its limits.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Time from the death of a serving server, or from the start of the holder, until a server serves. A read may take 30 seconds, and this is a part of it.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(10);
/// Time in which failures of successors are counted.
const FAILURE_PERIOD: Duration = Duration::from_secs(30);
/// A server that dies sooner after it has begun to serve may have died of a request that its successor receives again.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Longest silence of an attached server, which sends a sign of life every 2 seconds. Below 30 seconds, in which a read must end, with room
/// for a successor.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// Time that a killed server has to disappear. One that the kernel does not let die is then treated as dead.
const KILL_LIMIT: Duration = Duration::from_secs(2);
/// Pause before another successor if the last one could not be started, or left the store to another server that is not here yet.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Time that an announced successor has to attach until another one is started: it waits for the end of the old server only.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);
/// A wait that takes so much longer than planned means that this process was stopped, and perhaps the server with it (a frozen group of
/// processes). The limits do not count that time.
const STOPPED_LIMIT: Duration = Duration::from_secs(5);

/// What a holder is started with.
#[derive(Debug, Clone)]
pub struct HoldOptions {
    /// Where a successor connects. The directory must exist.
    pub socket: PathBuf,
    /// Program and arguments of a successor.
    pub successor: Vec<OsString>,
    /// Mount points from which the holder removes a dead mount when it gives up.
    pub dead_mounts: Vec<PathBuf>,
}

/// The limits of a holder. Tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) successor: Duration,
    pub(crate) failure_period: Duration,
    pub(crate) short_life: Duration,
    pub(crate) silence: Duration,
    pub(crate) kill: Duration,
    pub(crate) restart_pause: Duration,
    pub(crate) hand_over: Duration,
    pub(crate) stopped: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            successor: SUCCESSOR_LIMIT,
            failure_period: FAILURE_PERIOD,
            short_life: SHORT_LIFE,
            silence: SILENCE_LIMIT,
            kill: KILL_LIMIT,
            restart_pause: RESTART_PAUSE,
            hand_over: HAND_OVER_LIMIT,
            stopped: STOPPED_LIMIT,
        }
    }
}
