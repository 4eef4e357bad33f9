//! The mounts of a server: created, described, unmounted, and tracked when another process unmounts them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_client::ContainerName;
use tarpon_client::mount_record::SavedMount;
use tarpon_client::protocol::{MountRequest, MountStatus};
use tarpon_client::traces;
use tarpon_images::Access;
use tarpon_images::origin::Origin;
use tarpon_images::tenant;
use tarpon_mount::{Host, Inheritance, Mode, ModeChoice, MountError, MountSpec, Mounted, Unmounted, Watch, Writable};
use tarpon_oci::Digest;
use tarpon_store::{MountRecord, Store};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::changes::Changes;
use super::counters::{MountCounts, Transfers};
use super::damage::Damage;
use super::domain::{Domain, Domains};
use super::exhibit::Exhibit;
use super::give_way::Succession;
use super::holding::{Holding, credentials_of};
use super::host::{ExhibitHost, cannot_mount};
use super::images::{LoadedImage, PackPlace};
use super::metrics::Endpoint;
use super::mount_points::{Client, Leaving, MountPoints, Reservation};
use super::recording::{Recording, recording_of};
use super::scrub::Scrub;
use super::setup::ServerSetup;
use super::status::exposed;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Why a remembered mount of a stopped server is not mounted.
pub(super) const STOPPED: &str = "its server was stopped: the next one mounts it again";

/// Images for which the server fetches at a time what their starts need. Each has requests of its own, at the lowest priority; more would
/// only wait.
pub(super) const BRINGING: usize = 8;

/// Clients that wait for that or for their turn, at most. Each costs a connection.
pub(super) const BRINGING_CLIENTS: usize = 64;

/// Permits for clients that have the server fetch what starts need.
pub(super) struct Bringing {
    pub(super) clients: Semaphore,
    pub(super) turns: Semaphore,
}

impl Default for Bringing {
    fn default() -> Self {
        Self { clients: Semaphore::new(BRINGING_CLIENTS), turns: Semaphore::new(BRINGING) }
    }
}

/// All mounts of the server.
pub(crate) struct MountTable {
    store: Store,
    pub(super) domains: Domains,
    pub(super) endpoint: Endpoint,
    exhibits: Vec<Arc<dyn Exhibit>>,
    may_run_on: fn(&Store, &Path) -> bool,
    runtime: Handle,
    pub(super) places: Arc<MountPoints<Served>>,
    pub(super) changes: Changes,
    /// Whether mounts unmounted from now on are remembered for the next server.
    remembers: AtomicBool,
    /// Mounts of a dead server that this one could not mount again.
    lost: Mutex<BTreeMap<PathBuf, MountStatus>>,
    pub(super) damage: Damage,
    pub(super) scrub: Scrub,
    pub(super) holding: Arc<Holding>,
    pub(super) succession: Succession,
    pub(super) bringing: Bringing,
}

/// A mount.
pub(super) struct Served {
    pub(super) request: MountRequest,
    pub(super) domain: Arc<Domain>,
    pub(super) image: Arc<LoadedImage>,
    pub(super) mounted: Mounted,
    pub(super) before: Baseline,
    pub(super) recording: Option<Recording>,
}

/// What separates the counters of a mount from those of its image.
pub(super) struct Baseline {
    /// The image's counters when this server made or adopted the mount. An earlier mount of the image may have increased them.
    before: MountCounts,
    /// What earlier servers counted for the mount.
    earlier: MountCounts,
}

impl MountTable {
    pub(super) fn new(
        setup: &ServerSetup,
        runtime: Handle,
        holding: Arc<Holding>,
        inheritance: Inheritance,
    ) -> Result<Self> {
        let host = ExhibitHost::with_holding(
            &setup.client,
            runtime.clone(),
            holding.clone(),
            inheritance,
            setup.sources.clone(),
        )?;
        let domains = Domains::new(host.domain.clone(), runtime.clone());
        let (store, changes) = (host.domain.store.clone(), host.changes.clone());
        let (places, lost, endpoint) = (Arc::default(), Mutex::default(), Endpoint::default());
        let (remembers, damage) = (AtomicBool::new(false), Damage::default());
        let (scrub, may_run_on) = (Scrub::new(&store), setup.may_run_on);
        let exhibits = setup.exhibits.iter().map(|new| new(host.clone())).collect();
        Ok(Self {
            store,
            domains,
            endpoint,
            exhibits,
            may_run_on,
            runtime,
            places,
            changes,
            remembers,
            lost,
            damage,
            scrub,
            holding,
            succession: Succession::default(),
            bringing: Bringing::default(),
        })
    }

