//! Open uploads, and the variants of the model that concern writes.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use serde_json::Value;
use tokio::sync::Barrier;

/// The location that the model returns for the next part of an upload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Locations {
    /// A path without a host.
    #[default]
    Relative,
    /// A full address.
    Absolute,
    /// An address on the host of the blobs.
    Elsewhere,
}

/// The list of referrers that the model keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Referrers {
    /// None: clients keep it under a tag.
    #[default]
    Unknown,
    /// A list with a limited number of entries per page, which states whether it is filtered.
    Kept {
        /// Entries per page.
        page: usize,
        /// Whether it applies the requested filter.
        filters: bool,
    },
    /// A list whose pages never end.
    Endless,
    /// A list to which access is denied.
    Refused,
}

/// Open uploads, and the variants of the model's behavior.
#[derive(Default)]
pub(super) struct Writes {
    pub(super) locations: Locations,
    pub(super) referrers: Referrers,
    pub(super) mounts: bool,
    pub(super) read_only: bool,
    /// Requests for lists of referrers wait for others there.
    pub(super) gate: Option<Arc<Barrier>>,
    pub(super) opened: u64,
    pub(super) uploads: HashMap<String, Upload>,
    /// Referrers by subject, as index entries.
    pub(super) about: HashMap<String, Vec<Value>>,
}

#[derive(Default)]
pub(super) struct Upload {
    pub(super) bytes: BytesMut,
    /// Counts the answers: each returns a new address, and only the last is valid.
    pub(super) turn: u64,
}
