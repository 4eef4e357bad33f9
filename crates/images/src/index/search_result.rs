//! Indexes that were found for the layers of an image.

use bytes::Bytes;
use tarpon_oci::{Blob, Digest, Verified};
use tarpon_store::{LayerKind, Verification};

use super::artifact::Indexed;

/// Indexes of a registry's list that are tried before giving up.
pub const CANDIDATES: usize = 4;

/// The result of the search.
#[derive(Debug, Default)]
pub struct SearchResult {
    /// Indexes of layers, each at most once.
    pub layers: Vec<Usable>,
    /// Lines for the user: which index is used, or why none is.
    pub notes: Vec<String>,
    /// The boot pack.
    pub boot: Option<FoundPack>,
    /// Bytes received from index repositories.
    pub(crate) fetched: u64,
    /// The registry's list of indexes could not be fetched.
    pub(super) is_list_missing: bool,
}

/// A boot pack that was found.
#[derive(Debug, Clone)]
pub struct FoundPack {
    /// Its index.
    pub index: Verified<Bytes>,
    /// The number of the index repository that has it; `None`: it is in the image's repository.
    pub place: Option<usize>,
}

/// The index of a layer.
#[derive(Debug)]
pub struct Usable {
    /// The layer and its index.
    pub indexed: Indexed,
    /// Digest of the index.
    pub index: Digest,
    /// The verification state of a layer read through it.
    pub verification: Verification,
    /// The kind of a layer read through it.
    pub format: LayerKind,
}

impl SearchResult {
    pub(super) fn without(note: String) -> Self {
        Self { notes: vec![note], ..Self::default() }
    }

    /// Notes which index was used, if it was. `of`: "of PLACE ", if it is in an index repository.
    pub(super) fn because(mut self, digest: &Digest, of: &str, why: &str) -> Self {
        if !self.layers.is_empty() || self.boot.is_some() {
            let index = format!("the index {digest} {of}").trim_end().to_owned();
            self.notes.insert(0, format!("{index} is used, {why}"));
        }
        self
    }

    /// The index of this layer.
    pub fn of(&self, blob: &Blob) -> Option<&Usable> {
        self.layers.iter().find(|layer| layer.indexed.blob == *blob)
    }

    /// The layers that are still without an index.
    pub(crate) fn rest(&self, wanted: &[Blob]) -> Vec<Blob> {
        wanted.iter().filter(|blob| self.of(blob).is_none()).copied().collect()
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.layers.extend(more.layers);
        self.notes.extend(more.notes);
        self.boot = self.boot.take().or(more.boot);
    }
}
