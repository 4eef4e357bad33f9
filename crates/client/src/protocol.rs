//! The protocol between clients and the store's server: one JSON object per line, over a Unix socket in the store.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_images::{Access, Prepared};
use tarpon_mount::{ModeChoice, Unmounted, Writable};
use tarpon_oci::{Blob, Digest};
use tarpon_store::{LayerKind, ScrubRecord, ScrubRun, Store, Verification};

use crate::Error;
use crate::namespaces::Namespaces;

/// Maximum length of a request. A server reads requests of many clients at once.
pub const LINE_BYTES: u64 = 4 << 20;

/// Maximum length of a response, of which a client reads one at a time. A status of ten thousand mounts fits, at about a thousand bytes
/// each.
pub(crate) const ANSWER_BYTES: u64 = 64 << 20;

/// Timeout for a response: a mount from local records takes milliseconds, an unmount may drain for ten seconds.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// Timeout for read-only requests: describing ten thousand mounts takes a second on an otherwise idle machine.
const SOON: Duration = Duration::from_secs(30);

/// A request from a client to the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Request {
    /// Mount an image whose record is in the store.
    Mount {
        /// Image, mount point and options.
        request: Box<MountRequest>,
        /// Namespaces in which the mount point is visible.
        namespaces: Namespaces,
    },
    /// Connect to the registry of an image that is about to be mounted. The response is [`Response::PrefetchStarted`].
    GetReady {
        /// The image, as the user wrote it.
        image: String,
        /// How to access its blobs.
        access: Access,
        /// Different for each attempt to prepare the image: the configuration of registries may have changed since the last one.
        attempt: u64,
    },
    /// Forget an image of [`Request::GetReady`] that could not be prepared. The response is [`Response::PrefetchStarted`].
    NotReady {
        /// The image, as the user wrote it.
        image: String,
        /// How to access its blobs.
        access: Access,
    },
    /// Start to fetch the boot pack of an image that is about to be mounted.
    #[serde(rename = "bring")]
    PrefetchPack {
        /// The image, as the user wrote it.
        image: String,
        /// How to access its blobs.
        access: Access,
        /// Blob that holds the pack.
        pack: Blob,
        /// The repository or layout that has it, if that is not the image's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<String>,
    },
    /// Fetch what the start of an image is likely to need, at the lowest priority, and report it. Responses are [`Response::Bringing`],
    /// at least every few seconds, then [`Response::Brought`]. It ends with the connection.
    BringStart(Box<StartRequest>),
    /// Use other credentials for the image at this path from now on: those it was mounted with may have expired.
    RenewCredentials {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
        /// The credentials. Everything else of the access stays as it is.
        access: Access,
    },
    /// Unmount the file system at this path.
    Unmount {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
        /// Keep it mounted if it is in use.
        #[serde(default)]
        only_unused: bool,
    },
    /// Remove an image from Podman.
    PodmanRemove {
        /// Its place in Podman's store.
        mountpoint: PathBuf,
        /// Remove only this name of it, if it has others.
        name: Option<String>,
        /// Remove it even while containers use it.
        force: bool,
    },
    /// Report whether Podman uses any image that is exposed to it.
    PodmanUnused,
    /// Write the trace of a mount that is recorded.
    Trace {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
    /// Repair what mounts show of objects that were found damaged.
    Mend,
    /// Describe the scrub of the store.
    Scrub,
    /// Describe all mounts.
    Status,
    /// Describe one mount, if it exists.
    StatusOf {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
    /// Keep the server running without mounts as long as this connection is open: more requests will follow.
    Hold,
    /// End without unmounting: the sender becomes the server, and adopts the mounts.
    HandOver {
        /// The process of the sender; the server finds it by the connection.
        #[serde(default)]
        successor: Option<u32>,
    },
    /// Give way to the program on disk, which an update may have replaced.
    Upgrade,
    /// Report what one mount waited for.
    Why {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
}

impl Request {
    /// How long a client waits for the response.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Status
            | Self::StatusOf { .. }
            | Self::Scrub
            | Self::Why { .. }
            | Self::Hold
            | Self::HandOver { .. }
            | Self::RenewCredentials { .. }
            | Self::BringStart(_)
            | Self::GetReady { .. }
            | Self::NotReady { .. }
            | Self::PrefetchPack { .. } => SOON,
            Self::Mount { .. }
            | Self::Unmount { .. }
            | Self::PodmanRemove { .. }
            | Self::PodmanUnused
            | Self::Upgrade
            | Self::Trace { .. }
            | Self::Mend => ANSWER,
        }
    }

    /// A request to mount in the namespaces of this process.
    pub fn mount(request: MountRequest) -> Self {
        Self::Mount { request: Box::new(request), namespaces: Namespaces::of_this_process() }
    }
}

