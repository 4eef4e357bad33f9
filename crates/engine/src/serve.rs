//! The background server's own life, from being spawned to its end.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit};
use tarpon_blob::LogLimit;

use crate::server::{Ended, Observer, READY, Server, StopSignals as Signals, connect};
use crate::{Engine, Error, ErrorKind, Result};

/// How long a server that finds another one in its place waits for that one to listen or to go, which takes as long
/// as running requests take to drain.
const RACE: Duration = Duration::from_secs(15);

/// How long whoever wants the place for good waits for a server that has nothing mounted: it ends within milliseconds if it was started
/// on demand, and not at all otherwise.
const HANDOVER: Duration = Duration::from_secs(5);

/// Pause between two looks at the other one.
const LOOK: Duration = Duration::from_millis(5);

/// Pause between two tries to take the place of another server, which may go on for days.
const TAKEOVER: Duration = Duration::from_secs(1);

/// Longest pause between two tries where no other server is in the way: each one that fails takes the lock and the socket of the store.
const LONGEST_TAKEOVER: Duration = Duration::from_secs(60);

/// Pause between two tries to listen for metrics at an address that is in use.
const METRICS_RETRY: Duration = Duration::from_secs(30);

/// Runs the server of the engine's store until its last mount is gone. `scrub`: bytes per second to scrub the store with, if it is to.
/// `said` is the standard output: it gets one line, [`READY`] or why not.
pub async fn serve(engine: &Engine, scrub: Option<NonZeroU64>, mut said: impl Write) -> Result<()> {
    // The terminal of whoever started us is not ours: its hang-up must not end the mounts.
    let _is_leader_already = rustix::process::setsid();
    allow_open_files();
    match start(engine).await {
        Ok(Some(server)) => {
            say(&mut said, READY);
            drop(said);
            if let Some(Err(error)) = scrub.map(|rate| server.begin_scrub(rate)) {
                tracing::warn!(%error, "the store is not scrubbed");
            }
            let _ended = server.run().await;
            Ok(())
        }
        Ok(None) => {
            say(&mut said, READY);
            Ok(())
        }
        Err(error) => {
            say(&mut said, &error.to_string());
            Err(error)
        }
    }
}

/// What a server for good does beside serving.
#[derive(Debug, Clone, Default)]
pub struct Equipment {
    /// Where it tells metrics.
    pub metrics: Option<SocketAddr>,
    /// Directories and sockets that no mount may hide.
    pub protected: Vec<PathBuf>,
    /// Bytes per second to scrub the store with, if it is to.
    pub scrub: Option<NonZeroU64>,
}

/// A server of the engine's store for good: this process, or until its last mount is gone another one that serves mounts already. Nobody
/// could take these over without failing their readers.
pub struct ForGood {
    engine: Engine,
    /// None: another process serves the store.
    server: Option<Server>,
    observer: Observer,
    equipment: Equipment,
    /// For as long as there is no server, which listens for them itself.
    signals: Option<Signals>,
    /// Until the next try to take the place of the other server.
    pause: Duration,
}

