//! [`Server`]: the server, from its start to its end.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tarpon_client::protocol::{Mended, MountRequest, MountStatus, Request, Response, ScrubStatus};
use tarpon_client::rootfs::{Folders, Rootfs, RootfsRequest};
use tarpon_client::{server_version, wire};
use tarpon_holder::ServiceStore;
use tarpon_images::Prepared;
use tarpon_mount::Unmounted;
use tarpon_store::{LockError, ServerLock};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::answer::{answer, failure};
use super::give_way::GiveWay;
use super::holding::{Holding, Lifetime};
use super::in_process::InProcess;
use super::mount_table::MountTable;
use super::setup::ServerSetup;
use super::signals::{Ended, Signals};
use super::{listen, memory, metrics, recover, service};
use crate::{Error, ErrorKind, Result, ResultExt};

/// Interval of the maintenance: syncing what was published, probing a failing disk, giving freed memory back.
const MAINTENANCE: Duration = Duration::from_secs(30);

/// How long the service manager lets a server start, once it has the store: after an unclean stop of the machine it checks the objects of
/// the images that were mounted.
const LONGEST_START: Duration = Duration::from_secs(360);

/// How long a new server waits for its first request. The process that started it sends one at once.
const FIRST_REQUEST: Duration = Duration::from_secs(20);

/// How long running requests may take to end when the server is stopped.
const DRAIN: Duration = Duration::from_secs(10);
/// How long an upgrade waits for pages that are being put into the kernel's page cache: several round trips.
const PAGE_IN: Duration = Duration::from_secs(3);

/// The server, running in this process. Dropping it unmounts everything.
pub struct Server {
    rootfs_folders: Arc<Folders>,
    pub(super) mounts: Arc<MountTable>,
    listener: tokio::task::JoinHandle<()>,
    maintenance: tokio::task::JoinHandle<()>,
    lock: ServerLock,
    signals: Signals,
}

impl Server {
    /// Becomes the server of the store: takes the lock, mounts again what a dead server left, and listens.
    ///
    /// # Errors
    /// [`ErrorKind::Store`] if another process is already the server.
    pub async fn start(setup: impl Into<ServerSetup>) -> Result<Self> {
        Self::start_with(&setup.into(), Lifetime::Process, None, &mut None).await
    }

    /// As [`Server::start`], with the connections kept for a successor where the store can have a holder. It hands its mounts over to a
    /// server that requests it, from its first answer on.
    pub(super) async fn start_in_background(setup: &ServerSetup) -> Result<Self> {
        Self::start_with(setup, Lifetime::Held, Some(GiveWay::End), &mut None).await
    }

    /// As [`Server::start`], with the connections kept, and with the descriptor store of the service manager, which is taken once this
    /// process is the server.
    pub(super) async fn start_in_service(setup: &ServerSetup, service: &mut Option<ServiceStore>) -> Result<Self> {
        Self::start_with(setup, Lifetime::Held, None, service).await
    }

    async fn start_with(
        setup: &ServerSetup,
        lifetime: Lifetime,
        way: Option<GiveWay>,
        service: &mut Option<ServiceStore>,
    ) -> Result<Self> {
        let store = setup.client.store();
        let step = "become the server of the store";
        let lock =
            store.server_lock().map_err(|error: LockError| Error::new(ErrorKind::Store, step, error.to_string()))?;
        let socket = wire::listen(&store.server_folder()).context(ErrorKind::Store, step)?;
        server_version::withdraw(store);
        // Before the first mount, which a signal would leave behind.
        let signals = Signals::listen().context(ErrorKind::Store, step)?;
        let service = service.take();
        let is_service = service.is_some();
        let (holding, inheritance) = Holding::attach(&setup.client, lifetime, service);
        if is_service {
            // From here on the holder limits how long readers wait.
            service::extend_start(LONGEST_START);
        }
        let mounts = Arc::new(MountTable::new(setup, Handle::current(), holding, inheritance)?);
        way.into_iter().for_each(|way| mounts.succession.allow(way));
        let left = recover::adopt_held(&mounts).await;
        // Before clients can see that it runs: one that dies before this counts as a failure.
        mounts.holding.serving();
        recover::mount_again(&mounts, left).await;
        let listener = listen::listen(socket, mounts.clone()).context(ErrorKind::Store, step)?;
        let maintenance = tokio::spawn(maintain(mounts.clone()));
        Ok(Self { rootfs_folders: setup.rootfs_folders.clone(), mounts, listener, maintenance, lock, signals })
    }

