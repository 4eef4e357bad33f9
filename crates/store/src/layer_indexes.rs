//! Indexes of layers: images that share a layer and make the same claim about it fetch and walk it once.
//!
//! An index is stored under the digest of its layer and the claim that led to it. The claim is part of the name
//! ([`IndexKey`]) because a layer read through its table of contents is never hashed: any manifest can name any blob and
//! a table of its own, and the result must not reach an image without the same claim.
//!
//! The store does not know the format of an index. It returns the stored bytes, or nothing.

use std::collections::HashSet;

use tarpon_oci::{Digest, Verified, limits};

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::evict::Evicted;
use crate::files::{self, io_error};
use crate::store::Store;

/// Length in bytes of the digest in front of an index.
const DIGEST: usize = 32;

/// Key of a layer's index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IndexKey {
    /// Digest of the layer's blob.
    pub layer: Digest,
    /// Represents everything in a manifest about how to read the blob; `None` if there is nothing.
    pub claim: Option<Digest>,
}

impl IndexKey {
    fn file_name(&self) -> String {
        match &self.claim {
            None => self.layer.hex(),
            Some(claim) => format!("{}.{}", self.layer.hex(), claim.hex()),
        }
    }

    /// The layer that a file of this name belongs to.
    fn layer_of(name: &str) -> Option<Digest> {
        Digest::from_hex(name.split('.').next()?).ok()
    }
}

impl Store {
    /// Stores an index, replacing an existing one.
    pub fn keep_layer_index(&self, key: &IndexKey, index: &[u8]) -> Result<(), StoreError> {
        let mut text = Vec::with_capacity(DIGEST + index.len());
        text.extend_from_slice(Digest::of(index).as_bytes());
        text.extend_from_slice(index);
        let folder = self.shared.layout.name("layers");
        files::replace(self.shared.storage(), &folder, &key.file_name(), &text)
            .map_err(|error| self.shared.refuse(error))?;
        self.shared.budget.add(signed(on_disk(text.len() as u64)));
        Ok(())
    }

    /// The index stored under `key`; `None` if there is none, or it is damaged.
    pub fn layer_index(&self, key: &IndexKey) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.shared.layout.name("layers").join(key.file_name());
        let Some(mut text) = files::read(self.shared.storage(), &path, limits::LAYER_INDEX_BYTES)? else {
            return Ok(None);
        };
        let Some(digest) = text.first_chunk::<DIGEST>().map(|bytes| Digest::from_bytes(*bytes)) else {
            return Ok(None);
        };
        text.drain(..DIGEST);
        Ok(Verified::check(&digest, text).ok().map(Verified::into_inner))
    }

    /// Removes the indexes of layers that no image has. Those of a running import are younger than its pin.
    pub(crate) fn remove_unused_layer_indexes(&self, evicted: &mut Evicted) -> Result<(), StoreError> {
        let used: HashSet<Digest> =
            self.own_images()?.into_iter().flat_map(|image| image.layers).map(|layer| layer.digest).collect();
        let pinned_since = self.shared.oldest_pin()?;
        let folder = self.shared.layout.name("layers");
        for name in files::list(self.shared.storage(), &folder)? {
            let layer = name.to_str().and_then(IndexKey::layer_of);
            if layer.is_none_or(|layer| used.contains(&layer)) {
                continue;
            }
            let path = folder.join(&name);
            let metadata = self.shared.storage.metadata(&path).map_err(io_error("looking at", &path))?;
            if pinned_since.is_some_and(|since| metadata.modified >= since) {
                continue;
            }
            files::unlink(self.shared.storage(), &path)?;
            let bytes = on_disk(metadata.size);
            self.shared.budget.add(-signed(bytes));
            evicted.bytes += bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreConfig;

    fn key(claim: Option<&[u8]>) -> IndexKey {
        IndexKey { layer: Digest::of(b"layer"), claim: claim.map(Digest::of) }
    }

    #[test]
    fn an_index_comes_back_until_it_is_damaged_or_unused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        for key in [key(None), key(Some(b"claim"))] {
            assert_eq!(store.layer_index(&key).unwrap(), None);
            store.keep_layer_index(&key, b"an index").unwrap();
            assert_eq!(store.layer_index(&key).unwrap().as_deref(), Some(&b"an index"[..]));

            let path = folder.path().join("layers").join(key.file_name());
            std::fs::write(&path, b"something else altogether, and long enough").unwrap();
            assert_eq!(store.layer_index(&key).unwrap(), None);

            store.gc().unwrap();
            assert!(!path.exists(), "no image has this layer");
        }
    }

    #[test]
    fn an_index_is_found_only_with_the_same_claim_about_the_layer() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        store.keep_layer_index(&key(Some(b"evil")), b"an index").unwrap();
        assert_eq!(store.layer_index(&key(None)).unwrap(), None);
        assert_eq!(store.layer_index(&key(Some(b"good"))).unwrap(), None);
        assert!(store.layer_index(&key(Some(b"evil"))).unwrap().is_some());
    }
}