    /// A table of mounts that end with this process.
    #[cfg(test)]
    pub(super) fn alone(setup: &ServerSetup, runtime: Handle) -> Result<Self> {
        let (holding, inheritance) = Holding::attach(&setup.client, super::holding::Lifetime::Process, None);
        Self::new(setup, runtime, holding, inheritance)
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    #[cfg(test)]
    pub(super) fn backfills(&self) -> &super::backfill::Backfills {
        &self.domains.whole().backfills
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn host(&self) -> &Host {
        &self.domains.whole().host
    }

    /// Admits a client. `None`: this server is ending.
    pub(super) fn enter(&self) -> Option<Client<Served>> {
        self.places.enter()
    }

    /// Starts to connect to the registry of an image. The server does not end before the image had time to be mounted. Not in an isolated
    /// store: the caller has not proved access yet, and must not make a tenant.
    pub(super) fn get_ready(&self, image: String, access: Access, attempt: u64) -> Result<()> {
        if tenant::is_isolated(&self.store)? {
            return Ok(());
        }
        let Some(client) = self.places.enter() else { return Ok(()) };
        let domain = self.domains.of(&image, &access)?;
        if let Some(ready) = domain.images.get_ready(image, access, attempt, client)? {
            self.runtime.spawn(ready);
        }
        Ok(())
    }

    /// Forgets an image of [`MountTable::get_ready`].
    pub(super) fn not_ready(&self, image: &str, access: &Access) -> Result<()> {
        if !tenant::is_isolated(&self.store)? {
            self.domains.of(image, access)?.images.not_ready(image, access);
        }
        Ok(())
    }

    /// Starts to fetch a boot pack. The server does not end before its image had time to be mounted.
    pub(super) fn prefetch_pack(&self, image: String, access: Access, pack: PackPlace) -> Result<()> {
        let Some(client) = self.places.enter() else { return Ok(()) };
        let domain = self.domains.of(&image, &access)?;
        if let Some(prefetch) = domain.images.prefetch_pack(image, access, pack, client)? {
            self.runtime.spawn(prefetch);
        }
        Ok(())
    }

    /// Mounts. The record is written before the mount system calls, so that a kill leaves no unrecorded mount.
    pub(super) fn mount(self: &Arc<Self>, request: MountRequest) -> Result<MountStatus> {
        match self.exhibit_for(&request) {
            Some(exhibit) => {
                tenant::refuse_isolated(&self.store, "show it to Podman")?;
                self.expose(&**exhibit, request)
            }
            None => self.mount_image(request),
        }
    }

    fn mount_image(self: &Arc<Self>, mut request: MountRequest) -> Result<MountStatus> {
        let domain = self.domains.of(&request.image, &request.access)?;
        let image = domain.images.load(&request)?;
        let trace = request.trace.take();
        let own_inodes = super::sharing::own_inodes(request.mode, image.contested_inode())?;
        if request.mode != ModeChoice::Only(Mode::Fuse) {
            image.check_objects()?;
        }
        let place = self.reserve(&request.mountpoint)?;
        let saved = SavedMount::new(&request);
        saved.write(&domain.store).context(ErrorKind::Store, "record the mount")?;
        if let Some(reason) = own_inodes {
            // Not written to the record: the inodes are those of this server, and the next one may use mode `native` again.
            request.mode = ModeChoice::Only(Mode::Fuse);
            request.fallbacks.push(reason);
        }
        let before = Baseline::of(&image);
        let begin = || Recording::begin(domain.images.fetcher().clone(), &request.mountpoint, &self.holding);
        let recording = request.record.then(begin);
        let mounted = match domain.host.mount(&spec(&domain.store, &request, &image, recording.as_ref())) {
            Ok(mounted) => mounted,
            Err(error) => {
                self.forget(&request.mountpoint);
                return Err(cannot_mount(error));
            }
        };
        saved.write_mounted(&mounted, &domain.store);
        self.keep_credentials(&request);
        if let Err(error) = domain.store.touch_image(&request.manifest) {
            tracing::debug!(%error, "the image's last use is not noted");
        }
        self.remember_base(&request);
        if let Some(why) = self.follow_hints(&request, trace.as_deref(), &image) {
            request.fallbacks.push(why);
        }
        self.lost.lock().remove(&request.mountpoint);
        Ok(self.settle(place, Served { request, domain, image, mounted, before, recording }))
    }

    /// Enters a mount into the table.
    pub(super) fn settle(self: &Arc<Self>, place: Reservation<'_, Served>, served: Served) -> MountStatus {
        let served = Arc::new(served);
        if served.mounted.mode() == Mode::Native {
            served.image.handle().kernel_reads();
        }
        place.settle(served.clone());
        self.changes.publish(&served.request.mountpoint, &served.request.image, served.request.manifest, true);
        served.domain.backfills.begin(&served.request, &served.image);
        let status = self.describe(&served);
        self.runtime.spawn(watch(self.clone(), served));
        status
    }

    /// Writes beside an upper directory which image it belongs to. A container has a record for that.
    fn remember_base(&self, request: &MountRequest) {
        if let Writable::Upper(upper) | Writable::Discarded(upper) = &request.writable
            && !upper.starts_with(self.store.containers_folder())
            && let Err(error) = Origin::remember(upper, &request.image, request.manifest)
        {
            tracing::warn!(%error, upper = %upper.display(), "`tarpon commit` will need --base for this directory");
        }
    }

    /// Writes the trace of `mountpoint` so far to a file for the client.
    pub(super) fn trace(&self, mountpoint: &Path) -> Result<PathBuf> {
        let served = self.places.mounted_at(mountpoint);
        let recorded = served.as_ref().and_then(|served| Some((served.recording.as_ref()?, &served.request)));
        let (recording, request) = recorded.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "take the trace",
                format!("nothing is recorded at {}", mountpoint.display()),
            )
        })?;
        recording.write(self.store(), request)
    }

    /// Starts to fetch the data that is likely to be read first. Returns why the trace of the request is not followed, if it is not. A
    /// recorded mount fetches only what the container reads.
    fn follow_hints(&self, request: &MountRequest, trace: Option<&Path>, image: &Arc<LoadedImage>) -> Option<String> {
        let trace = trace.map(|path| traces::take(&self.store, path));
        if request.record {
            return None;
        }
        if trace.is_some() {
            image.replay_predicted();
        }
        match trace {
            None => {
                self.runtime.spawn_blocking(image.begin_start(&request.command, request.learn));
                None
            }
            Some(Err(why)) => Some(format!("the trace is not followed: {why}")),
            Some(Ok(_)) if image.has_recorded_pack() => {
                Some("the trace is not followed: the image has a boot pack".to_owned())
            }
            Some(Ok(trace)) if image.follow(Some(&trace)) => None,
            Some(Ok(_)) => Some("the trace is not followed: it is empty, or another one is being followed".to_owned()),
        }
    }

    /// Unmounts. `only_unused`: it stays mounted if it is in use.
    pub(crate) fn unmount(&self, mountpoint: &Path, only_unused: bool) -> Result<Unmounted> {
        if self.exhibit_at(mountpoint).is_some() {
            return self.withdraw(mountpoint, None, false);
        }
        let Some(leaving) = self.places.leave(mountpoint)? else { return self.give_up(mountpoint) };
        let mounted = &leaving.mount().mounted;
        let how = if only_unused { mounted.unmount_unused() } else { mounted.unmount() };
        let how = how.map_err(cannot_unmount)?;
        self.finish(leaving);
        // Another process has unmounted it unnoticed.
        if how == Unmounted::Already { self.give_up(mountpoint) } else { Ok(how) }
    }

    /// Reserves a path. If it is taken, checks for mounts that another process has unmounted, and retries.
    pub(super) fn reserve(&self, path: &Path) -> Result<Reservation<'_, Served>> {
        match self.places.reserve(path) {
            Err(error) if error.kind == ErrorKind::CannotMount => {
                self.look_around()?;
                self.places.reserve(path)
            }
            other => other,
        }
    }

    /// The exhibit that the request concerns.
    pub(super) fn exhibit_for(&self, request: &MountRequest) -> Option<&Arc<dyn Exhibit>> {
        self.exhibits.iter().find(|exhibit| exhibit.accepts(request))
    }

    /// The exhibit to which the path belongs.
    fn exhibit_at(&self, mountpoint: &Path) -> Option<&Arc<dyn Exhibit>> {
        self.exhibits.iter().find(|exhibit| exhibit.holds(mountpoint))
    }

    /// The image that an exhibit shows at this path.
    pub(super) fn exhibited(&self, mountpoint: &Path) -> Option<Arc<LoadedImage>> {
        self.exhibits.iter().find_map(|exhibit| exhibit.image(mountpoint))
    }

    fn expose(&self, exhibit: &dyn Exhibit, request: MountRequest) -> Result<MountStatus> {
        let mountpoint = request.mountpoint.clone();
        exhibit.mount(request)?;
        self.lost.lock().remove(&mountpoint);
        self.status_at(&mountpoint)
    }

    /// Exposes again what a dead server exposed in exhibits. Returns the outcomes, not in the order of the records.
    pub(super) fn restore_exhibits(
        &self,
        mut left: Vec<(MountRecord, MountRequest)>,
    ) -> Vec<(MountRecord, Result<()>)> {
        let is_allowed = tenant::refuse_isolated(&self.store, "show it to Podman");
        let mut outcomes = Vec::new();
        for exhibit in &self.exhibits {
            let own = left.extract_if(.., |(_, request)| exhibit.accepts(request));
            let (records, requests): (Vec<_>, Vec<_>) = own.unzip();
            match &is_allowed {
                Ok(()) => outcomes.extend(records.into_iter().zip(exhibit.restore(requests))),
                Err(error) => {
                    exhibit.restore(Vec::new());
                    outcomes.extend(records.into_iter().map(|record| (record, Err(error.clone()))));
                }
            }
        }
        outcomes
    }

    pub(super) fn status_at(&self, mountpoint: &Path) -> Result<MountStatus> {
        self.status_of(mountpoint).ok_or_else(|| {
            Error::new(ErrorKind::Other, "show it to Podman", "another process has just removed it again")
        })
    }

    /// Number of exposed images, by the name of their mode.
    pub(super) fn exposed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.exhibits.iter().map(|exhibit| exhibit.count())
    }

    /// Periodic cleanup.
    pub(super) fn tidy(&self) {
        let gone = self.exhibits.iter().flat_map(|exhibit| exhibit.tidy());
        gone.for_each(|manifest| self.no_longer_used(self.domains.whole(), &manifest));
    }

    /// Keeps the traces of starts that are over.
    pub(super) fn learn(&self) {
        for domain in self.domains.all() {
            domain.images.all().iter().for_each(|image| image.end_start(false));
        }
    }

    /// Stops exposing an image, or removes one of its names.
    pub(super) fn withdraw(&self, mountpoint: &Path, name: Option<&str>, force: bool) -> Result<Unmounted> {
        let exhibit = self.exhibit_at(mountpoint).filter(|_| !self.lost.lock().contains_key(mountpoint));
        match exhibit.map(|exhibit| exhibit.unmount(mountpoint, name, force)).transpose()?.flatten() {
            None => self.give_up(mountpoint),
            Some(gone) => {
                gone.iter().for_each(|manifest| self.no_longer_used(self.domains.whole(), manifest));
                Ok(Unmounted::Clean)
            }
        }
    }

    /// # Errors
    /// [`ErrorKind::CannotMount`] if anything that an exhibit shows is in use.
    pub(super) fn refuse_if_exhibits_are_used(&self) -> Result<()> {
        self.exhibits.iter().try_for_each(|exhibit| exhibit.refuse_if_used())
    }

    /// Whether a process may still run on what a dead server left at this mount point.
    pub(super) fn may_run_on(&self, mountpoint: &Path) -> bool {
        (self.may_run_on)(&self.store, mountpoint)
    }

    pub(super) fn is_used(&self, domain: &Arc<Domain>, manifest: &Digest) -> bool {
        let is_shown = self.exhibits.iter().any(|exhibit| exhibit.shows(manifest));
        let is_it = |served: &Arc<Served>| served.request.manifest == *manifest && Arc::ptr_eq(&served.domain, domain);
        is_shown || self.places.mounted().iter().any(is_it)
    }

    /// Whether [`MountTable::status_of_others`] lists the image.
    pub(super) fn is_among_others(&self, manifest: &Digest) -> bool {
        let is_shown = self.exhibits.iter().any(|exhibit| exhibit.shows(manifest));
        is_shown || self.lost.lock().values().any(|lost| lost.manifest == *manifest)
    }

    /// Unmounts what a dead server left and this one could not mount again.
    fn give_up(&self, mountpoint: &Path) -> Result<Unmounted> {
        if !self.lost.lock().contains_key(mountpoint) {
            let cause = format!("no image is mounted at {}", mountpoint.display());
            return Err(Error::new(ErrorKind::NotFound, "unmount", cause));
        }
        tarpon_mount::clear(mountpoint).map_err(cannot_unmount)?;
        self.lost.lock().remove(mountpoint);
        self.forget(mountpoint);
        Ok(Unmounted::Already)
    }

    /// Removes mounts that another process has unmounted, so that their paths can be used again at once.
    fn look_around(&self) -> Result<()> {
        self.host().detect_unmounts().map_err(cannot_mount)?;
        for served in self.places.mounted().iter().filter(|served| !served.mounted.is_attached()) {
            self.remove(served);
        }
        Ok(())
    }

    /// Adds a mount of a dead server that cannot be mounted again.
    pub(super) fn add_lost(&self, status: MountStatus) {
        self.lost.lock().insert(status.mountpoint.clone(), status);
    }

    /// All mounts, including lost ones.
    pub(super) fn status(&self) -> Vec<MountStatus> {
        let mut all: Vec<_> = self.places.mounted().iter().map(|served| self.describe(served)).collect();
        all.extend(self.status_of_others());
        let scrub = self.scrub.status();
        all.iter_mut().for_each(|mount| (mount.damage, mount.scrub) = (self.damage.of(&mount.mountpoint), scrub));
        all.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
        self.keep_counters();
        all
    }

    /// The mount or lost mount at `mountpoint`, without a check of all other mounts. Keeps no counters, which takes as long as there are
    /// images and mounts: who shows them to a user calls [`MountTable::keep_counters`] first.
    pub(super) fn status_of(&self, mountpoint: &Path) -> Option<MountStatus> {
        let status = match self.places.mounted_at(mountpoint) {
            Some(served) => self.describe(&served),
            None => self.status_of_others().into_iter().find(|status| status.mountpoint == mountpoint)?,
        };
        Some(MountStatus { damage: self.damage.of(mountpoint), scrub: self.scrub.status(), ..status })
    }

    /// What is shown to Podman, and lost mounts.
    pub(super) fn status_of_others(&self) -> Vec<MountStatus> {
        let mut others: Vec<_> = self.exhibits.iter().flat_map(|exhibit| exhibit.status()).collect();
        others.extend(self.lost.lock().values().cloned());
        others
    }

    /// Resolves when nothing is left to serve: no mount, no client, no user of an unmounted tree. From then on no client is admitted.
    /// `patience`: how long to wait for the first request.
    pub(super) async fn idle(&self, patience: Duration) {
        let _first = tokio::time::timeout(patience, self.places.used()).await;
        loop {
            self.places.idle().await;
            tokio::select! {
                () = self.host().drained() => {
                    if self.places.close_if_idle(|| !self.host().is_drained()) {
                        return;
                    }
                }
                () = self.places.busy() => {}
            }
        }
    }

    /// Unmounts everything. Current operations and running requests have `patience` to end. `remembers`: the mounts stay on record, for the
    /// next server to mount them again.
    pub(super) async fn shut_down(&self, patience: Duration, remembers: bool) {
        self.places.close();
        let _late = tokio::time::timeout(patience, self.places.settled()).await;
        self.remembers.store(remembers, Ordering::Release);
        self.host().shut_down(patience).await;
        for served in self.places.mounted().iter().filter(|served| !served.mounted.is_attached()) {
            self.remove(served);
        }
    }

    /// Mount points in use: by open files, a working directory, a container that has the mount as a layer, or a bind mount of it. Includes
    /// those shown to Podman.
    pub(super) fn in_use(&self) -> Vec<PathBuf> {
        let served = self.places.mounted();
        let mut mountpoints: Vec<_> = served.iter().map(|served| served.request.mountpoint.clone()).collect();
        let exhibited = self.exhibits.iter().map(|exhibit| exhibit.folder().to_owned());
        mountpoints.extend(exhibited.filter(|folder| tarpon_mount::is_mounted(folder)));
        let layers = tarpon_mount::below_overlays(&mountpoints);
        let bound = tarpon_mount::bound_elsewhere(&mountpoints).unwrap_or_else(|error| {
            tracing::warn!(%error, "bind mounts of what is mounted are not known");
            HashMap::new()
        });
        let is_busy = |place: &PathBuf| {
            served.iter().any(|served| served.request.mountpoint == *place && served.mounted.is_busy())
        };
        mountpoints.retain(|place| layers.contains(place) || bound.contains_key(place) || is_busy(place));
        mountpoints
    }

    /// Removes a mount that was unmounted, unless another one has its path.
    fn remove(&self, gone: &Arc<Served>) {
        if let Some(leaving) = self.places.leave_gone(&gone.request.mountpoint, gone) {
            self.finish(leaving);
        }
    }

    /// Ends a mount. Its record is removed before its path is free, because the next mount there writes a new record.
    fn finish(&self, leaving: Leaving<'_, Served>) {
        let MountRequest { mountpoint, image, manifest, .. } = leaving.mount().request.clone();
        let domain = leaving.mount().domain.clone();
        if !self.remembers.load(Ordering::Acquire) || !self.remember(leaving.mount()) {
            self.forget(&mountpoint);
        }
        self.damage.forget(&mountpoint);
        leaving.free();
        self.changes.publish(&mountpoint, &image, manifest, false);
        self.no_longer_used(&domain, &manifest);
    }

    /// Keeps a mount on record. `false`: the mount is not worth remembering, or the record cannot be written.
    fn remember(&self, served: &Served) -> bool {
        let request = &served.request;
        if request.record || request.mountpoint.starts_with(self.store.containers_folder()) {
            return false;
        }
        let saved = SavedMount {
            mode: Some(served.mounted.mode()),
            problem: Some(STOPPED.to_owned()),
            ..SavedMount::new(request)
        };
        saved
            .write(&served.domain.store)
            .inspect_err(|error| tracing::warn!(%error, "a mount is not remembered"))
            .is_ok()
    }

    /// Ends the background work for an image if nothing shows it any more.
    fn no_longer_used(&self, domain: &Arc<Domain>, manifest: &Digest) {
        if !self.is_used(domain, manifest) {
            domain.images.stop_following(manifest);
            domain.images.forget_check(manifest);
        }
        domain.backfills.end(manifest, || self.is_used(domain, manifest));
    }

    /// Whether an existing mount requested the metrics as well.
    pub(super) fn has_mount_with_metrics(&self) -> bool {
        self.places.mounted().iter().any(|served| served.request.metrics.is_some())
    }

    pub(super) fn describe(&self, served: &Served) -> MountStatus {
        let (backfill, metrics) = (served.domain.backfills.status(&served.request.manifest), self.endpoint.address());
        let container = ContainerName::of_mount(&self.store, &served.request.mountpoint).map(String::from);
        MountStatus { backfill, metrics, container, ..served.status() }
    }

    pub(super) fn forget(&self, mountpoint: &Path) {
        self.holding.release_state(&credentials_of(mountpoint));
        self.holding.release_state(&recording_of(mountpoint));
        if let Err(error) = self.store.forget_mount(mountpoint) {
            tracing::warn!(%error, "the record of an ended mount stays until the next sweep");
        }
    }
}

