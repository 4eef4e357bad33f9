//! [`KeptContainer`]: a container that this process keeps, from the creation of its directory to its end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use oci_spec::runtime::Mount;
use tarpon_client::rootfs::{RootMount, RootfsRequest};
use tarpon_client::{ContainerName, random_id};
use tarpon_images::Prepared;
use tarpon_mount::Writable;
use tarpon_oci::RunConfig;

use super::container_dir::{ContainerDir, ContainerDirs, Lock};
use super::containers::Containers;
use super::failure::RunError;
use super::record::{ContainerRecord, ContainerState, VERSION, now};
use super::request::RunRequest;
use super::signals::signal_name;
use crate::network::{Connected, Connection, Network};
use crate::oci::{Bundle, Confinement, ContainerOptions, Handle, HostEntry, Runtime, bind, has_seccomp, image_volumes};
use crate::{ErrorKind, Result, ResultExt};

/// The stop signal if neither the image nor the user sets one.
const STOP: &str = "TERM";

/// Bytes of the host's `/etc/hosts` and `/etc/resolv.conf` that a container gets.
const HOST_FILE_BYTES: u64 = 1 << 20;

/// Number of generated names that are tried for a container without a given name.
const NAMES: usize = 8;

/// A container that this process keeps. If it is dropped before it is settled, everything of it is removed.
pub(super) struct KeptContainer {
    containers: Containers,
    place: ContainerDir,
    /// Reserves its published ports. They are free before the lock is.
    reserved: Vec<OwnedFd>,
    lock: Lock,
    record: ContainerRecord,
    is_settled: bool,
}

impl KeptContainer {
    /// Creates a container: directory, mount and bundle.
    pub(super) fn make(
        containers: Containers,
        request: &RunRequest,
        prepared: &Prepared,
        runtime: &Runtime,
    ) -> Result<Self> {
        let config = containers.images().config(prepared)?.run;
        let record = record(request, prepared, &config, runtime, &containers)?;
        let (place, lock, record) = directory(&containers, record, request.name.is_none())?;
        let container = Self { containers, place, lock, record, reserved: Vec::new(), is_settled: false };
        let rootfs = RootfsRequest {
            mode: request.mode,
            backfill: request.backfill,
            writable: container.writable(),
            command: Bundle::arguments(&config, &request.options),
            learn: request.learn,
            ..RootfsRequest::default()
        };
        // The keeper of the container unmounts it at the end. The keeper may be another process.
        RootMount::at(Arc::new(container.containers.client().clone()), rootfs.of(prepared, container.place.rootfs()))?
            .keep();
        let options = ContainerOptions { filtered: container.record.filtered, ..request.options.clone() };
        container.describe(options, &config)?;
        Ok(container)
    }

    /// Where the container's writes go. Those of one that is removed at its end need not survive a crash of the machine.
    fn writable(&self) -> Writable {
        let kind = if self.record.remove { Writable::Discarded } else { Writable::Upper };
        kind(self.place.upper())
    }

    /// Takes the container over from the process that created it, with the lock inherited by this process.
    pub(super) fn inherit(containers: Containers, name: &ContainerName, lock: std::os::fd::OwnedFd) -> Result<Self> {
        let step = "keep the container";
        let place = ContainerDirs::of(containers.store()).place(name);
        let lock = place.inherit(lock).context(ErrorKind::Other, step)?;
        let record = place.record().context(ErrorKind::Other, step)?;
        Ok(Self { containers, place, lock, record, reserved: Vec::new(), is_settled: false })
    }

    /// Writes the bundle, and the files for the container's `/etc`.
    fn describe(&self, mut options: ContainerOptions, config: &RunConfig) -> Result<()> {
        options.hostname = Some(options.hostname.unwrap_or_else(|| self.usual_hostname(options.network)));
        let mut own = image_volumes(&self.place.rootfs(), &config.volumes, &options)
            .context(ErrorKind::Refused, "describe the container")?;
        own.extend(self.files(&options)?);
        let ContainerRecord { process_limit, apparmor, network, .. } = &self.record;
        let network = network.as_ref().map(|connection| connection.namespace.clone());
        let confinement = Confinement { processes: *process_limit, apparmor: apparmor.clone(), network };
        Bundle::write(self.place.folder(), &self.place.rootfs(), config, &options, &confinement, own).map(drop)
    }

    /// The default host name. A container on the host's network gets the host's name, as with Podman.
    fn usual_hostname(&self, network: Network) -> String {
        match network {
            Network::Host => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            _ => self.record.id.clone(),
        }
    }

