//! Indexes of layers, kept by the digest of the layer: images that share a layer fetch and walk it once.
//!
//! The store does not know what an index looks like. It gives back the bytes that it was given, or nothing.

use std::collections::HashSet;

use tarpon_oci::{Digest, Verified, limits};

use crate::StoreError;
use crate::budget::{on_disk, signed};
use crate::evict::Evicted;
use crate::files::{self, io_error};
use crate::store::Store;

/// Bytes of the digest in front of an index.
const DIGEST: usize = 32;

impl Store {
    /// Keeps the index of `layer`. It replaces the one that is there.
    pub fn keep_layer_index(&self, layer: &Digest, index: &[u8]) -> Result<(), StoreError> {
        let mut text = Vec::with_capacity(DIGEST + index.len());
        text.extend_from_slice(Digest::of(index).as_bytes());
        text.extend_from_slice(index);
        let folder = self.shared.layout.name("layers");
        files::replace(self.shared.storage(), &folder, &layer.hex(), &text)
            .map_err(|error| self.shared.refuse(error))?;
        self.shared.budget.add(signed(on_disk(text.len() as u64)));
        Ok(())
    }

    /// The index of `layer`; `None` if there is none, or not the one that was kept.
    pub fn layer_index(&self, layer: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.shared.layout.name("layers").join(layer.hex());
        let Some(mut text) = files::read(self.shared.storage(), &path, limits::LAYER_INDEX_BYTES)? else {
            return Ok(None);
        };
        let Some(digest) = text.first_chunk::<DIGEST>().map(|bytes| Digest::from_bytes(*bytes)) else {
            return Ok(None);
        };
        text.drain(..DIGEST);
        Ok(Verified::check(&digest, text).ok().map(Verified::into_inner))
    }

    /// Removes the indexes of layers that no image has. Those of an import in progress are younger than its pin.
    pub(crate) fn remove_unused_layer_indexes(&self, evicted: &mut Evicted) -> Result<(), StoreError> {
        let used: HashSet<Digest> =
            self.images()?.into_iter().flat_map(|image| image.layers).map(|layer| layer.digest).collect();
        let pinned_since = self.shared.oldest_pin()?;
        let folder = self.shared.layout.name("layers");
        for name in files::list(self.shared.storage(), &folder)? {
            let layer = name.to_str().and_then(|name| Digest::from_hex(name).ok());
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
    use crate::{Store, StoreConfig};
    use tarpon_oci::Digest;

    #[test]
    fn an_index_comes_back_until_it_is_damaged_or_unused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), StoreConfig::default()).unwrap();
        let layer = Digest::of(b"layer");
        assert_eq!(store.layer_index(&layer).unwrap(), None);
        store.keep_layer_index(&layer, b"an index").unwrap();
        assert_eq!(store.layer_index(&layer).unwrap().as_deref(), Some(&b"an index"[..]));

        let path = folder.path().join("layers").join(layer.hex());
        std::fs::write(&path, b"something else altogether, and long enough").unwrap();
        assert_eq!(store.layer_index(&layer).unwrap(), None);

        store.gc().unwrap();
        assert!(!path.exists(), "no image has this layer");
    }
}