/// A response of the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Response {
    /// The mount is usable.
    Mounted(Box<MountStatus>),
    /// The fetch has started.
    #[serde(rename = "coming")]
    PrefetchStarted,
    /// What a start needs is being fetched.
    Bringing {
        /// Bytes requested.
        requested: u64,
        /// Bytes that were missing.
        missing: u64,
    },
    /// What a start needs was fetched, as far as it could be.
    Brought(BroughtStart),
    /// Later requests for the image have the credentials.
    Renewed,
    /// The server stays up until the connection closes.
    Held,
    /// The server ends.
    HandingOver,
    /// The server executes the program on disk. The connection closes when it does.
    Upgrading,
    /// The server ends when another one requests it.
    Replaceable,
    /// It is unmounted.
    Unmounted {
        /// Whether it was still in use.
        how: Unmounted,
    },
    /// The trace of a recorded mount.
    Trace {
        /// A file with the trace. The client owns it from now on.
        file: PathBuf,
    },
    /// The requested mounts.
    Status {
        /// In the order of their paths.
        mounts: Vec<MountStatus>,
    },
    /// Podman uses none.
    Unused,
    /// What a mount waited for.
    Why(Box<MountAccount>),
    /// The state of the scrub.
    Scrub(ScrubStatus),
    /// What was repaired, and what was not.
    Mended(Mended),
    /// The request failed.
    Failed(Error),
}

/// An image of which is fetched what its start is likely to need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRequest {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest. The store holds the record of this name.
    pub manifest: Digest,
    /// How to access its blobs.
    pub access: Access,
    /// As [`MountRequest::index_places`].
    pub index_places: Vec<String>,
    /// Maximum bytes per second.
    pub rate: Option<NonZeroU64>,
    /// Whether files that the image's author marked are fetched if no start is known.
    pub landmarks: bool,
}

/// How it is known what a start needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartKind {
    /// By a published boot pack, of a recorded start; or of a predicted one, and then with what earlier starts read.
    BootPack,
    /// From starts on this host.
    LearnedTrace,
    /// From the image's author.
    Landmarks,
    /// It is not known.
    Unknown,
}

impl StartKind {
    /// Its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::BootPack => "boot-pack",
            Self::LearnedTrace => "learned-trace",
            Self::Landmarks => "landmarks",
            Self::Unknown => "unknown",
        }
    }
}

/// What is in the store of what a start needs. All sizes are of encoded bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BroughtStart {
    /// How it is known.
    pub kind: StartKind,
    /// All of it.
    pub wanted: u64,
    /// What was missing before.
    pub missing_before: u64,
    /// What is missing still.
    pub missing: u64,
    /// Why it is missing, if that is known.
    pub problem: Option<String>,
    /// Whether the store refused it.
    pub refused: bool,
    /// Requests to the image's sources.
    pub requests: u64,
    /// Bytes received from them.
    pub bytes: u64,
}

impl BroughtStart {
    /// Nothing is known of the image's starts.
    pub const UNKNOWN: Self = Self {
        kind: StartKind::Unknown,
        wanted: 0,
        missing_before: 0,
        missing: 0,
        problem: None,
        refused: false,
        requests: 0,
        bytes: 0,
    };
}

/// The scrub of a store, which periodically hashes all objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Maximum bytes per second that the server reads for it. `None`: no server of the store scrubs.
    pub rate: Option<NonZeroU64>,
    /// Whether a run is in progress.
    pub running: bool,
    /// Progress of an unfinished run, which the next server that scrubs continues.
    pub under_way: Option<ScrubRun>,
    /// The last run that covered the whole store.
    pub last: Option<ScrubRun>,
}

impl ScrubStatus {
    /// The state recorded in the store, for use without a server.
    pub fn of_store(store: &Store) -> Self {
        let ScrubRecord { last, under_way } = store.scrub_record();
        Self { rate: None, running: false, under_way, last }
    }

    /// Whether there is anything to report.
    pub fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// The outcome of repairing mounts whose files were found damaged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mended {
    /// Damaged files of mounted images that were fetched again.
    pub files: u64,
    /// Mounts that may still show damage.
    pub unmended: Vec<UnmendedMount>,
}

/// A mount that may still show damage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmendedMount {
    /// Mount point.
    pub mountpoint: PathBuf,
    /// The image, as the user wrote it.
    pub image: String,
    /// Why it was not repaired.
    pub problem: String,
}