    /// Mounts, in this process.
    pub async fn mount(&self, request: MountRequest) -> Result<MountStatus> {
        match answer(&self.mounts, Request::mount(request)).await {
            Response::Mounted(status) => Ok(*status),
            other => Err(failure(other)),
        }
    }

    /// A root file system, mounted by this process.
    ///
    /// # Errors
    /// [`ErrorKind::CannotMount`] if the kernel or the user's rights do not allow it.
    pub async fn rootfs(&self, prepared: &Prepared, request: &RootfsRequest) -> Result<Rootfs> {
        let host = Arc::new(InProcess::of(&self.mounts));
        Rootfs::mount(&self.rootfs_folders, host, prepared, request).await
    }

    /// Unmounts.
    pub async fn unmount(&self, mountpoint: PathBuf) -> Result<Unmounted> {
        match answer(&self.mounts, Request::Unmount { mountpoint, only_unused: false }).await {
            Response::Unmounted { how } => Ok(how),
            other => Err(failure(other)),
        }
    }

    /// Repairs damaged objects under mounts. This also happens automatically every half minute.
    pub async fn mend(&self) -> Result<Mended> {
        match answer(&self.mounts, Request::Mend).await {
            Response::Mended(mended) => Ok(mended),
            other => Err(failure(other)),
        }
    }

    /// Refuses mounts from now on that would hide this directory or socket.
    pub fn protect(&self, path: PathBuf) {
        let reachable = vec![path];
        self.mounts.host().protect(tarpon_mount::Protected { reachable, closed: Vec::new() });
    }

