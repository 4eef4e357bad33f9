//! [`Explanation`]: why a mounted image was slow.

use serde::Serialize;
use tarpon_fetch::{Early, Noted, Stall, WaitSum};
use tarpon_oci::Digest;

use tarpon_client::protocol::MountStatus;

/// Why a mounted image was slow. Everything but `mount` concerns the image since the server loaded it.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The mount.
    pub mount: MountStatus,
    /// Whether the image has a boot pack.
    pub has_pack: bool,
    /// When the server loaded the image, in milliseconds since 1970.
    pub loaded_unix_millis: u64,
    /// Reads that waited for a source.
    pub stalls: u64,
    /// Total wait.
    pub stall_millis: u64,
    /// The longest wait.
    pub slowest_stall_millis: u64,
    /// What they waited for, longest first.
    pub waits: Vec<WaitSum>,
    /// The slowest reads, slowest first.
    pub slowest: Vec<SlowRead>,
    /// Bytes fetched, by purpose.
    pub bytes: Bytes,
    /// How the content of a boot pack was used.
    pub pack: Early,
    /// How the content that was read ahead was used.
    pub read_ahead: Early,
    /// Events and decisions, oldest first.
    pub events: Vec<Noted>,
    /// Earlier events that are no longer kept.
    pub events_dropped: u64,
    /// Advice, the most useful first. Empty if the figures call for none.
    pub advice: Vec<Advice>,
}

/// A read that waited.
#[derive(Debug, Clone, Serialize)]
pub struct SlowRead {
    /// The server's record of it.
    #[serde(flatten)]
    pub stall: Stall,
    /// A path of the file that was read.
    pub path: Option<String>,
    /// The layer that contains the file, even if its bytes came from a boot pack.
    pub file_layer: Option<Digest>,
}

/// Bytes from a source, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bytes {
    /// Requested by readers.
    pub demand: u64,
    /// From a boot pack.
    pub pack: u64,
    /// Read ahead for sequential readers.
    pub read_ahead: u64,
    /// To complete the image, because readers waited too long for parts of it.
    pub whole: u64,
    /// For the background completion.
    pub backfill: u64,
}

/// A piece of advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Its topic, for programs.
    pub about: Topic,
    /// The reason and the action, in one line.
    pub text: String,
}

/// The topic of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// A layer is no longer served.
    Distrust,
    /// The source failed.
    Source,
    /// The store did not keep content.
    Store,
    /// The boot pack could not be used.
    PackGivenUp,
    /// Reads at the start waited, and there is no boot pack.
    NoPack,
    /// The boot pack contained much that was not read.
    PackWaste,
    /// A layer can only be decoded from its beginning.
    WholeLayer,
    /// Layers were downloaded whole before the mount.
    NoIndex,
    /// Reads long after the start waited.
    NotComplete,
}