/// A request for a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountRequest {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest. The store holds the record of this name.
    pub manifest: Digest,
    /// Mount point: absolute, without symbolic links, an existing directory.
    pub mountpoint: PathBuf,
    /// Mount mode.
    pub mode: ModeChoice,
    /// Its writable layer.
    pub writable: Writable,
    /// Whether setuid and setgid bits take effect.
    pub suid: bool,
    /// Whether device nodes work.
    pub dev: bool,
    /// How the server accesses the image's blobs.
    pub access: Access,
    /// Whether the rest of the image is fetched in the background.
    #[serde(default)]
    pub backfill: Backfill,
    /// Maximum bytes per second of the background fetch.
    #[serde(default)]
    pub backfill_rate: Option<NonZeroU64>,
    /// The mount is restored without its `--creds`, which are not kept on disk.
    #[serde(default)]
    pub credentials_lost: bool,
    /// Every read is recorded (`Engine::record`). In mode `fuse` only.
    #[serde(default)]
    pub record: bool,
    /// Address where the server exposes its metrics from now on, unless it already does.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// A file that lists what to fetch first (`Engine::leave_trace`). The server owns it from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// The command that the mount is for, if it is known: starts by different commands read different files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Whether what the start reads is kept for the next start, and what earlier ones read is fetched first.
    #[serde(default = "learns_by_default")]
    pub learn: bool,
    /// It is not mounted but exposed to Podman under these names. The mount point gives its place in Podman's store.
    #[serde(default)]
    pub podman: Option<PodmanNames>,
    /// It is Podman's store of layers, or an image in it. The mount point gives the place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersPart>,
    /// Where the boot pack of the image may be, besides its own repository: names of sources. A record that names another place is not
    /// believed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub index_places: Vec<String>,
    /// What preparing the image had to fall back to, for `status`.
    pub fallbacks: Vec<String>,
}

/// Mounts that were recorded before this could be chosen.
fn learns_by_default() -> bool {
    true
}

impl MountRequest {
    /// A read-only mount of an image on `mountpoint`, in the mode that works best here, without credentials. Change the fields that should
    /// differ.
    pub fn new(image: String, manifest: Digest, mountpoint: PathBuf) -> Self {
        Self {
            image,
            manifest,
            mountpoint,
            mode: ModeChoice::Auto,
            writable: Writable::No,
            suid: false,
            dev: false,
            access: Access::default(),
            backfill: Backfill::Off,
            backfill_rate: None,
            credentials_lost: false,
            record: false,
            metrics: None,
            trace: None,
            command: Vec::new(),
            learn: true,
            podman: None,
            layers: None,
            index_places: Vec::new(),
            fallbacks: Vec::new(),
        }
    }

    /// As [`MountRequest::new`], of a prepared image and with its access.
    pub fn for_image(prepared: &Prepared, mountpoint: PathBuf) -> Self {
        Self {
            access: prepared.access.clone(),
            index_places: prepared.index_places.clone(),
            fallbacks: prepared.fallbacks.clone(),
            ..Self::new(prepared.text.clone(), prepared.record.manifest, mountpoint)
        }
    }
}

/// The names of an image in Podman.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodmanNames {
    /// Its names. None: it is known by its id only.
    pub names: Vec<String>,
    /// When it was added, in nanoseconds since 1970: of two images with one name, the later one gets it.
    pub added: u64,
}

/// An image as Podman knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodmanImage {
    /// Its id: the digest of its config.
    pub id: Digest,
    /// Its names.
    pub names: Vec<String>,
}

/// A part of Podman's store of layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayersPart {
    /// The whole store.
    Store {
        /// Which diffIDs are reported to Podman.
        diff_ids: DiffIds,
        /// The policy for images, absolute; `None`: that of the host. It is part of no [`Access`] that is sent or recorded, but images are
        /// resolved later, on Podman's lookups.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        policy: Option<PathBuf>,
    },
    /// An image whose layers are exposed.
    Image {
        /// How often Podman uses each layer, by the digest of its lookups.
        uses: BTreeMap<Digest, u64>,
    },
}

/// Which diffIDs are reported to Podman for layers that it looks up by blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiffIds {
    /// DiffIDs of layers that were hashed locally. Other layers get digests that no layer has.
    #[default]
    Hashed,
    /// DiffIDs that the images' configs claim. They are checked in the background.
    Claimed,
}

/// Whether and how a mounted image is completed in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backfill {
    /// Not at all: only what is read is fetched.
    #[default]
    Off,
    /// One layer at a time, only while no reader waits for the network.
    Idle,
    /// Several layers at a time, after what readers wait for.
    Now,
}

/// Progress of completing an image in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillStatus {
    /// Its schedule.
    pub how: Backfill,
    /// Its state.
    pub state: BackfillState,
    /// Layers that are local and verified.
    pub layers_done: usize,
    /// Layers of the image, each blob once.
    pub layers: usize,
    /// Why it waits or stopped.
    pub problem: Option<String>,
    /// Layers that contradict the image's index or their digests. Nothing more is read from them.
    pub alarms: Vec<String>,
}

