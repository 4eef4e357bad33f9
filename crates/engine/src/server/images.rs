//! The images whose objects this server can fetch.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_fetch::{Fetcher, ImageHandle, Stats};
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Digest;
use tarpon_registry::Repository;
use tarpon_store::{ImageRecord, Store};

use crate::protocol::MountRequest;
use crate::{Error, ErrorKind, Result, access};

/// An image that was loaded from its record and registered with the fetcher.
pub(super) struct Image {
    pub(super) record: ImageRecord,
    pub(super) tree: PathBuf,
    repository: Repository,
    handle: ImageHandle,
}

impl Image {
    pub(super) fn counters(&self) -> Stats {
        self.handle.stats()
    }

    /// What crossed the wire for this image, retries and tokens included.
    pub(super) fn transfers(&self) -> tarpon_registry::Stats {
        self.repository.stats()
    }
}

/// Images stay registered as long as the server lives: somebody who uses a lazily unmounted tree still reads from it.
/// Each costs two mappings and a few hundred bytes.
pub(super) struct Images {
    store: Store,
    fetcher: Fetcher,
    loaded: Mutex<HashMap<Digest, Arc<Image>>>,
}

impl Images {
    pub(super) fn new(store: Store, fetcher: Fetcher) -> Self {
        Self { store, fetcher, loaded: Mutex::default() }
    }

    /// Loads the image, or takes it as it was loaded for an earlier mount.
    pub(super) fn load(&self, request: &MountRequest) -> Result<Arc<Image>> {
        let mut loaded = self.loaded.lock();
        if let Some(image) = loaded.get(&request.manifest) {
            return Ok(image.clone());
        }
        let image = Arc::new(self.load_new(request)?);
        loaded.insert(request.manifest, image.clone());
        Ok(image)
    }

    fn load_new(&self, request: &MountRequest) -> Result<Image> {
        let failed = |cause: String| Error::new(ErrorKind::Store, "load the image's record", cause);
        let found = self.store.load_image(&request.manifest).map_err(|error| failed(error.to_string()))?;
        let found = found.ok_or_else(|| failed("it is not in the store, or damaged".into()))?;
        let table = ChunkTable::open(Bytes::from_owner(found.chunks)).map_err(|error| failed(error.to_string()))?;
        let repository = access::open_later(&request.image, &request.access)?;
        let handle = self.fetcher.add_image(table, repository.blobs(), request.image.as_str());
        Ok(Image { record: found.record, tree: found.tree_path, repository, handle })
    }
}
