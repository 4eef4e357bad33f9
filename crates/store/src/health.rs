//! Whether the disk accepts writes, after it refused one.
//!
//! A disk that is full, read-only or failing is left alone (all writers bypass the store) for [`PROBE_INTERVAL`], and
//! then tried again; the first refused write starts the next interval.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::clock::Clock;

/// Time between two attempts on a disk that refused. Writes resume by themselves when space returns.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// Health of the store's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Writes go through.
    Healthy,
    /// Nothing is stored for now.
    Bypass {
        /// The disk's error.
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) struct HealthCheck {
    clock: Arc<dyn Clock>,
    bypass: Mutex<Option<Bypass>>,
}

#[derive(Debug)]
struct Bypass {
    next_probe: Duration,
    reason: String,
}

impl HealthCheck {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, bypass: Mutex::new(None) }
    }

    /// Whether the disk may be written now. In bypass, writes are tried again after each interval, until the next refusal.
    pub(crate) fn may_write(&self) -> bool {
        self.bypass.lock().as_ref().is_none_or(|bypass| self.clock.steady() >= bypass.next_probe)
    }

    pub(crate) fn succeeded(&self) {
        if self.bypass.lock().take().is_some() {
            tracing::info!("the store can be written again");
        }
    }

    pub(crate) fn failed(&self, doing: &str, error: &io::Error) {
        if !is_disk_trouble(error) {
            return;
        }
        let next_probe = self.clock.steady() + PROBE_INTERVAL;
        let reason = format!("{doing}: {error}");
        let mut bypass = self.bypass.lock();
        if bypass.is_none() {
            tracing::warn!(%reason, "the store cannot be written; going on without it");
        }
        *bypass = Some(Bypass { next_probe, reason });
    }

    pub(crate) fn state(&self) -> Health {
        self.bypass.lock().as_ref().map_or(Health::Healthy, |bypass| Health::Bypass { reason: bypass.reason.clone() })
    }
}

/// Whether other writes would fail with the error as well.
fn is_disk_trouble(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS))
}

/// Whether the error means that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}
