//! `tarpon daemon`: the permanent server of a store, with its API.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use tarpon_daemon::{Learning, Options, Socket};
use tarpon_engine::trace::MOST_STARTS;
use tarpon_engine::{DEFAULT_STARTS, Ended};
use tarpon_oci::IndexRepo;

use super::image::{POLICY_VARIABLE, TierChoice, index_repo, policy};
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
  tarpon daemon --learn publish --index-repo registry.example/tarpon
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
    #[arg(long, value_name = "FILE", value_parser = path(), env = POLICY_VARIABLE)]
    policy: Option<PathBuf>,
    /// Index repository: registry prefix (HOST[:PORT]/PATH) or OCI layout (oci:DIR) with indexes and boot packs of images; may be repeated
    #[arg(long = "index-repo", value_name = "PREFIX", env = "TARPON_INDEX_REPO", value_delimiter = ',', value_parser = index_repo)]
    index_repos: Vec<IndexRepo>,
    #[command(flatten)]
    tier: TierChoice,
    #[command(flatten)]
    learning: GivenLearning,
    #[command(flatten)]
    scrub: ScrubChoice,
}

/// What becomes of learned starts.
#[derive(Debug, Args)]
struct LearningChoice {
    /// What becomes of learned starts: publish needs --index-repo, and the right to push there
    ///
    /// publish: every ten minutes `tarpon trace publish` runs at low priority for images that started often enough, one after another. The
    /// boot pack of an image is published once; the next hosts find it. Images that need credentials and those that the policy rejects are
    /// not published. Events and the log report what was done.
    #[arg(long, value_name = "WHAT", env = "TARPON_LEARN", default_value = "keep")]
    learn: LearnWhat,
    /// With --learn publish: number of equal starts in a row after which an image is published
    #[arg(long, value_name = "N", env = "TARPON_LEARN_AFTER", default_value_t = DEFAULT_STARTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STARTS)))]
    learn_after: u32,
    /// With --learn publish: also publish images that need credentials, whose contents the readers of the index repository may read then
    #[arg(long)]
    publish_private: bool,
    /// With --learn publish: sign what is published with this private key, as `tarpon trace publish` does
    #[arg(long, value_name = "FILE", value_parser = path())]
    sign_by_key: Option<PathBuf>,
}

/// The options of [`LearningChoice`] that have no effect without `--learn publish`, by field and as they are written.
const OF_PUBLISHING: [(&str, &str); 3] =
    [("learn_after", "--learn-after"), ("publish_private", "--publish-private"), ("sign_by_key", "--sign-by-key")];

/// A choice of which each option on the command line has an effect. Variables may be set for all daemons of a host.
#[derive(Debug)]
struct GivenLearning(LearningChoice);

impl FromArgMatches for GivenLearning {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let given = |field: &str| matches.value_source(field) == Some(ValueSource::CommandLine);
        let useless = OF_PUBLISHING.iter().find(|(field, _)| given(field));
        let choice = LearningChoice::from_arg_matches(matches)?;
        match useless {
            Some((_, option)) if choice.learn == LearnWhat::Keep => {
                let why =
                    format!("{option} has no effect without --learn publish\n\n  tip: see tarpon daemon --help\n");
                Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, why))
            }
            _ => Ok(Self(choice)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GivenLearning {
    fn augment_args(command: clap::Command) -> clap::Command {
        LearningChoice::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        LearningChoice::augment_args_for_update(command)
    }
}

/// What becomes of learned starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LearnWhat {
    /// They stay on this host
    Keep,
    /// Boot packs of them are published in the first index repository
    Publish,
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
            tier: self.tier.location(),
            scrub,
            learning: self.learning(&session)?,
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

impl Daemon {
    /// How learned starts are published, if they are to be: by another process with these options.
    fn learning(&self, session: &Session) -> Result<Option<Learning>> {
        let LearningChoice { learn, learn_after: after, publish_private, ref sign_by_key } = self.learning.0;
        if learn == LearnWhat::Keep {
            return Ok(None);
        }
        if self.index_repos.is_empty() {
            let failure = Failure::new(Exit::Usage, "cannot publish learned starts: there is no index repository");
            return Err(failure.hint("--index-repo names one to which this host may push"));
        }
        let mut command = session.command("trace")?;
        command.extend(["publish", "--json", "--low-priority", "--after"].map(OsString::from));
        command.push(after.to_string().into());
        if publish_private {
            command.push("--publish-private".into());
        }
        if let Some(policy) = &self.policy {
            command.extend(["--policy".into(), policy.into()]);
        }
        if let Some(key) = sign_by_key {
            command.extend(["--sign-by-key".into(), key.into()]);
        }
        for repo in &self.index_repos {
            command.extend(["--index-repo".into(), repo.to_string().into()]);
        }
        Ok(Some(Learning { command, after }))
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
