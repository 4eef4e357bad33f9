//! `tarpon daemon`: the permanent server of a store, with its API.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tarpon_daemon::{Options, Socket};
use tarpon_engine::Ended;

use super::options::address;
use super::scrub::ScrubChoice;
use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon daemon                                            at /run/tarpon/tarpon.sock
  tarpon daemon --listen unix:///tmp/tarpon.sock --metrics 9464
  tarpon daemon --scrub=8MiB                               hashes the store once a week
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/mounts
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/mounts \\
       -d '{\"image\": \"docker.io/library/alpine:3.20\", \"mountpoint\": \"/mnt\"}'
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/events -N
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/openapi.json

While it runs, `tarpon mount` and all other subcommands use it. It ends with SIGTERM or
SIGINT: containers are stopped, everything is unmounted, and mounted again when it, or any
server of the store, starts the next time. While a mount is in use, all of them stay, and it
serves them until the last one is unmounted; SIGINT ends it. Where another process
serves mounts of the store already, it takes the place of that one when that has ended.
contrib/systemd has units for it.
Its log goes to standard error; $RUST_LOG says how much of it.";

/// Serve a store for good, with an HTTP API on a Unix socket
///
/// The server that other subcommands start on demand ends with its last mount. This one stays, and offers the engine to programs:
/// prepare, mount, unmount, run, prefetch, record, list, statistics, events. GET /openapi.json describes the API. The socket is open
/// to its owner alone. One that systemd hands over is used instead of --listen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Daemon {
    /// Where to listen: unix:///PATH [default: /run/tarpon/tarpon.sock as root, else $XDG_RUNTIME_DIR/tarpon/tarpon.sock]
    #[arg(long, value_name = "ADDR", env = "TARPON_LISTEN", value_parser = place)]
    listen: Option<PathBuf>,
    /// Tell metrics at http://ADDR/metrics, in the format of Prometheus: PORT (of 127.0.0.1) or IP:PORT
    #[arg(long, value_name = "ADDR", env = "TARPON_METRICS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// The OCI runtime where a request names none [default: crun or runc, whichever works here]
    #[arg(long, value_name = "PROGRAM", env = "TARPON_RUNTIME")]
    runtime: Option<PathBuf>,
    #[command(flatten)]
    scrub: ScrubChoice,
}

fn place(text: &str) -> std::result::Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").map(PathBuf::from);
    path.filter(|path| path.is_absolute()).ok_or_else(|| "expected unix:///PATH".to_owned())
}

impl Daemon {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let doing = || "cannot serve the store";
        // Must come first: it removes its variables from the environment, which only a single thread may do.
        let socket = match &self.listen {
            Some(path) => Socket::open(path),
            None => tarpon_daemon::default_path().and_then(|path| Socket::open(&path)),
        };
        let socket = socket.doing(doing)?;
        let session = Session::open(global)?;
        let keeper_command = session.keeper_command()?;
        let (metrics, runtime_program, scrub) = (self.metrics, self.runtime.clone(), self.scrub.scrub);
        let options = Options { socket, metrics, keeper_command, runtime: runtime_program, scrub };
        runtime()?.block_on(async {
            let mut daemon = tarpon_daemon::Daemon::start(session.engine().clone(), options).await.doing(doing)?;
            let ended = daemon.until_signal().await;
            daemon.stop().await;
            match ended {
                Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; everything is unmounted")),
                Ended::Idle | Ended::Terminated => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_absolute_path_of_a_unix_socket() {
        assert_eq!(place("unix:///run/a.sock"), Ok("/run/a.sock".into()));
        for odd in ["/run/a.sock", "unix://a.sock", "tcp://127.0.0.1:80", ""] {
            assert!(place(odd).is_err(), "{odd}");
        }
    }
}
