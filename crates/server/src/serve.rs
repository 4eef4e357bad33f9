//! The lifecycle of the background server, from being spawned to its end.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use tarpon_blob::LogLimit;
use tarpon_client::child::READY;
use tarpon_client::wire::{connect, peer};
use tarpon_holder::ServiceStore;

use super::observer::Observer;
use super::process::Server;
use super::service;
use super::setup::ServerSetup;
use super::signals::{Ended, Signals};
use crate::{Error, ErrorKind, Result, ResultExt};

/// How long a server that finds another one running waits for it to listen or to end, which takes as long as running requests take to
/// drain.
const RACE: Duration = Duration::from_secs(15);

/// How long a permanent server waits for a server that has nothing mounted to end: one started on demand ends within milliseconds, any
/// other not at all.
const HANDOVER: Duration = Duration::from_secs(5);

/// How long the service manager lets a permanent server wait for another one: a server that is starting answers late.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Poll interval for the other server.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Interval between attempts to replace another server, which may run for days.
const TAKEOVER: Duration = Duration::from_secs(1);

/// Maximum interval between attempts when no other server runs: each failed one takes the lock and the socket of the store.
const LONGEST_TAKEOVER: Duration = Duration::from_secs(60);

/// Interval between attempts to listen for metrics at an address that is in use.
const METRICS_RETRY: Duration = Duration::from_secs(30);

/// Options of a server in the background.
#[derive(Debug, Clone, Copy, Default)]
pub struct BackgroundOptions {
    /// Bytes per second for scrubbing the store, if it does.
    pub scrub: Option<NonZeroU64>,
    /// Whether it takes the place of a running server.
    pub replace: bool,
}

/// Runs the server of the store until its last mount is gone. `output` is the standard output: it gets one line, `ready` or the error.
pub async fn serve(setup: impl Into<ServerSetup>, options: BackgroundOptions, mut output: impl Write) -> Result<()> {
    // The terminal belongs to the process that started us: its hang-up must not end the mounts.
    let _is_leader_already = rustix::process::setsid();
    allow_open_files();
    refuse_dumps();
    match start(&setup.into(), options.replace).await {
        Ok(Some(server)) => {
            write_line(&mut output, READY);
            drop(output);
            if let Some(Err(error)) = options.scrub.map(|rate| server.begin_scrub(rate)) {
                tracing::warn!(%error, "the store is not scrubbed");
            }
            let _ended = server.run().await;
            Ok(())
        }
        Ok(None) => {
            write_line(&mut output, READY);
            Ok(())
        }
        Err(error) => {
            write_line(&mut output, &error.to_string());
            Err(error)
        }
    }
}

/// Options of a permanent server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Address of its metrics.
    pub metrics: Option<SocketAddr>,
    /// Directories and sockets that no mount may hide.
    pub protected: Vec<PathBuf>,
    /// Bytes per second for scrubbing the store, if it does.
    pub scrub: Option<NonZeroU64>,
    /// The program that [`PermanentServer::execute`] is called with when clients request an upgrade. It prints its version with
    /// `--version`. `None`: there are no upgrades.
    pub program: Option<PathBuf>,
}

/// A permanent server of the store: this process, or another one that already serves mounts, until its last mount is gone. Its
/// mounts cannot be taken over without failing their readers.
pub struct PermanentServer {
    setup: ServerSetup,
    /// None: another process serves the store.
    server: Option<Server>,
    observer: Observer,
    options: ServerOptions,
    /// Until this process is the server.
    service: Option<ServiceStore>,
    /// Set until this process is the server, which then handles signals itself.
    signals: Option<Signals>,
    /// Delay before the next attempt to replace the other server.
    pause: Duration,
}

