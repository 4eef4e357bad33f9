//! Disturbs the containers: the registry ends and returns, the server is killed.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::account::{Account, Disturbance};
use super::registry::Registry;
use super::sample;
use crate::random::Random;

/// The registry is gone this long, in milliseconds. The guarantees promise that ten seconds cause no error of a read; the
/// registry takes up to some seconds of a busy machine to start.
const OUTAGE_MS: std::ops::Range<u64> = 1_000..6_000;
/// Mean time between outages.
const OUTAGE_EVERY: Duration = Duration::from_secs(60);
/// Time limit for a successor, as the guarantees promise, on a busy machine.
const SUCCESSOR_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Stops and starts the registry until the end, which leaves it running.
pub(super) fn outages(
    registry: &mut Registry,
    seed: u64,
    began: Instant,
    end: Ends<'_>,
    account: &Account,
) -> Result<()> {
    let mut random = Random::new(seed);
    while end.wait(around(OUTAGE_EVERY, &mut random)) {
        let from = began.elapsed();
        registry.stop();
        thread::sleep(Duration::from_millis(OUTAGE_MS.start + random.below(OUTAGE_MS.end - OUTAGE_MS.start)));
        registry.resume()?;
        account.outage(Disturbance { from, to: began.elapsed() });
    }
    Ok(())
}

/// Kills the server until the end.
pub(super) fn kills(
    store: &Path,
    seed: u64,
    every: Duration,
    began: Instant,
    end: Ends<'_>,
    account: &Account,
) -> Result<()> {
    let mut random = Random::new(seed);
    while end.wait(around(every, &mut random)) {
        let server = sample::server(store).context("the store has no server: it ended by itself")?;
        let from = began.elapsed();
        let pid = i32::try_from(server).ok().and_then(Pid::from_raw).context("a process ID is not a number")?;
        kill_process(pid, Signal::KILL).context("cannot kill the server")?;
        let limit = Instant::now() + SUCCESSOR_LIMIT;
        while sample::server(store).is_none_or(|other| other == server) {
            anyhow::ensure!(Instant::now() < limit, "no successor of server {server} within {SUCCESSOR_LIMIT:?}");
            thread::sleep(POLL_INTERVAL);
        }
        account.kill(Disturbance { from, to: began.elapsed() });
    }
    Ok(())
}

/// When the disturbances end: with the time, or with the last container.
#[derive(Clone, Copy)]
pub(super) struct Ends<'a> {
    pub(super) at: Instant,
    /// Workers whose containers still run.
    pub(super) running: &'a AtomicU32,
}

impl Ends<'_> {
    /// Waits; returns `false` if the end came first.
    fn wait(self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if Instant::now() >= self.at || self.running.load(Ordering::Relaxed) == 0 {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }
}

/// Between half and one and a half times the mean.
fn around(mean: Duration, random: &mut Random) -> Duration {
    let half = u64::try_from(mean.as_millis()).unwrap_or(u64::MAX) / 2;
    Duration::from_millis(half + random.below(2 * half))
}
