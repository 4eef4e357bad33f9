//! [`Record`]: the stored state of a snapshot.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tarpon_oci::Digest;

use crate::messages;

/// Labels of a snapshot.
pub(crate) type Labels = BTreeMap<String, String>;

/// Version of the format. Records of other versions are not read.
pub(crate) const VERSION: u32 = 1;

/// A snapshot, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) version: u32,
    /// The key of an active snapshot or view, the name of a committed one.
    pub(crate) name: String,
    /// The name of the committed parent snapshot; empty if there is none.
    pub(crate) parent: String,
    pub(crate) kind: Kind,
    pub(crate) labels: Labels,
    /// In nanoseconds since 1970, as is `updated`.
    pub(crate) created: u64,
    pub(crate) updated: u64,
    /// Disk usage of a committed snapshot.
    pub(crate) usage: Usage,
    /// The layers of an image down to the base, if they are mounted and not unpacked.
    pub(crate) lazy: Option<LazyLayers>,
}

/// Kinds of snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Read-only view of a committed snapshot.
    View,
    /// Writable.
    Active,
    /// Finished: may be the parent of others.
    Committed,
}

/// Bytes and inodes on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) size: u64,
    pub(crate) inodes: u64,
}

/// The lowest layers of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct LazyLayers {
    /// The image's repository, pinned to the manifest.
    pub(crate) image: String,
    /// Digest of the manifest.
    pub(crate) manifest: Digest,
    /// Number of layers.
    pub(crate) count: usize,
}

impl Record {
    /// A new snapshot.
    pub(crate) fn new(name: &str, parent: &str, kind: Kind, labels: Labels) -> Self {
        let (name, parent, now) = (name.to_owned(), parent.to_owned(), now());
        let usage = Usage::default();
        Self { version: VERSION, name, parent, kind, labels, created: now, updated: now, usage, lazy: None }
    }

    /// The snapshot as a message to containerd.
    pub(crate) fn info(&self) -> messages::Info {
        messages::Info {
            name: self.name.clone(),
            parent: self.parent.clone(),
            kind: messages::Kind::from(self.kind).into(),
            created_at: Some(timestamp(self.created)),
            updated_at: Some(timestamp(self.updated)),
            labels: self.labels.clone().into_iter().collect(),
        }
    }
}

impl From<Kind> for messages::Kind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::View => Self::View,
            Kind::Active => Self::Active,
            Kind::Committed => Self::Committed,
        }
    }
}

/// The current time in the unit of records.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn timestamp(nanoseconds: u64) -> messages::Timestamp {
    const SECOND: u64 = 1_000_000_000;
    messages::Timestamp {
        seconds: i64::try_from(nanoseconds / SECOND).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanoseconds % SECOND).unwrap_or_default(),
    }
}
