//! The signals that end a server cleanly.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Why a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Its last mount was unmounted.
    Idle,
    /// SIGTERM.
    Terminated,
    /// SIGINT.
    Interrupted,
    /// The program on disk is to be executed in its place.
    Upgraded,
}

/// SIGTERM and SIGINT. Once this exists, neither terminates the process by default.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Resolves at either signal, including one received earlier.
    pub(crate) async fn stop(&mut self) -> Ended {
        tokio::select! {
            _ = self.terminate.recv() => {
                tracing::info!("SIGTERM");
                Ended::Terminated
            }
            _ = self.interrupt.recv() => {
                tracing::info!("SIGINT");
                Ended::Interrupted
            }
        }
    }

    /// Resolves at SIGINT only. A service manager sends SIGTERM again after its timeout, which must not fail readers.
    pub(crate) async fn interrupted(&mut self) -> Ended {
        self.interrupt.recv().await;
        tracing::info!("SIGINT");
        Ended::Interrupted
    }
}
