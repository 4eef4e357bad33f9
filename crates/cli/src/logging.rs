//! Where the program's own log goes: standard error, which for the background server is `STORE/run/server.log`, or the
//! journal under systemd. `$RUST_LOG` says how much of it.

use tracing_subscriber::EnvFilter;

/// Starts logging; `default` is the filter when `$RUST_LOG` does not say one.
pub(crate) fn start(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // The journal stamps lines itself; it tells so by this variable.
    let started = if std::env::var_os("JOURNAL_STREAM").is_some() {
        tracing::subscriber::set_global_default(log.without_time().finish())
    } else {
        tracing::subscriber::set_global_default(log.finish())
    };
    // Only a second start could fail, and then the first one goes on.
    drop(started);
}