impl BackfillStatus {
    /// The status before anything is known.
    pub fn begun(how: Backfill) -> Self {
        Self { how, state: BackfillState::Running, layers_done: 0, layers: 0, problem: None, alarms: Vec::new() }
    }
}

/// State of the completion of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackfillState {
    /// It runs, or waits to retry.
    Running,
    /// The whole image is local and verified.
    Complete,
    /// It has given up until the image is mounted again.
    Stopped,
    /// It has finished, and not all layers are correct.
    Alarm,
}

/// The description of a mount.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountStatus {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest, to which the mount is pinned.
    pub manifest: Digest,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// `native` or `fuse`. The requested mode if it was never mounted.
    pub mode: String,
    /// The writable layer.
    pub writable: Writable,
    /// Its name and ID in Podman, if it is exposed to Podman.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub podman: Option<PodmanImage>,
    /// The container whose root file system it is, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Its part of Podman's store of layers, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersPart>,
    /// How far the image's bytes are verified, one entry per layer.
    pub verification: Vec<LayerVerification>,
    /// The completion in the background, if any.
    #[serde(default)]
    pub backfill: Option<BackfillStatus>,
    /// What fell back to something slower or weaker, and why. Empty without fallbacks.
    pub fallbacks: Vec<String>,
    /// Why it is not mounted although it should be: a mount of a dead server could not be restored.
    pub problem: Option<String>,
    /// Why processes that had damaged files open when the damage was found, or have them mapped, may still see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// It was mounted again without its original `--creds`.
    pub credentials_lost: bool,
    /// Whether a server is alive for it. `false`: the server died. In mode `native`, local content stays readable.
    pub alive: bool,
    /// Process that serves it, or served it.
    pub server: u32,
    /// Compressed bytes of all layers.
    pub image_bytes: u64,
    /// Bytes received while the image was prepared, before its first mount: manifest, tables of contents, and streamed layers. Equal for
    /// every mount of the image.
    #[serde(default)]
    pub prepared_bytes: u64,
    /// Bytes received since it was mounted, tokens and retries included.
    pub fetched_bytes: u64,
    /// Requests made since it was mounted.
    pub requests: u64,
    /// Reads that this image's source failed to serve since it was mounted.
    pub failed_reads: u64,
    /// The last of these failures, in one line.
    pub last_error: Option<String>,
    /// The endpoints that serve the image: its mirrors and its registry, then those of the index repository that has its boot pack. None
    /// for a layout or an archive. What they were asked for counts for the image, not for one mount of it.
    #[serde(default)]
    pub endpoints: Vec<EndpointStatus>,
    /// Address of the server's metrics, if it exposes any.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// The scrub of the store, if any ever ran. Equal for every mount of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubStatus>,
    /// All other counters of the image since the server loaded it. `bytes_fetched` counts file data only.
    pub counters: serde_json::Value,
}

/// What the server requested from one endpoint of an image. What it redirects to counts for it, and so do its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its host, as `HOST[:PORT]`.
    pub endpoint: String,
    /// Its role.
    pub kind: EndpointKind,
    /// Requests sent to it.
    pub requests: u64,
    /// Bytes received from it.
    pub bytes: u64,
    /// How long all requests together waited for the head of their response, or for their failure.
    pub wait_millis: u64,
    /// Requests that failed with all their attempts, or found nothing, and responses that broke off.
    pub failures: u64,
    /// How long it is still not asked, because it failed. Zero: the next request finds out whether it answers again.
    pub rest_millis: Option<u64>,
    /// Its last failure, in one line.
    pub last_failure: Option<String>,
}

/// The role of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointKind {
    /// The tier, which is asked first; `endpoint` is its URL.
    Tier,
    /// A mirror of the image's registry.
    Mirror,
    /// The image's registry, which is asked last.
    Registry,
    /// A mirror of the index repository that has the image's boot pack.
    IndexMirror,
    /// The registry of that index repository.
    Index,
}

/// What a mount waited for, as recorded by its server: without paths, which the client looks up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountAccount {
    /// The mount.
    pub mount: MountStatus,
    /// Whether the image has a boot pack.
    pub has_pack: bool,
    /// Events of the image since the server loaded it.
    pub journal: tarpon_fetch::Account,
}

/// How far one layer is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerVerification {
    /// The layer's blob.
    pub digest: Digest,
    /// How it is read.
    pub format: LayerKind,
    /// What it was checked against.
    pub state: Verification,
}
