//! The signals that end a server in order.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at SIGTERM or SIGINT.
pub(super) async fn stop() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: unmounting"),
        _ = interrupt.recv() => tracing::info!("SIGINT: unmounting"),
    }
}
