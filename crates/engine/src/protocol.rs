//! What a client and the store's server say to each other: one JSON object a line, over a Unix socket in the store.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_mount::{ModeChoice, Unmounted, Writable};
use tarpon_oci::{Blob, Digest};
use tarpon_store::{LayerKind, ScrubRecord, ScrubRun, Store, Verification};

use crate::ErrorKind;
use crate::namespaces::Namespaces;
use crate::podman::{PodmanImage, PodmanNames};

/// Longest request: a server reads those of many clients at once.
pub(crate) const LINE_BYTES: u64 = 4 << 20;

/// Longest answer, of which a client reads one at a time. A status of ten thousand mounts fits, at some thousand bytes each.
pub(crate) const ANSWER_BYTES: u64 = 64 << 20;

/// A server answers within this: a mount from local records takes milliseconds, an unmount may drain for ten seconds.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// What changes nothing is answered within this: ten thousand mounts are described in a second, on a machine that does nothing else.
const SOON: Duration = Duration::from_secs(30);

/// What a client asks of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Request {
    /// Mount an image whose record is in the store.
    Mount {
        /// Which, where and how.
        request: Box<MountRequest>,
        /// Where the mount point is to be seen.
        namespaces: Namespaces,
    },
    /// Begin to bring a boot pack of an image that will be mounted in a moment.
    Bring {
        /// The image, as the user wrote it.
        image: String,
        /// How its blobs are got at.
        access: Access,
        /// Where the pack is.
        pack: Blob,
    },
    /// Unmount what is mounted at this path.
    Unmount {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
        /// Leave it mounted if it is in use.
        #[serde(default)]
        only_unused: bool,
    },
    /// Take an image away from Podman.
    PodmanRemove {
        /// Where it is in Podman's store.
        mountpoint: PathBuf,
        /// Only this name of it, if it has others.
        name: Option<String>,
        /// Also while containers use it.
        force: bool,
    },
    /// Say whether Podman uses any of what it is shown.
    PodmanUnused,
    /// Write down what was touched at a mount that is recorded.
    Trace {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
    /// Mend what mounts show of objects that were found damaged.
    Mend,
    /// Describe the scrub of the store.
    Scrub,
    /// Describe all mounts.
    Status,
    /// Describe one of them, if it is there.
    StatusOf {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
    /// Do not end for want of mounts as long as this connection is there: more will come.
    Hold,
    /// Say what one of them waited for.
    Why {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
}

impl Request {
    /// How long a client waits for the answer.
    pub(crate) fn patience(&self) -> Duration {
        match self {
            Self::Status | Self::StatusOf { .. } | Self::Scrub | Self::Why { .. } | Self::Hold | Self::Bring { .. } => {
                SOON
            }
            Self::Mount { .. }
            | Self::Unmount { .. }
            | Self::PodmanRemove { .. }
            | Self::PodmanUnused
            | Self::Trace { .. }
            | Self::Mend => ANSWER,
        }
    }

    /// A mount for this process.
    pub(crate) fn mount(request: MountRequest) -> Self {
        Self::Mount { request: Box::new(request), namespaces: Namespaces::of_this_process() }
    }
}

/// What the server answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Response {
    /// The mount is usable.
    Mounted(Box<MountStatus>),
    /// It begins to come.
    Coming,
    /// The server does not end before the connection does.
    Held,
    /// It is unmounted.
    Unmounted {
        /// Whether somebody still used it.
        how: Unmounted,
    },
    /// What was touched.
    Trace {
        /// A file with the trace, which is the client's from now on.
        file: PathBuf,
    },
    /// The mounts that were asked for.
    Status {
        /// In the order of their paths.
        mounts: Vec<MountStatus>,
    },
    /// It is not used.
    Unused,
    /// What one waited for.
    Why(Box<MountAccount>),
    /// How the scrub stands.
    Scrub(ScrubStatus),
    /// What was mended, and what was not.
    Mended(Mended),
    /// It failed.
    Failed {
        /// As in [`crate::Error`].
        kind: ErrorKind,
        /// As in [`crate::Error`].
        step: String,
        /// As in [`crate::Error`].
        cause: String,
        /// As in [`crate::Error`].
        hint: Option<String>,
    },
}

/// The scrub of a store, which hashes all objects from time to time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Bytes that the server reads for it in a second, at most. `None`: no server of the store scrubs.
    pub rate: Option<NonZeroU64>,
    /// Whether a run is going on just now.
    pub running: bool,
    /// How far the run has come that was begun and has not ended; it goes on with the next server that scrubs.
    pub under_way: Option<ScrubRun>,
    /// The last run that went through the whole store.
    pub last: Option<ScrubRun>,
}

