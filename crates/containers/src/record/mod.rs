//! Recording a start: the image runs on a mount that records every read, until it is ready.

mod http_probe;
mod until;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tarpon_mount::{Mode, ModeChoice};
use tarpon_store::LayerKind;
use tarpon_trace::{FILE_BYTES, Trace};

pub use self::http_probe::HttpProbe;
pub use self::until::Until;
use self::until::Watcher;
use crate::oci::{Bundle, Confinement, ContainerOptions, Running, Runtime, Stdio, host_files};
use crate::run::Containers;
use crate::{Error, ErrorKind, Result, ResultExt};
use tarpon_client::Client;
use tarpon_client::protocol::MountRequest;
use tarpon_client::rootfs::{RootMount, RootfsRequest};
use tarpon_images::progress::Progress;
use tarpon_images::{ImageRequest, Prepared, object_paths};

/// How long a container may take to stop before it is killed: as with other tools.
const STOPPING: Duration = Duration::from_secs(10);

/// A request to record a start.
#[derive(Debug, Clone)]
pub struct RecordRequest {
    /// The image.
    pub image: ImageRequest,
    /// Name of the profile.
    pub profile: String,
    /// Replaces the image's command.
    pub command: Vec<String>,
    /// `NAME=VALUE`, in addition to the image's or replacing them.
    pub env: Vec<String>,
    /// When the start is over.
    pub until: Until,
    /// Once set, recording ends early: what was touched until then is recorded.
    pub enough: Arc<AtomicBool>,
    /// How long to wait for [`RecordRequest::until`].
    pub patience: Duration,
    /// The OCI runtime. `None`: the one that is found.
    pub runtime: Option<PathBuf>,
    /// Whether all output of the container goes to standard error, as standard output has another use.
    pub to_stderr: bool,
}

/// A recorded start.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The trace of what was touched.
    pub trace: Trace,
    /// The exit code, if the container ended by itself.
    pub exit: Option<i32>,
}

impl Recorded {
    /// The exit code of a container that failed. Its trace is of no use as a start.
    pub fn failure(&self) -> Option<i32> {
        self.exit.filter(|code| *code != 0)
    }
}

impl Containers {
    /// Runs the image and records what it touches. The container is stopped when its start is over, or when `stopped` ends, which is an
    /// error.
    pub async fn record(
        &self,
        request: &RecordRequest,
        stopped: impl Future<Output = ()>,
        progress: &dyn Progress,
    ) -> Result<Recorded> {
        // Checked before anything is fetched.
        Runtime::find(request.runtime.as_deref())?;
        tokio::pin!(stopped);
        let prepared = tokio::select! {
            prepared = self.images().prepare(&request.image, progress) => prepared?,
            () = &mut stopped => return Err(interrupted()),
        };
        self.record_prepared(request, prepared, stopped).await
    }

    /// As [`Containers::record`], of an image that was already prepared: its name is not resolved again.
    pub async fn record_prepared(
        &self,
        request: &RecordRequest,
        prepared: Prepared,
        stopped: impl Future<Output = ()>,
    ) -> Result<Recorded> {
        let runtime = Runtime::find(request.runtime.as_deref())?;
        tokio::pin!(stopped);
        check_names(&prepared)?;
        let (containers, request, stop) = (self.clone(), request.clone(), Arc::new(AtomicBool::new(false)));
        let recording = Recording { containers, prepared, request, stop: stop.clone() };
        let mut running = tokio::task::spawn_blocking(move || recording.run(&runtime));
        let recorded = tokio::select! {
            recorded = &mut running => recorded,
            () = &mut stopped => {
                stop.store(true, Ordering::Relaxed);
                // The container is stopped and the mount removed first.
                running.await
            }
        };
        recorded.context(ErrorKind::Other, "record")?
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Other, "record", "it was interrupted")
}

/// An error if objects are not named by their digests, which make a trace fit other images with the same contents. A SOCI index knows none.
fn check_names(prepared: &Prepared) -> Result<()> {
    match prepared.record.layers.iter().find(|layer| layer.format == LayerKind::Soci) {
        None => Ok(()),
        Some(layer) => {
            let cause = format!("a SOCI index does not say what the contents of layer {} are", layer.digest);
            Err(Error::new(ErrorKind::Refused, "record", cause).hint("`tarpon pull` it first: then they are known"))
        }
    }
}

