//! [`Signals`]: the signals that this process receives while it runs a container in the foreground.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures::FutureExt as _;
use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals that are forwarded to the container.
const FORWARDED: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Receives the signals to forward to a container. While this lives, none of them has its default effect on this process.
#[derive(Debug, Default)]
pub struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Starts to listen.
    pub fn listen() -> io::Result<Self> {
        let stream = |number: Signal| Ok((number, signal(SignalKind::from_raw(number.as_raw()))?));
        Ok(Self { streams: FORWARDED.into_iter().map(stream).collect::<io::Result<_>>()? })
    }

    /// Receives nothing: for callers that end containers otherwise.
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let ready = self.streams.iter_mut().find_map(|(number, stream)| {
                let is_ready = stream.poll_recv(context).is_ready();
                is_ready.then_some(*number)
            });
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Resolves when the user wants to stop, while there is no container to forward the signal to.
    pub(super) async fn asked_to_stop(&mut self) {
        while !asks_to_stop(self.next().await) {}
    }

    /// Whether the user has signalled a stop since the last check.
    pub(super) fn were_asked_to_stop(&mut self) -> bool {
        self.asked_to_stop().now_or_never().is_some()
    }
}

/// Whether the signal means that the container should stop.
pub(super) fn asks_to_stop(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)
}

/// The signal in the form that a runtime accepts: a name, with or without `SIG`, or a number.
///
/// # Errors
/// One line: it is not a signal.
pub fn signal_name(text: &str) -> Result<String, String> {
    /// The first real-time signal for applications, as the C library numbers them, and the last.
    const REAL_TIME: u32 = 34;
    const LAST: u32 = 64;
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = match short.strip_prefix("RTMIN+") {
        Some(offset) => offset.parse().ok().and_then(|offset: u32| REAL_TIME.checked_add(offset)),
        None => short.parse().ok(),
    };
    match number {
        Some(1..=LAST) => Ok(number.unwrap_or_default().to_string()),
        None if !short.is_empty() && short.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit()) => {
            Ok(short.to_owned())
        }
        _ => Err(format!("{text:?} is no signal")),
    }
}

/// Held by tests that send signals to their own process, where each listener gets them.
#[cfg(test)]
pub(super) static SIGNALLED: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (said, meant) in [("SIGTERM", "TERM"), ("usr1", "USR1"), ("9", "9"), ("SIGRTMIN+3", "37"), ("kill", "KILL")]
        {
            assert_eq!(signal_name(said).as_deref(), Ok(meant));
        }
        for odd in ["", "SIG", "0", "65", "RTMIN+40", "RTMIN+x", "TERM;x", "-9"] {
            assert!(signal_name(odd).is_err(), "{odd}");
        }
    }

    #[tokio::test]
    async fn a_signal_is_heard_and_does_not_end_the_process() {
        let _alone = SIGNALLED.lock().await;
        let mut signals = Signals::listen().unwrap();
        rustix::process::kill_process(rustix::process::getpid(), Signal::USR2).unwrap();
        // Other tests send this process other signals.
        let heard = async { while signals.next().await != Signal::USR2 {} };
        tokio::time::timeout(std::time::Duration::from_secs(30), heard).await.expect("it is heard");
    }
}