/// Waits until the mount is unmounted, by this or another process. Its image stays registered as long as it is in use.
async fn watch(mounts: Arc<MountTable>, served: Arc<Served>) {
    served.mounted.wait().await;
    mounts.remove(&served);
    drop(mounts);
    served.mounted.unused().await;
}

impl Baseline {
    pub(super) fn of(image: &LoadedImage) -> Self {
        let transfers = if image.is_first_mount() { image.earlier_transfers() } else { image.transfers() };
        Self { before: counts(transfers, image), earlier: MountCounts::default() }
    }

    /// As [`Baseline::of`], for a mount for which earlier servers counted this.
    pub(super) fn continuing(image: &LoadedImage, earlier: MountCounts) -> Self {
        Self { earlier, ..Self::of(image) }
    }

    /// The counters of the mount.
    fn now(&self, image: &LoadedImage) -> MountCounts {
        counts(image.transfers(), image).minus(self.before).plus(self.earlier)
    }
}

fn counts(transfers: Transfers, image: &LoadedImage) -> MountCounts {
    let failed_reads = image.counters().failed_reads;
    MountCounts { fetched_bytes: transfers.bytes, requests: transfers.requests, failed_reads }
}

impl Served {
    /// What was counted for this mount, by this server and by earlier ones.
    pub(super) fn counts(&self) -> MountCounts {
        self.before.now(&self.image)
    }

