//! What a client and the store's server say to each other: one JSON object a line, over a Unix socket in the store.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;

use crate::ErrorKind;

/// Longest line of the protocol. A status of a thousand mounts fits.
pub(crate) const LINE_BYTES: u64 = 4 << 20;

/// A server answers within this: a mount from local records takes milliseconds, an unmount may drain for ten seconds.
pub(crate) const ANSWER: Duration = Duration::from_secs(60);

/// What a client asks of the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ask")]
pub enum Request {
    /// Mount an image whose record is in the store.
    Mount(MountRequest),
    /// Unmount what is mounted at this path.
    Unmount {
        /// Absolute and without symbolic links.
        mountpoint: PathBuf,
    },
    /// Describe all mounts.
    Status,
}

/// What the server answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Response {
    /// The mount is usable.
    Mounted(MountStatus),
    /// It is unmounted.
    Unmounted(Unmounted),
    /// All mounts.
    Status {
        /// In the order they were mounted.
        mounts: Vec<MountStatus>,
    },
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

/// How an unmount went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmounted {
    /// Somebody still used it: it left the name space at once and goes away when the last user does.
    pub lazily: bool,
}

/// Which mode to mount in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeChoice {
    /// `native` where it works, else `fuse`.
    #[default]
    Auto,
    /// overlayfs over EROFS and local objects; FUSE only for objects that are not here.
    Native,
    /// One FUSE file system.
    Fuse,
}

/// The writable layer of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writable {
    /// None: read-only.
    #[default]
    No,
    /// A temporary one, thrown away at unmount.
    Temporary,
    /// This directory, which is kept.
    Upper(PathBuf),
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
    /// What preparing the image had to fall back to, for `status`.
    pub fallbacks: Vec<String>,
}

/// How to get at an image's blobs. Carries no secret but `creds`, which stays in memory.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Access {
    /// `USER:PASSWORD` of `--creds`.
    pub creds: Option<String>,
    /// `--authfile`.
    pub authfile: Option<PathBuf>,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// `--tls-verify`: not said, yes, no.
    pub tls_verify: Option<bool>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("creds", &self.creds.as_ref().map(|_| "…"))
            .field("authfile", &self.authfile)
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
    /// `native` or `fuse`.
    pub mode: String,
    /// The writable layer.
    pub writable: Writable,
    /// How far the image's bytes are verified, one word a layer.
    pub verification: Vec<LayerVerification>,
    /// What fell back to something slower or weaker, and why; empty when nothing did.
    pub fallbacks: Vec<String>,
    /// Whether a server answers for it. `false`: the server died; what is local stays readable in mode `native`.
    pub alive: bool,
    /// Process that serves it, or served it.
    pub server: u32,
    /// Compressed bytes of all layers.
    pub image_bytes: u64,
    /// Bytes fetched since it was mounted.
    pub fetched_bytes: u64,
    /// Requests made since it was mounted.
    pub requests: u64,
    /// Everything else that is counted.
    pub counters: serde_json::Value,
}

/// How far one layer is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerVerification {
    /// The layer's blob.
    pub digest: Digest,
    /// `estargz`, `zstd:chunked`, `tar+gzip`, `tar+zstd`, `tar`.
    pub format: String,
    /// `diffID-verified`: the whole layer was seen and is what the config says. `toc-verified`: its table of contents
    /// is the one that the manifest names, and each chunk is checked as it comes.
    pub state: String,
}
