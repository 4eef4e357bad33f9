//! `tarpon daemon`: the permanent server of a store, with its API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use tarpon_daemon::{Options, Socket};
use tarpon_engine::Ended;
use tarpon_oci::IndexRepo;

use super::image::{index_repo, policy};
use super::options::{address, path};
use super::scrub::ScrubChoice;
use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;

const EXAMPLES: &str = "\
Examples:
  tarpon daemon                                            listen on /run/tarpon/tarpon.sock
  tarpon daemon --listen unix:///tmp/tarpon.sock --metrics 9464
  tarpon daemon --scrub=8MiB                               verify the store once a week
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/mounts
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/mounts \\
       -d '{\"image\": \"docker.io/library/alpine:3.20\", \"mountpoint\": \"/mnt\"}'
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/v1/events -N
  curl --unix-socket /run/tarpon/tarpon.sock http://localhost/openapi.json

All other commands use the daemon while it runs. SIGTERM and SIGINT stop it: containers are
stopped, everything is unmounted, and mounted again when a server of the store starts the
next time. If a mount is in use, all mounts stay, and a server in the background serves them.
A daemon takes over the mounts of a server in the background when it starts.
After an update of tarpon, `tarpon server upgrade` makes the daemon execute the new program.
contrib/systemd contains unit files.
The log goes to standard error; $RUST_LOG sets its level.";

/// Serve a store permanently, with an HTTP API on a Unix socket
///
/// The server that other commands start on demand ends with its last mount. The daemon keeps running and offers an API to programs:
/// prepare, mount, unmount, run, prefetch, record, list, statistics, events. GET /openapi.json describes it. Only the owner can access
/// the socket. A socket from systemd is used instead of --listen.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Daemon {
    /// Socket to listen on: unix:///PATH [default: /run/tarpon/tarpon.sock as root, else $XDG_RUNTIME_DIR/tarpon/tarpon.sock]
    #[arg(long, value_name = "ADDR", env = "TARPON_LISTEN", value_parser = socket_path)]
    listen: Option<PathBuf>,
    /// Serve Prometheus metrics at http://ADDR/metrics: PORT (on 127.0.0.1) or IP:PORT
    #[arg(long, value_name = "ADDR", env = "TARPON_METRICS", value_parser = address)]
    metrics: Option<SocketAddr>,
    /// OCI runtime for requests that name none [default: crun or runc, whichever works]
    #[arg(long, value_name = "PROGRAM", env = "TARPON_RUNTIME")]
    runtime: Option<PathBuf>,
    /// Policy for images, containers-policy.json(5) [default: $XDG_CONFIG_HOME/containers/policy.json, else /etc/containers/policy.json, if
    /// it exists]
    #[arg(long, value_name = "FILE", value_parser = path(), env = "TARPON_POLICY")]
    policy: Option<PathBuf>,
    /// Index repository: registry prefix (HOST[:PORT]/PATH) or OCI layout (oci:DIR) with indexes and boot packs of images; may be repeated
    #[arg(long = "index-repo", value_name = "PREFIX", env = "TARPON_INDEX_REPO", value_delimiter = ',', value_parser = index_repo)]
    index_repos: Vec<IndexRepo>,
    #[command(flatten)]
    scrub: ScrubChoice,
}

fn socket_path(text: &str) -> std::result::Result<PathBuf, String> {
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
        let (metrics, scrub) = (self.metrics, self.scrub.scrub);
        let program = session.client().server_command().first().map(PathBuf::from);
        let runtime_program = self.runtime.clone();
        let policy = policy(self.policy.as_deref());
        let options = Options {
            socket,
            metrics,
            keeper_command,
            runtime: runtime_program,
            policy,
            index_repos: self.index_repos.clone(),
            scrub,
            program: program.clone(),
        };
        runtime()?.block_on(async {
            let mut daemon = tarpon_daemon::Daemon::start(session.engine().clone(), options).await.doing(doing)?;
            let ended = match (daemon.until_signal().await, program) {
                (Ended::Upgraded, Some(program)) => {
                    let mut command = Command::new(program);
                    command.args(std::env::args_os().skip(1));
                    daemon.upgrade(command).await.doing(doing)?
                }
                (ended, _) => {
                    daemon.stop().await;
                    ended
                }
            };
            match ended {
                Ended::Interrupted => Err(Failure::new(Exit::Interrupted, "interrupted; all mounts were unmounted")),
                Ended::Idle | Ended::Terminated | Ended::Upgraded => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_an_absolute_path() {
        assert_eq!(socket_path("unix:///run/a.sock"), Ok("/run/a.sock".into()));
        for odd in ["/run/a.sock", "unix://a.sock", "tcp://127.0.0.1:80", ""] {
            assert!(socket_path(odd).is_err(), "{odd}");
        }
    }
}