    fn status(&self) -> MountStatus {
        let Self { request, image, mounted, before, domain: _, recording: _ } = self;
        let mode = mounted.fallback_reason().map(|reason| format!("mode fuse, not native: {reason}"));
        let ranges = image.ignores_ranges().then(|| {
            "the registry does not answer requests for a part: each read fetches all that lies before it".to_owned()
        });
        let all = exposed(request, image, mounted.is_attached());
        let MountCounts { fetched_bytes, requests, failed_reads } = before.now(image);
        MountStatus {
            mode: mounted.mode().name().to_owned(),
            fallbacks: request.fallbacks.iter().cloned().chain(mode).chain(ranges).collect(),
            fetched_bytes,
            requests,
            failed_reads,
            last_error: all.last_error.filter(|_| failed_reads > 0),
            ..all
        }
    }
}

pub(super) fn spec(
    store: &Store,
    request: &MountRequest,
    image: &LoadedImage,
    recording: Option<&Recording>,
) -> MountSpec {
    MountSpec {
        tree: image.tree.clone(),
        objects: store.objects_folder(),
        mountpoint: request.mountpoint.clone(),
        mode: request.mode,
        writable: request.writable.clone(),
        suid: request.suid,
        dev: request.dev,
        read_ahead: !image.has_pack(),
        watch: recording.map(|recording| Watch(Arc::new(recording.clone()))),
    }
}

fn cannot_unmount(error: MountError) -> Error {
    let (kind, hint) = match &error {
        MountError::Covered { .. } => (ErrorKind::CannotMount, Some("unmount that first, with umount(8)")),
        MountError::Busy { .. } => (
            ErrorKind::CannotMount,
            Some("fuser -vm DIR names who uses it; with --lazy it goes away when its last user does"),
        ),
        MountError::Bound { .. } => {
            (ErrorKind::CannotMount, Some("unmount that first; with --lazy it goes away when its last user does"))
        }
        _ => (ErrorKind::CannotMount, None),
    };
    let error = Error::new(kind, "unmount", error);
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}