impl ForGood {
    /// Becomes the server of the engine's store, to serve until it is told to stop. One that was started on demand and has nothing mounted
    /// ends as soon as it has answered, and is waited for. Where another process serves mounts, it is left to that, and this one takes its
    /// place when it has ended.
    ///
    /// # Errors
    /// Another process without mounts serves the store for good, or metrics cannot be told there.
    pub async fn start(engine: &Engine, equipment: Equipment) -> Result<Self> {
        allow_open_files();
        let observer = Observer::default();
        let mut this =
            Self { engine: engine.clone(), server: None, observer, equipment, signals: None, pause: TAKEOVER };
        let began = Instant::now();
        loop {
            let error = match Server::start(engine).await {
                Ok(server) => {
                    this.server = Some(this.equipped(server).await?);
                    return Ok(this);
                }
                Err(error) => error,
            };
            let client = engine.client();
            let asked = tokio::task::spawn_blocking(move || client.status()).await;
            let mounts = asked.ok().and_then(|status| status.ok().flatten()).unwrap_or_default().len();
            if mounts > 0 {
                let s = if mounts == 1 { "" } else { "s" };
                tracing::warn!("{}, with {mounts} mount{s}: this one takes its place when it has ended", error.cause);
                let failed = |error: io::Error| Error::new(ErrorKind::Other, "listen for signals", error);
                this.signals = Some(Signals::listen().map_err(failed)?);
                return Ok(this);
            }
            if began.elapsed() > HANDOVER {
                return Err(
                    error.hint("one daemon serves a store: stop that process, or name another store with --store")
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn equipped(&self, server: Server) -> Result<Server> {
        self.equip(&server);
        if let Err(error) = self.tell_metrics(&server) {
            // What an earlier server had mounted is mounted here by now.
            server.suspend().await;
            return Err(error);
        }
        self.observer.see(&server);
        Ok(server)
    }

    fn equip(&self, server: &Server) {
        self.equipment.protected.iter().cloned().for_each(|path| server.protect(path));
        if let Some(Err(error)) = self.equipment.scrub.map(|rate| server.begin_scrub(rate)) {
            tracing::warn!(%error, "the store is not scrubbed");
        }
    }

    fn tell_metrics(&self, server: &Server) -> Result<()> {
        self.equipment.metrics.map_or(Ok(()), |address| server.tell_metrics(address))
    }

    /// As [`ForGood::tell_metrics`], for a server that has mounts and serves these in any case.
    fn tell_metrics_later(&self, server: &Server) {
        static UNTOLD: LogLimit = LogLimit::new();
        if let Err(error) = self.tell_metrics(server)
            && let Some(left_out) = UNTOLD.admit()
        {
            let seconds = METRICS_RETRY.as_secs();
            tracing::warn!("cannot tell metrics: {}; next try in {seconds} s{left_out}", error.cause);
        }
    }

    /// Looks at the server from outside, from when this process is it.
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Whether this process is the server.
    pub fn serves(&self) -> bool {
        self.server.is_some()
    }

    /// Resolves at SIGTERM or SIGINT, and says which it was. It still serves then. As long as another process is the server, it tries to take its
    /// place.
    pub async fn until_told(&mut self) -> Ended {
        let mut next_telling = Instant::now();
        loop {
            if let Some(server) = &mut self.server {
                if self.equipment.metrics.is_none() || server.metrics().is_some() {
                    return server.until_told().await;
                }
                if Instant::now() < next_telling {
                    tokio::select! {
                        ended = server.until_told() => return ended,
                        () = tokio::time::sleep_until(next_telling.into()) => {}
                    }
                }
                next_telling = Instant::now() + METRICS_RETRY;
                self.server.iter().for_each(|server| self.tell_metrics_later(server));
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
        let server = match Server::start(&self.engine).await {
            Ok(server) => server,
            Err(_) if self.engine.store().server().is_some() => return self.pause = TAKEOVER,
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

/// As many open files as this process may have: each image that is shown to Podman takes four.
pub fn allow_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "no more open files than before");
    }
}

/// The server; `None` if another process has become it meanwhile and answers.
async fn start(engine: &Engine) -> Result<Option<Server>> {
    let began = Instant::now();
    loop {
        let error: Error = match Server::start(engine).await {
            Ok(server) => return Ok(Some(server)),
            Err(error) => error,
        };
        if connect(&engine.store().run_folder()).is_ok() {
            return Ok(None);
        }
        if began.elapsed() > RACE {
            return Err(error);
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn say(said: &mut impl Write, line: &str) {
    // Whoever started us may be gone; the server is there all the same.
    let _gone: io::Result<()> = writeln!(said, "{}", line.replace('\n', " ")).and_then(|()| said.flush());
}