    /// The mounts of the files in `/etc` that every container has of its own.
    fn files(&self, options: &ContainerOptions) -> Result<Vec<Mount>> {
        let name = options.hostname.as_deref().unwrap_or_default();
        let (hosts, resolv) = match options.network {
            Network::Host => (with_name(&host_file("/etc/hosts"), name), host_file("/etc/resolv.conf")),
            Network::None => (format!("127.0.0.1 localhost {name}\n::1 localhost {name}\n"), String::new()),
            // `connect` writes them.
            Network::Pasta | Network::Bridge => (String::new(), String::new()),
        };
        // Of several lines with one name the first takes effect, so the user's lines come first.
        let hosts = options.hosts.iter().map(HostEntry::line).chain([hosts]).collect::<String>();
        let files = [("hosts", hosts), ("resolv.conf", resolv), ("hostname", format!("{name}\n"))];
        let mut usual = ["nosuid", "nodev", "noexec"].map(str::to_owned).to_vec();
        usual.extend(options.read_only.then(|| "ro".to_owned()));
        let mount = |(file, text): (&str, String)| {
            let path = self.place.put(file, &text)?;
            bind(&path, &Path::new("/etc").join(file), &usual).context(ErrorKind::Other, "describe the container")
        };
        files.into_iter().map(mount).collect()
    }

    /// Connects the network of the container, if it has one of its own. To be called by the process that stays, because it holds the ports.
    pub(super) async fn connected(mut self) -> std::result::Result<Self, RunError> {
        if self.record.network.is_none() {
            return Ok(self);
        }
        let connected = tokio::task::spawn_blocking(move || self.connect().map(|()| self)).await;
        Ok(connected.map_err(|error| RunError::failed("connect the container", error))??)
    }

    fn connect(&mut self) -> Result<()> {
        let Some(network) = &self.record.network else { return Ok(()) };
        let hostname = self.place.text("hostname")?;
        let names = [self.record.name.as_str(), hostname.trim()];
        let names = if names[0] == names[1] { &names[..1] } else { &names[..] };
        let Connected { connection, hosts, resolvers, reserved } =
            network.make(&self.record.id, self.place.folder(), names)?;
        self.reserved = reserved;
        self.place.put("hosts", &(self.place.text("hosts")? + &hosts))?;
        self.place.put("resolv.conf", &resolvers)?;
        self.record.network = Some(connection);
        self.place.write(&self.record).context(ErrorKind::Store, "write down the container's network")
    }

    pub(super) fn record(&self) -> &ContainerRecord {
        &self.record
    }

    pub(super) fn place(&self) -> &ContainerDir {
        &self.place
    }

    pub(super) fn lock(&self) -> &Lock {
        &self.lock
    }

    pub(super) fn handle(&self) -> Handle {
        handle(&self.place, &self.record)
    }

    /// Records that the container runs. A failed write does not end the container.
    pub(super) fn note_start(&mut self, pid: u32) {
        self.record.state = ContainerState::Running { pid, since: now() };
        if let Err(error) = self.place.write(&self.record) {
            tracing::warn!(%error, "the record does not say that the container runs");
        }
    }

    /// Settles a container that has ended: the runtime deletes it, the image is unmounted, and the rest is kept or removed as requested.
    /// The exit code is recorded first, so that a failed cleanup does not lose it.
    pub(super) fn settle(mut self, code: Option<u8>) -> Result<()> {
        self.is_settled = true;
        self.record.state = ContainerState::Exited { code, at: now() };
        let written = self.place.write(&self.record);
        self.handle().forget()?;
        let disconnected = self.record.disconnect();
        self.reserved.clear();
        self.containers.client().release(&self.place.rootfs())?;
        disconnected?;
        if self.record.remove {
            return ContainerDirs::of(self.containers.store()).remove(&self.place, &self.lock);
        }
        written.context(ErrorKind::Store, "write down how the container ended")
    }

    /// Leaves the container to another process.
    pub(super) fn give_up(mut self) {
        self.is_settled = true;
        self.lock.leave_to_heir();
    }

    /// Removes the container in any state, after its heir has ended.
    pub(super) fn remove(mut self) -> Result<()> {
        self.is_settled = true;
        if !self.lock.retake().context(ErrorKind::Store, "hold the container")? {
            return Ok(());
        }
        clear_away(&self.containers, &self.place, &self.record, &self.lock)
    }
}

