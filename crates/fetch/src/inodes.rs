//! Tracks what the kernel may have in its page cache of objects that are not local files.
//!
//! In mode `native` all images share one inode of an object, and the kernel requests its size and each page once. An image that is
//! mounted later could be shown pages, or an end of file, that an earlier image's list confirmed and its own does not. Later reads
//! cannot correct that. Therefore [`HeldInodes`](crate::held_inodes::HeldInodes) records every inode that the kernel holds, with
//! the size that it was given and the list, if not known to be true, that its pages came from. An image whose list contradicts a
//! held inode is not mounted on shared inodes ([`crate::ImageHandle::contested_inode`]): mode `fuse`, where each mount has its own
//! inodes, serves it meanwhile. The kernel releases an inode when it is no longer used.
//!
//! Why this is complete: an image is registered first and checks the inodes afterwards. Pages that are served after its registration are right
//! for it (`dispute.rs`); pages that were served before were recorded before.

use std::sync::Arc;

use tarpon_layer::ObjectId;

use crate::host::FetchHost;
use crate::ids::ListId;
use crate::image::{Claims, Image};

impl FetchHost {
    /// Records that the kernel is about to hold an inode of the object. Returns the size, if all images agree on it.
    pub(crate) fn hold_inode(self: &Arc<Self>, id: &ObjectId) -> Option<u64> {
        loop {
            let generation = self.images.generation();
            let (size, list) = self.size_and_list(id)?;
            self.inodes.hold(*id, size, list);
            if self.images.generation() == generation {
                return Some(size);
            }
            // An image may have checked the inodes in between: the recorded list may no longer be the agreed one.
            self.inodes.release(id);
        }
    }

    /// Records that the kernel released an inode.
    pub(crate) fn release_inode(&self, id: &ObjectId) {
        self.inodes.release(id);
    }

    /// The object's size, and the list that its chunks are served by, if that is not known to be true.
    fn size_and_list(self: &Arc<Self>, id: &ObjectId) -> Option<(u64, Option<ListId>)> {
        match self.images.claims(id) {
            Claims::Agreed(claimants) => {
                let (image, entry) = claimants.first()?;
                if image.is_own_proof(id, entry) {
                    return Some((entry.size, None));
                }
                let list = image.list_id(entry);
                let is_true = self.images.verdict(id, &list) == Some(true);
                Some((entry.size, (!is_true).then_some(list)))
            }
            Claims::Disputed(claimants) => {
                if let Some(local) = self.complete(id) {
                    return Some((local.size, None));
                }
                let size = claimants.first()?.1.size;
                if claimants.iter().all(|(_, entry)| entry.size == size) {
                    return Some((size, None));
                }
                // A lookup cannot wait. A later lookup finds the dispute settled.
                let _remembered = self.begin_resolving(id, claimants);
                None
            }
            Claims::Distrusted((_, entry)) => Some((self.complete(id).map_or(entry.size, |local| local.size), None)),
            Claims::Refuted | Claims::Unknown => self.checked_size(id).map(|size| (size, None)),
        }
    }

    /// As [`crate::held_inodes::HeldInodes::contested`].
    pub(crate) fn contested_inode(&self, image: &Image) -> Option<ObjectId> {
        self.inodes.contested(image)
    }
}