impl ScrubStatus {
    /// What the store says where no server does.
    pub(crate) fn of_store(store: &Store) -> Self {
        let ScrubRecord { last, under_way } = store.scrub_record();
        Self { rate: None, running: false, under_way, last }
    }

    /// Whether there is anything to say.
    pub(crate) fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// What was done for mounts whose files were found damaged.
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
    /// Where.
    pub mountpoint: PathBuf,
    /// The image, as the user wrote it.
    pub image: String,
    /// Why.
    pub problem: String,
}

/// A mount to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountRequest {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest; the record of this name is in the store.
    pub manifest: Digest,
    /// Where to. Absolute, without symbolic links, an existing directory.
    pub mountpoint: PathBuf,
    /// How.
    pub mode: ModeChoice,
    /// With which writable layer.
    pub writable: Writable,
    /// Whether setuid and setgid bits take effect.
    pub suid: bool,
    /// Whether device nodes work.
    pub dev: bool,
    /// How the server gets at the image's blobs.
    pub access: Access,
    /// Whether the rest of the image is brought in the background.
    #[serde(default)]
    pub backfill: Backfill,
    /// Bytes of the background's that may arrive in a second.
    #[serde(default)]
    pub backfill_rate: Option<NonZeroU64>,
    /// There were `--creds` once, which are not kept on disk: this is a mount made again without them.
    #[serde(default)]
    pub credentials_lost: bool,
    /// Every read is noted ([`crate::Engine::record`]). In mode `fuse` only.
    #[serde(default)]
    pub record: bool,
    /// Where the server is to tell its metrics from now on, if it does not yet.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// A file with what is to be brought first ([`crate::Engine::leave_trace`]), which is the server's from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// It is not mounted but shown to Podman, under these names; the mount point says where it is in Podman's store.
    #[serde(default)]
    pub podman: Option<PodmanNames>,
    /// It is Podman's store of layers, or an image in it; the mount point says where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersPart>,
    /// What preparing the image had to fall back to, for `status`.
    pub fallbacks: Vec<String>,
}

/// What of Podman's store of layers is meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayersPart {
    /// All of it.
    Store {
        /// Which diffIDs Podman is told.
        diff_ids: DiffIds,
    },
    /// An image whose layers are shown.
    Image {
        /// How often Podman uses which, by the digests that it asks by.
        uses: BTreeMap<Digest, u64>,
    },
}

/// Which diffIDs Podman is told of layers that it asks for by their blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiffIds {
    /// Those of layers that were hashed here; of others, digests that no layer has.
    #[default]
    Hashed,
    /// Those that the images' configs claim. They are checked in the background.
    Claimed,
}

/// Whether and how a mounted image is completed in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backfill {
    /// Not at all: only what is read is fetched.
    #[default]
    Off,
    /// One layer at a time, and only while no reader waits for the network.
    Idle,
    /// Several layers at a time, behind what readers wait for.
    Now,
}

/// How far the completion of an image in the background is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillStatus {
    /// How it goes about it.
    pub how: Backfill,
    /// Where it stands.
    pub state: BackfillState,
    /// Layers that are here and were found to be what they should be.
    pub layers_done: usize,
    /// Layers that the image has, each blob once.
    pub layers: usize,
    /// What holds it up, or why it stopped.
    pub problem: Option<String>,
    /// Layers that are not what the image's index says, or not what their digests say: nothing more is read out of these.
    pub alarms: Vec<String>,
}

