//! Being asked to stop, where there is something to clean up first.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::session::runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};

/// The signals that ask this process to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that goes, unless it was started so that it outlives
/// that (nohup). None ends it any more once this was made.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        let hangup = (!ignores_hangups()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            Some(_) = hangup(&mut self.hangup) => {}
        }
    }
}

/// The next hangup; none if they are ignored.
async fn hangup(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => None,
    }
}

/// Whether SIGHUP does nothing to this process: whoever started it wanted that.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_ignored(&status, SignalKind::hangup())
}

/// What the kernel says of a process, read for whether it ignores the signal.
fn is_ignored(status: &str, signal: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let bit = u32::try_from(signal.as_raw_value() - 1).ok().and_then(|number| 1_u64.checked_shl(number));
    bit.is_some_and(|bit| mask & bit != 0)
}

/// Does `work`, or stops it when this process is asked to stop. Either way nothing of it goes on when this returns: threads that
/// still write are waited for, so that their temporary files are gone.
pub(super) fn interruptible<T>(doing: impl Fn() -> String, work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut stop = Stop::new().doing(&doing)?;
        tokio::select! {
            // What was asked for first counts.
            biased;
            () = stop.asked() => Err(Failure::new(Exit::Interrupted, format_args!("{}: interrupted", doing()))),
            done = work => done,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_told_by_the_kernel() {
        for (mask, ignored) in [("0000000000000001", true), ("0000000000001002", false), ("", false), ("x", false)] {
            let status = format!("Name:\ttarpon\nSigIgn:\t{mask}\nSigCgt:\t0000000000000001\n");
            assert_eq!(is_ignored(&status, SignalKind::hangup()), ignored, "{mask}");
        }
    }
}