/// One recording.
struct Recording {
    containers: Containers,
    prepared: Prepared,
    request: RecordRequest,
    stop: Arc<AtomicBool>,
}

impl Recording {
    fn run(self, runtime: &Runtime) -> Result<Recorded> {
        let step = "make a place for the container";
        let folder = self.containers.store().server_folder();
        let folder = tempfile::Builder::new().prefix("record-").tempdir_in(folder).context(ErrorKind::Store, step)?;
        let (root, state) = (folder.path().join("rootfs"), folder.path().join("state"));
        for directory in [&root, &state] {
            std::fs::create_dir(directory).context(ErrorKind::Store, step)?;
        }
        let config = self.containers.images().config(&self.prepared)?;
        let mount = RecordedMount::make(self.containers.client().clone(), &self.prepared, root)?;
        let (command, env) = (self.request.command.clone(), self.request.env.clone());
        let options = ContainerOptions { command, env, ..ContainerOptions::default() };
        let own = host_files().map_err(|cause| Error::new(ErrorKind::Other, "describe the container", cause))?;
        let confinement = Confinement::of(&options)?;
        let bundle = Bundle::write(folder.path(), mount.rootfs.path(), &config.run, &options, &confinement, own)?;
        let stdio = match self.request.to_stderr {
            _ if self.request.until.reads_output() => Stdio::Piped,
            true => Stdio::Errors,
            false => Stdio::Inherit,
        };
        let began = Instant::now();
        let name = folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.request.until.check()?;
        let mut running = runtime.container(&name, &state).start(&bundle, stdio)?;
        let ready = self.wait(&mut running)?;
        let mut trace = mount.trace()?;
        let exit = running.ended()?.and_then(|status| status.code());
        running.stop(stop_signal(&config.run.stop_signal), STOPPING)?;
        drop(running);
        trace.header.profile.clone_from(&self.request.profile);
        trace.header.command = Bundle::arguments(&config.run, &options);
        // The recorder's clock started when the image was mounted, a little earlier.
        trace.header.ready =
            Some(ready.saturating_duration_since(began) + began.saturating_duration_since(mount.since));
        self.describe(&mut trace);
        mount.unmount()?;
        Ok(Recorded { trace, exit })
    }

    /// Waits until the start is over and returns when that was.
    fn wait(&self, running: &mut Running) -> Result<Instant> {
        let enough = self.request.enough.clone();
        let watcher = Watcher::new(&self.request.until, enough, running, self.request.to_stderr)?;
        let ready = watcher.wait(running, self.request.patience, || self.stop.load(Ordering::Relaxed))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        Ok(ready)
    }

    /// Adds the parts for human readers. A trace is equally valid without them.
    fn describe(&self, trace: &mut Trace) {
        if let Ok(part) = self.containers.images().for_image(&self.prepared.text, &self.prepared.access)
            && let Ok(Some(image)) = part.store().load_image(self.prepared.manifest())
        {
            object_paths::add(trace, image);
        }
    }
}

fn stop_signal(named: &str) -> &str {
    if named.is_empty() { "TERM" } else { named }
}

/// A mount that records reads. Dropped, it is unmounted.
struct RecordedMount {
    client: Client,
    rootfs: RootMount,
    since: Instant,
}

impl RecordedMount {
    fn make(client: Client, prepared: &Prepared, path: PathBuf) -> Result<Self> {
        let rootfs = RootfsRequest { mode: ModeChoice::Only(Mode::Fuse), ..RootfsRequest::default() };
        let request = MountRequest { record: true, ..rootfs.of(prepared, path) };
        let since = Instant::now();
        Ok(Self { rootfs: RootMount::at(Arc::new(client.clone()), request)?, client, since })
    }

    fn trace(&self) -> Result<Trace> {
        let file = self.client.trace(self.rootfs.path())?;
        let trace = read(&file);
        let _removed = std::fs::remove_file(&file);
        trace
    }

    fn unmount(self) -> Result<()> {
        self.rootfs.unmount()
    }
}

fn read(file: &Path) -> Result<Trace> {
    use std::io::Read;
    let step = "read the trace";
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).context(ErrorKind::Store, step)?;
    opened.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).context(ErrorKind::Store, step)?;
    Trace::read(&bytes).context(ErrorKind::Store, step)
}