impl BackfillStatus {
    /// Before anything is known.
    pub(crate) fn begun(how: Backfill) -> Self {
        Self { how, state: BackfillState::Running, layers_done: 0, layers: 0, problem: None, alarms: Vec::new() }
    }
}

/// Where the completion of an image stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackfillState {
    /// It goes on, or waits to try again.
    Running,
    /// All of the image is here and verified.
    Complete,
    /// It has given up until the image is mounted anew.
    Stopped,
    /// It has done what it could, and not all layers are what they should be.
    Alarm,
}

/// How to get at an image's blobs. Carries no secret but `creds`, which stays in memory.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Access {
    /// `USER:PASSWORD` of `--creds`.
    pub creds: Option<String>,
    /// Files with credentials, absolute, in the order of asking: `--authfile`, or what the client's environment says
    /// ([`crate::auth_files`]). None: what the server's says.
    pub authfiles: Vec<PathBuf>,
    /// `--cert-dir`, absolute.
    pub cert_dir: Option<PathBuf>,
    /// `--tls-verify`: not said, yes, no.
    pub tls_verify: Option<bool>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("creds", &self.creds.as_ref().map(|_| "…"))
            .field("authfiles", &self.authfiles)
            .field("cert_dir", &self.cert_dir)
            .field("tls_verify", &self.tls_verify)
            .finish()
    }
}

/// One mount, described.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountStatus {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest: what the mount is pinned to.
    pub manifest: Digest,
    /// Where.
    pub mountpoint: PathBuf,
    /// `native` or `fuse`; what was asked for if it never came to be mounted.
    pub mode: String,
    /// The writable layer.
    pub writable: Writable,
    /// How Podman knows it, if it is shown to Podman.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub podman: Option<PodmanImage>,
    /// The container that it is the root of, if it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// What of Podman's store of layers it is, if it is any of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersPart>,
    /// How far the image's bytes are verified, one word a layer.
    pub verification: Vec<LayerVerification>,
    /// The completion in the background, if there is one.
    #[serde(default)]
    pub backfill: Option<BackfillStatus>,
    /// What fell back to something slower or weaker, and why; empty when nothing did.
    pub fallbacks: Vec<String>,
    /// Why it is not mounted although it should be: what a dead server left could not be mounted again.
    pub problem: Option<String>,
    /// Why it may show damaged files to who had them open when the damage was found, or has them mapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// It was mounted again without the `--creds` that it had.
    pub credentials_lost: bool,
    /// Whether a server answers for it. `false`: the server died; what is local stays readable in mode `native`.
    pub alive: bool,
    /// Process that serves it, or served it.
    pub server: u32,
    /// Compressed bytes of all layers.
    pub image_bytes: u64,
    /// Bytes that came over the wire when the image was prepared, before it was first mounted: manifest, tables of contents, and layers that
    /// were streamed. Every mount of the image has the same.
    #[serde(default)]
    pub prepared_bytes: u64,
    /// Bytes that came over the wire since it was mounted, tokens and retries included.
    pub fetched_bytes: u64,
    /// Requests made since it was mounted.
    pub requests: u64,
    /// Reads that this image's source could not answer since it was mounted.
    pub failed_reads: u64,
    /// The last failure of these, in one line.
    pub last_error: Option<String>,
    /// Where the server tells its metrics, if it does.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// The scrub of the store, if there ever was one. Every mount of the store has the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubStatus>,
    /// Everything else that is counted, of the image since the server loaded it: `bytes_fetched` are those of file data
    /// alone.
    pub counters: serde_json::Value,
}

/// What a mount waited for, as its server knows it: without paths, which whoever asks looks up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MountAccount {
    /// The mount.
    pub mount: MountStatus,
    /// Whether a boot pack belongs to the image.
    pub has_pack: bool,
    /// What happened to the image since the server loaded it.
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
