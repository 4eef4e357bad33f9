//! Mending: what is done for mounts whose local objects were found damaged while they are mounted.
//!
//! ```text
//!  verify, a check before a mount, an open ─► corrupt/HEX-… ─► mend: the kernel forgets what it knows of the object
//!                                                                      │      (names that nobody uses, pages of FUSE)
//!                                                                      └─► the object is fetched again, and its bytes are also
//!                                                                          written into the damaged file, for who has it open
//! ```
//!
//! After the first step nobody opens the damaged file any more. What could not be fetched is named in `status` until it was.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use parking_lot::Mutex;
use tarpon_fetch::Fetcher;
use tarpon_oci::Digest;
use tarpon_store::{DamagedObject, Store, StoreError};

use super::images::Image;
use super::mounts::Mounts;
use crate::protocol::{Mended, UnmendedMount};
use crate::{Error, ErrorKind, Result};

/// Damaged files that are fetched at the same time.
const FETCHES: usize = 8;
/// Bytes that are fetched and written at once.
const PIECE: u64 = 1 << 20;
/// How long all fetching takes at most: whoever asked waits for the answer. The next round, in half a minute, goes on.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is known of damage under the mounts of a server.
#[derive(Default)]
pub(super) struct Damage {
    /// One round at a time.
    round: Mutex<()>,
    /// Why an image may show damage to who has files of it open, by manifest.
    unmended: Mutex<BTreeMap<Digest, String>>,
}

impl Damage {
    /// Why mounts of this image may show damage.
    pub(super) fn of(&self, manifest: &Digest) -> Option<String> {
        self.unmended.lock().get(manifest).cloned()
    }
}

/// A damaged file that mounts may still read, and what is known of the object.
struct Used {
    damaged: DamagedObject,
    size: u64,
    images: Vec<Arc<Image>>,
}

impl Mounts {
    /// Mends what was found damaged since the last time. Blocks while it fetches.
    pub(super) fn mend(&self) -> Result<Mended> {
        let _round = self.damage.round.lock();
        let failed = |error: StoreError| Error::new(ErrorKind::Store, "mend what is damaged", error);
        let used = self.used(self.store().damaged_objects().map_err(failed)?);
        let mut problems: BTreeMap<Digest, String> = BTreeMap::new();
        let mut mended = 0;
        if !used.is_empty() {
            let objects: HashSet<Digest> = used.iter().map(|used| used.damaged.object).collect();
            objects.iter().for_each(|object| self.images.fetcher().close_local(object));
            self.host().forget(&objects);
            for (used, outcome) in used.iter().zip(self.fetch_all(&used)) {
                match outcome {
                    Ok(()) => mended += 1,
                    Err(problem) => {
                        tracing::warn!(object = %used.damaged.object, %problem, "a damaged file that is mounted is not mended");
                        used.images.iter().for_each(|image| note(&mut problems, image, &problem));
                    }
                }
            }
            tracing::info!(mended, of = used.len(), "damaged files that are mounted were fetched again");
        }
        let is_outdated = |image: &Arc<Image>| !self.images.is_current(image) && self.is_used(&image.record.manifest);
        for image in self.images.all().iter().filter(|image| is_outdated(image)) {
            let problem = "files of its record were damaged while it was mounted: unmount it and mount it again";
            problems.insert(image.record.manifest, problem.to_owned());
        }
        *self.damage.unmended.lock() = problems;
        Ok(Mended { files: mended, unmended: self.unmended() })
    }

    /// Of the damaged files, those of images that were mounted here. Of all others no mount of this server has ever read.
    fn used(&self, damaged: Vec<DamagedObject>) -> Vec<Used> {
        if damaged.is_empty() {
            return Vec::new();
        }
        let images = self.images.all();
        let used = damaged.into_iter().filter_map(|damaged| {
            let has_it = |image: &&Arc<Image>| image.handle().object_size(&damaged.object).is_some();
            let images: Vec<_> = images.iter().filter(has_it).cloned().collect();
            let size = images.first()?.handle().object_size(&damaged.object)?;
            Some(Used { damaged, size, images })
        });
        used.collect()
    }

    fn fetch_all(&self, used: &[Used]) -> Vec<std::result::Result<(), String>> {
        let (fetcher, store, images) = (self.images.fetcher(), self.store(), self.images.all());
        let is_object = |digest: &Digest| images.iter().any(|image| image.handle().object_size(digest).is_some());
        let is_object = &is_object;
        let until = tokio::time::Instant::now() + PATIENCE;
        let fetches = used.iter().map(|used| async move {
            let fetched = tokio::time::timeout_at(until, fetch(fetcher, store, used, is_object)).await;
            fetched.unwrap_or_else(|_late| Err(format!("not fetched within {} s", PATIENCE.as_secs())))
        });
        self.runtime().block_on(stream::iter(fetches).buffered(FETCHES).collect())
    }

    fn unmended(&self) -> Vec<UnmendedMount> {
        let mounts = self.status().into_iter().filter_map(|mount| {
            let problem = mount.damage?;
            Some(UnmendedMount { mountpoint: mount.mountpoint, image: mount.image, problem })
        });
        mounts.collect()
    }
}

fn note(problems: &mut BTreeMap<Digest, String>, image: &Image, problem: &str) {
    problems.entry(image.record.manifest).or_insert_with(|| {
        format!("files that were open when they were found damaged cannot be fetched again: {problem}")
    });
}

/// Fetches an object, and writes it into the file that was damaged as well.
async fn fetch(
    fetcher: &Fetcher,
    store: &Store,
    used: &Used,
    is_object: impl Fn(&Digest) -> bool,
) -> std::result::Result<(), String> {
    let Some(file) = store.mend(&used.damaged).map_err(|error| error.to_string())? else { return Ok(()) };
    // A file that cannot be read is no other object.
    if let Ok(digest) = file.digest()
        && is_object(&digest)
    {
        // Somebody renamed it. Whoever had it open before reads what he should, and would not any more.
        tracing::warn!(object = %used.damaged.object, %digest, "a file of the store was in the place of another one");
        return file.leave().map_err(|error| error.to_string());
    }
    let mut at = 0;
    while at < used.size {
        let bytes = fetcher.read(&used.damaged.object, at, (used.size - at).min(PIECE)).await;
        let bytes = bytes.map_err(|error| error.to_string())?.into_bytes();
        if bytes.is_empty() {
            return Err("it ends too soon".to_owned());
        }
        file.write_at(&bytes, at).map_err(|error| error.to_string())?;
        at += bytes.len() as u64;
    }
    file.finish(used.size).map_err(|error| error.to_string())
}
