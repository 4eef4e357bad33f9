//! The digests of objects whose names are not digests of their content.
//!
//! Such an object ([`crate::image::Image::names_content`]) is never in the store under its name. But once it was decoded from bytes
//! that matched, its digest is known, and a small object is kept under that like any other. A forgotten entry costs another fetch.
//! Entries do not outlive this process, because they could not be verified.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use tarpon_layer::ObjectId;
use tarpon_oci::Digest;

use crate::lru::Lru;

/// Maximum number of names: the files of a large image, in 10 MiB.
const NAMES: u64 = 1 << 16;

pub(crate) struct Contents {
    /// Most hosts have no such objects, and must not pay for them.
    is_used: AtomicBool,
    digests: Mutex<Lru<ObjectId, Digest>>,
}

impl Default for Contents {
    fn default() -> Self {
        Self { is_used: AtomicBool::new(false), digests: Mutex::new(Lru::new(NAMES)) }
    }
}

impl Contents {
    /// Records that the content of the object has this digest, and is in the store.
    pub(crate) fn learn(&self, object: ObjectId, digest: Digest) {
        self.digests.lock().insert(object, digest, 1);
        self.is_used.store(true, Relaxed);
    }

    /// The digest under which the store would keep the object.
    pub(crate) fn kept_as(&self, object: &ObjectId) -> Digest {
        let known = || self.digests.lock().get(object).copied();
        self.is_used.load(Relaxed).then(known).flatten().unwrap_or(*object)
    }
}
