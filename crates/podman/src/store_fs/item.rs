//! The tree that a [`super::StoreFs`] shows, without node ids.

use std::collections::BTreeMap;

use bytes::Bytes;
use tarpon_oci::Digest;

use crate::layer_numbers::Diff;

/// The target of a name.
pub(crate) enum Item {
    /// A directory.
    Directory(Directory),
    /// A file with these bytes, mode 0644.
    File(Bytes),
    /// A symbolic link to this target.
    Link(String),
    /// The root of a layer.
    Layer {
        /// Its id in Podman's stores: two directories of the tree never show the same one.
        id: Digest,
        /// Its content.
        diff: Diff,
    },
}

/// A directory of mode 0755, with the names in it.
#[derive(Default)]
pub(crate) struct Directory {
    /// Its owner.
    pub(crate) uid: u32,
    /// Its group.
    pub(crate) gid: u32,
    /// Its content.
    pub(crate) items: BTreeMap<String, Item>,
}

impl Directory {
    /// A directory of root with these entries.
    pub(crate) fn of<const N: usize>(items: [(&str, Item); N]) -> Self {
        Self { uid: 0, gid: 0, items: items.map(|(name, item)| (name.to_owned(), item)).into() }
    }
}