    /// The address of the metrics endpoint, if there is one.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.mounts.endpoint.address()
    }

    /// Serves metrics at this address from now on, with or without mounts.
    pub fn serve_metrics(&self, address: SocketAddr) -> Result<()> {
        metrics::open(&self.mounts, address).map(drop)
    }

    /// Starts to hash all objects of the store periodically, at most so many bytes per second, until the server ends.
    pub fn begin_scrub(&self, rate: NonZeroU64) -> Result<()> {
        self.mounts.begin_scrub(rate)
    }

    /// The status of the scrub, and its changes.
    pub fn scrub(&self) -> watch::Receiver<ScrubStatus> {
        self.mounts.scrub.watch()
    }

    #[cfg(test)]
    pub(super) fn backfills(&self) -> &super::backfill::Backfills {
        self.mounts.backfills()
    }

    /// All mounts.
    pub fn status(&self) -> Vec<MountStatus> {
        self.mounts.status()
    }

    /// Serves until the last mount is unmounted and unused, or until SIGTERM or SIGINT. Then unmounts the rest and marks the store as
    /// cleanly stopped. Returns the reason.
    pub async fn run(mut self) -> Ended {
        if self.mounts.holding.is_held()
            && let Err(error) = server_version::note(self.mounts.store())
        {
            tracing::warn!(%error, "a newer program will not replace this server");
        }
        let ended = tokio::select! {
            () = self.mounts.idle(FIRST_REQUEST) => Ended::Idle,
            () = self.mounts.succession.requested() => {
                tracing::info!("another server takes this one's place");
                leave(&self.mounts)
            }
            signal = self.signals.stop() => signal,
        };
        self.stop(ended != Ended::Idle).await;
        ended
    }

    /// Serves, with or without mounts, until SIGTERM or SIGINT, or until a client requests an upgrade, if that is allowed. Returns
    /// the reason. The server still runs then.
    pub async fn until_signal(&mut self) -> Ended {
        tokio::select! {
            ended = self.signals.stop() => ended,
            () = self.mounts.succession.requested() => Ended::Upgraded,
        }
    }

    /// Resolves at SIGTERM or SIGINT.
    pub(super) async fn signal(&mut self) -> Ended {
        self.signals.stop().await
    }

    /// Allows clients to request that this process executes this program ([`Ended::Upgraded`]).
    pub(super) fn allow_upgrade(&self, program: PathBuf) {
        self.mounts.succession.allow(GiveWay::Execute(program));
    }

    /// Executes another program in this process. Its server adopts the mounts. If it cannot be executed, this process ends as a kill would
    /// end it, and the holder starts a server. Returns if the holder does not answer, or a thread that the end of this process would wait
    /// for is busy for too long.
    pub(super) fn execute(self, mut command: Command) -> io::Error {
        self.mounts.keep_counters();
        if !self.mounts.host().stop_page_in(PAGE_IN) {
            return io::Error::other("the kernel waits for data that is being fetched: try again later");
        }
        if !self.mounts.holding.hand_over(Some(std::process::id())) {
            return io::Error::other("the holder of the mounts does not answer");
        }
        let error = command.exec();
        tracing::error!(%error, "the new program cannot be executed: a server in the background serves the mounts");
        std::process::exit(1)
    }

    /// As [`Server::stop`], but the next server of the store restores the mounts, except those of containers.
    pub async fn suspend(self) {
        self.end(true, true).await;
    }

    /// Mount points in use: by open files, by a container that has the mount as a layer, or by a bind mount elsewhere.
    pub async fn in_use(&self) -> Vec<PathBuf> {
        let mounts = self.mounts.clone();
        tokio::task::spawn_blocking(move || mounts.in_use()).await.unwrap_or_default()
    }

    /// As [`Server::suspend`]. If a mount is in use, all mounts stay instead, and this process ends: the holder starts a server in the
    /// background that serves them. Without a holder, this process continues to serve all mounts and ends with the last one. SIGINT ends
    /// it at once then. Another SIGTERM, which systemd sends after `TimeoutStopSec`, does not.
    pub async fn retire(mut self) {
        let in_use = self.in_use().await;
        if !in_use.is_empty() {
            let paths: Vec<_> = in_use.iter().map(|path| path.display().to_string()).collect();
            let paths = paths.join(", ");
            if self.mounts.holding.is_held() {
                tracing::warn!("in use: {paths}. All mounts stay, and a server in the background serves them");
                leave(&self.mounts);
            }
            let pid = std::process::id();
            tracing::warn!(
                "in use: {paths}. All mounts stay, and process {pid} serves them until the last one is unmounted"
            );
            tokio::select! {
                () = self.mounts.idle(FIRST_REQUEST) => {}
                _ = self.signals.interrupted() => {}
            }
        }
        self.suspend().await;
    }

    /// Ends the server, after unmounting everything if `unmount` is set.
    pub async fn stop(self, unmount: bool) {
        self.end(unmount, false).await;
    }

    async fn end(self, unmount: bool, remembers: bool) {
        let Self { rootfs_folders: _, mounts, listener, maintenance, lock, signals: _ } = self;
        maintenance.abort();
        server_version::withdraw(mounts.store());
        mounts.endpoint.close();
        let scrubbed = mounts.clone();
        let _panicked = tokio::task::spawn_blocking(move || scrubbed.scrub.stop()).await;
        // Closed before the lock is released: a client that finds the lock taken expects a listener here.
        listener.abort();
        let _aborted = listener.await;
        if unmount {
            mounts.shut_down(DRAIN, remembers).await;
        }
        let dismissed = mounts.clone();
        let _panicked = tokio::task::spawn_blocking(move || dismissed.holding.dismiss()).await;
        // A successor may start while this server still waits for the disk, since a sync takes as long as the disk takes.
        drop(lock);
        let store = mounts.store().clone();
        let stopped = tokio::task::spawn_blocking(move || store.stop_clean()).await;
        if let Ok(Err(error)) = stopped {
            tracing::warn!(%error, "the store was not left in order");
        }
    }
}

/// Ends this process as a kill would: its mounts stay, and a successor adopts them. A return would answer waiting readers with an error.
fn leave(mounts: &MountTable) -> ! {
    mounts.keep_counters();
    std::process::exit(0)
}

async fn maintain(mounts: Arc<MountTable>) {
    loop {
        tokio::time::sleep(MAINTENANCE).await;
        let kept = mounts.clone();
        let done = tokio::task::spawn_blocking(move || {
            kept.tidy();
            kept.learn();
            kept.keep_counters();
            // First, because eviction keeps damaged files only for mounted images, not for lazily unmounted ones.
            if let Err(error) = kept.mend() {
                tracing::warn!(%error, "what is damaged is not mended");
            }
            let maintained = kept.store().maintain();
            memory::give_back();
            maintained
        })
        .await;
        if let Ok(Err(error)) = done {
            tracing::warn!(%error, "maintenance of the store");
        }
    }
}