impl PermanentServer {
    /// Becomes the server of the store, serving until it is stopped. A server in the background hands its mounts over. If another process
    /// serves mounts and cannot hand them over, it keeps the store, and this one replaces it after it has ended. `service`: the descriptor
    /// store of the service manager.
    ///
    /// # Errors
    /// Another permanent server without mounts serves the store, or metrics cannot be exposed at the address.
    pub async fn start(
        setup: impl Into<ServerSetup>,
        options: ServerOptions,
        service: Option<ServiceStore>,
    ) -> Result<Self> {
        let setup = setup.into();
        allow_open_files();
        refuse_dumps();
        let (observer, pause) = (Observer::default(), TAKEOVER);
        let mut this = Self { setup: setup.clone(), server: None, observer, options, service, signals: None, pause };
        let began = Instant::now();
        loop {
            let error = match Server::start_in_service(&setup, &mut this.service).await {
                Ok(server) => {
                    this.server = Some(this.equipped(server).await?);
                    return Ok(this);
                }
                Err(error) => error,
            };
            if this.service.is_some() {
                service::extend_start(LONGEST_WAIT);
            }
            let client = setup.client.clone();
            let handed_over = tokio::task::spawn_blocking(move || client.hand_over()).await;
            if matches!(handed_over, Ok(Ok(Some(_)))) && began.elapsed() < HANDOVER {
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
            let client = setup.client.clone();
            let asked = tokio::task::spawn_blocking(move || client.status()).await;
            let mounts = asked.ok().and_then(|status| status.ok().flatten()).unwrap_or_default().len();
            if mounts > 0 {
                let s = if mounts == 1 { "" } else { "s" };
                tracing::warn!("{}, with {mounts} mount{s}: this one takes its place when it has ended", error.cause());
                // Readers of a connection that this process has and does not serve would wait for ever.
                this.service.iter_mut().for_each(ServiceStore::forget_passed);
                this.signals = Some(Signals::listen().context(ErrorKind::Other, "listen for signals")?);
                return Ok(this);
            }
            if began.elapsed() > HANDOVER {
                return Err(
                    error.hint("one daemon serves a store: stop that process, or name another store with --store")
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn equipped(&self, server: Server) -> Result<Server> {
        self.equip(&server);
        if let Err(error) = self.serve_metrics(&server) {
            // The mounts of an earlier server are restored here by now.
            server.suspend().await;
            return Err(error);
        }
        self.observer.see(&server);
        Ok(server)
    }

    fn equip(&self, server: &Server) {
        self.options.protected.iter().cloned().for_each(|path| server.protect(path));
        self.options.program.iter().cloned().for_each(|program| server.allow_upgrade(program));
        if let Some(Err(error)) = self.options.scrub.map(|rate| server.begin_scrub(rate)) {
            tracing::warn!(%error, "the store is not scrubbed");
        }
    }

    fn serve_metrics(&self, server: &Server) -> Result<()> {
        self.options.metrics.map_or(Ok(()), |address| server.serve_metrics(address))
    }

    /// As [`PermanentServer::serve_metrics`], for a server that has mounts and serves these in any case.
    fn serve_metrics_later(&self, server: &Server) {
        static UNSERVED: LogLimit = LogLimit::new();
        if let Err(error) = self.serve_metrics(server)
            && let Some(left_out) = UNSERVED.admit()
        {
            let seconds = METRICS_RETRY.as_secs();
            tracing::warn!("cannot serve metrics: {}; next try in {seconds} s{left_out}", error.cause());
        }
    }

    /// Observes the server from outside, once this process is the server.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Whether this process is the server.
    pub fn serves(&self) -> bool {
        self.server.is_some()
    }

    /// Resolves at SIGTERM or SIGINT, or for an upgrade, and returns the reason. The server still runs then. While another process is the server, it tries to
    /// replace it.
    pub async fn until_signal(&mut self) -> Ended {
        let mut next_telling = Instant::now();
        loop {
            if let Some(server) = &mut self.server {
                if self.options.metrics.is_none() || server.metrics().is_some() {
                    return server.until_signal().await;
                }
                if Instant::now() < next_telling {
                    tokio::select! {
                        ended = server.until_signal() => return ended,
                        () = tokio::time::sleep_until(next_telling.into()) => {}
                    }
                }
                next_telling = Instant::now() + METRICS_RETRY;
                self.server.iter().for_each(|server| self.serve_metrics_later(server));
                continue;
            }
            if let Some(signals) = &mut self.signals {
                tokio::select! {
                    ended = signals.stop() => return ended,
                    () = tokio::time::sleep(self.pause) => {}
                }
            }
            self.try_to_take_over().await;
        }
    }

    async fn try_to_take_over(&mut self) {
        // What the manager did not take before.
        self.service.iter_mut().for_each(ServiceStore::forget_passed);
        let server = match Server::start_in_service(&self.setup, &mut self.service).await {
            Ok(server) => server,
            Err(_) if self.setup.client.store().server().is_some() => return self.pause = TAKEOVER,
            Err(error) => {
                static FAILED: LogLimit = LogLimit::new();
                if let Some(left_out) = FAILED.admit() {
                    tracing::warn!(%error, "cannot take the place of the other server{left_out}");
                }
                return self.pause = (self.pause * 2).min(LONGEST_TAKEOVER);
            }
        };
        tracing::info!("the other server has ended: this process serves the store now");
        self.equip(&server);
        self.observer.see(&server);
        self.server = Some(server);
    }

    /// Resolves at SIGTERM or SIGINT.
    pub async fn signal(&mut self) -> Ended {
        match (&mut self.server, &mut self.signals) {
            (Some(server), _) => server.signal().await,
            (None, Some(signals)) => signals.stop().await,
            (None, None) => std::future::pending().await,
        }
    }

    /// Executes a newer program in this process. Its server adopts the mounts, unnoticed by their readers. Returns if the program cannot be
    /// executed; then this process must end.
    pub fn execute(self, mut command: Command) -> io::Error {
        match self.server {
            Some(server) => server.execute(command),
            None => command.exec(),
        }
    }

    /// As [`Server::retire`], if this process is the server.
    pub async fn retire(self) {
        if let Some(server) = self.server {
            server.retire().await;
        }
    }

    /// As [`Server::suspend`], if this process is the server.
    pub async fn suspend(self) {
        if let Some(server) = self.server {
            server.suspend().await;
        }
    }
}

/// Raises the limit of open files to the maximum allowed: each image exposed to Podman takes four.
pub fn allow_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "no more open files than before");
    }
}

/// Gives up what a server of root does not need ([`tarpon_sandbox::keep_mount_privileges`]). To be called before the process starts a
/// thread, and not by a process that also runs containers.
///
/// # Errors
/// The process has several threads, or the kernel refuses a step.
pub fn keep_mount_privileges() -> Result<()> {
    tarpon_sandbox::keep_mount_privileges().context(ErrorKind::Other, "give up the privileges that mounts do not need")
}

/// Refuses core dumps of a server of root, which has credentials in its memory. Programs that it executes are not affected.
///
/// Without root other processes of the same user could read its files just as well, and the kernel would deny the server itself what
/// `fusermount3` and user namespaces need in `/proc`, and other commands the namespaces of a server that is root of one.
fn refuse_dumps() {
    if !rustix::process::geteuid().is_root() || tarpon_store::in_user_namespace() {
        return;
    }
    if let Err(error) = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::debug!(%error, "core dumps are not refused");
    }
}

/// Starts the server. `replace`: in the place of the one that runs. `None` if another process has become the server meanwhile and replies.
async fn start(setup: &ServerSetup, replace: bool) -> Result<Option<Server>> {
    let began = Instant::now();
    let mut before = None;
    if replace {
        let client = setup.client.clone();
        let handed_over = tokio::task::spawn_blocking(move || client.hand_over()).await;
        before = handed_over.context(ErrorKind::Other, "replace the running server")??;
    }
    loop {
        let error: Error = match Server::start_in_background(setup).await {
            Ok(server) => return Ok(Some(server)),
            Err(error) => error,
        };
        // The server that hands over listens until its end.
        if connect(&setup.client.store().server_folder())
            .is_ok_and(|server| before.is_none() || peer(&server) != before)
        {
            return Ok(None);
        }
        if began.elapsed() > RACE {
            return Err(error);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn write_line(output: &mut impl Write, line: &str) {
    // The parent may be gone; the server still runs.
    let _gone: io::Result<()> = writeln!(output, "{}", line.replace('\n', " ")).and_then(|()| output.flush());
}