impl Drop for KeptContainer {
    fn drop(&mut self) {
        if !self.is_settled
            && let Err(error) = clear_away(&self.containers, &self.place, &self.record, &self.lock)
        {
            tracing::warn!(%error, "parts of a container that was not created remain");
        }
    }
}

/// Removes a held container, running or not. A process that shared the lock may have removed it already.
fn clear_away(containers: &Containers, place: &ContainerDir, record: &ContainerRecord, lock: &Lock) -> Result<()> {
    if !lock.is_of(place).context(ErrorKind::Store, "remove the container's directory")? {
        return Ok(());
    }
    handle(place, record).forget()?;
    record.disconnect()?;
    containers.client().release(&place.rootfs())?;
    ContainerDirs::of(containers.store()).remove(place, lock)
}

pub(super) fn handle(place: &ContainerDir, record: &ContainerRecord) -> Handle {
    Runtime::of(record.runtime.clone()).container(&format!("tarpon-{}", record.id), &place.runtime())
}

fn record(
    request: &RunRequest,
    prepared: &Prepared,
    config: &RunConfig,
    runtime: &Runtime,
    containers: &Containers,
) -> Result<ContainerRecord> {
    let named = request.stop_signal.as_deref().unwrap_or(&config.stop_signal);
    let stop_signal = if named.is_empty() { STOP } else { named };
    let Confinement { processes, apparmor, .. } = Confinement::of(&request.options)?;
    let volumes = request.options.volumes.iter().filter(|volume| volume.source.is_none());
    let volumes = volumes.map(|volume| volume.destination.display().to_string());
    let id = random_id();
    let network = Connection::plan(request.options.network, &request.options.ports, &id, containers.store());
    Ok(ContainerRecord {
        version: VERSION,
        name: request.name.clone().unwrap_or_else(ContainerName::random),
        id,
        image: prepared.text.clone(),
        manifest: *prepared.manifest(),
        command: Bundle::arguments(config, &request.options),
        created: now(),
        detached: request.detach,
        terminal: request.options.terminal,
        input: request.input,
        remove: request.remove,
        stop_signal: signal_name(stop_signal).context(ErrorKind::Refused, "describe the container")?,
        runtime: runtime.program().to_owned(),
        filtered: request.options.filtered && filters(runtime, containers)?,
        process_limit: processes,
        apparmor,
        volumes: config.volumes.iter().cloned().chain(volumes).collect(),
        network,
        state: ContainerState::Created,
    })
}

/// Whether the runtime filters system calls. One that does not causes a warning, not an error.
fn filters(runtime: &Runtime, containers: &Containers) -> Result<bool> {
    let filters = has_seccomp(runtime, &ContainerDirs::of(containers.store()).runtime_report())?;
    if !filters {
        let program = runtime.program().display();
        tracing::warn!("the container's system calls are not filtered: {program} was built without seccomp");
    }
    Ok(filters)
}

/// The directory of the container. A generated name that is taken is replaced.
fn directory(
    containers: &Containers,
    mut record: ContainerRecord,
    is_named_by_chance: bool,
) -> Result<(ContainerDir, Lock, ContainerRecord)> {
    let directories = ContainerDirs::of(containers.store());
    let tries = if is_named_by_chance { NAMES } else { 0 };
    for _ in 0..tries {
        if directories.check_free(&record.name).is_ok() {
            break;
        }
        record.name = ContainerName::random();
    }
    let (place, lock) = directories.create(&record)?;
    Ok((place, lock, record))
}

/// The content of a file of the host; empty if it does not exist.
fn host_file(path: &str) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _partly = file.take(HOST_FILE_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The content of the host's `/etc/hosts`, with the container's own name added if it is missing.
fn with_name(hosts: &str, name: &str) -> String {
    let is_known = hosts.lines().any(|line| line.split_ascii_whitespace().skip(1).any(|known| known == name));
    let end = if hosts.is_empty() || hosts.ends_with('\n') { "" } else { "\n" };
    if is_known { hosts.to_owned() } else { format!("{hosts}{end}127.0.1.1 {name}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_knows_its_own_name() {
        assert_eq!(with_name("127.0.0.1 localhost", "box"), "127.0.0.1 localhost\n127.0.1.1 box\n");
        assert_eq!(with_name("127.0.1.1 a box\n", "box"), "127.0.1.1 a box\n");
        assert_eq!(with_name("", "box"), "127.0.1.1 box\n");
    }
}
