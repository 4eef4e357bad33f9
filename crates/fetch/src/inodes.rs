//! What the kernel may have in its page cache of objects that are not local files.
//!
//! In mode `native` all images share one inode of an object, and the kernel asks for its size and for each page once. So an image
//! that is mounted later may be shown pages, or an end of file, that an earlier image's list vouched for and its own does not, and
//! nothing that happens here on later reads would change that. Therefore every inode that the kernel holds is noted
//! with the size that it was told and with the list, not known to be true, that its pages came from; and an image that says otherwise
//! of such an object is not mounted on shared inodes ([`crate::ImageHandle::contested_inode`]): mode `fuse`, where each mount
//! has inodes of its own, serves it meanwhile. The kernel lets go of an inode when nobody uses it any more.
//!
//! Why nothing slips through: an image is registered first and looks at the inodes then. Pages that are handed out after its
//! registration are right for it (`dispute.rs`); what was handed out before was noted before.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tarpon_layer::ObjectId;

use crate::host::Host;
use crate::image::{Claims, Image, ListId};

/// The inodes that the kernel holds; bounded by the kernel's own memory for them.
#[derive(Default)]
pub(crate) struct Inodes {
    held: Mutex<HashMap<ObjectId, Inode>>,
}

struct Inode {
    references: u64,
    size: u64,
    fed: Fed,
}

/// Where pages of an inode come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fed {
    /// From what is known to be the object.
    Truth,
    /// Also from a list that may lie.
    List(ListId),
    /// From several of them.
    Lists,
}

impl Fed {
    fn and(self, list: ListId) -> Self {
        match self {
            Self::Truth => Self::List(list),
            Self::List(known) if known == list => self,
            Self::List(_) | Self::Lists => Self::Lists,
        }
    }
}

impl Inodes {
    /// Pages that this list vouches for are about to be handed out.
    pub(crate) fn feed(&self, object: &ObjectId, list: ListId) {
        if let Some(inode) = self.held.lock().get_mut(object) {
            inode.fed = inode.fed.and(list);
        }
    }

    /// The list turned out to be true.
    pub(crate) fn confirm(&self, object: &ObjectId, list: ListId) {
        if let Some(inode) = self.held.lock().get_mut(object)
            && inode.fed == Fed::List(list)
        {
            inode.fed = Fed::Truth;
        }
    }

    fn hold(&self, object: ObjectId, size: u64, list: Option<ListId>) {
        let mut held = self.held.lock();
        let inode = held.entry(object).or_insert(Inode { references: 0, size, fed: Fed::Truth });
        inode.references += 1;
        if let Some(list) = list {
            inode.fed = inode.fed.and(list);
        }
        if inode.size != size {
            // Two connections were told different things.
            inode.fed = Fed::Lists;
        }
    }

    fn release(&self, object: &ObjectId) {
        let mut held = self.held.lock();
        if let Some(inode) = held.get_mut(object) {
            inode.references -= 1;
            if inode.references == 0 {
                held.remove(object);
            }
        }
    }

    /// An object of the image whose inode may show what the image does not vouch for.
    fn contested(&self, image: &Image) -> Option<ObjectId> {
        let held = self.held.lock();
        let contradicts = |(id, inode): &(&ObjectId, &Inode)| {
            let Some(entry) = image.table.find(id) else { return false };
            entry.size != inode.size
                || match inode.fed {
                    Fed::Truth => false,
                    Fed::List(list) => image.list_id(&entry) != list,
                    Fed::Lists => true,
                }
        };
        held.iter().find(contradicts).map(|(id, _)| *id)
    }
}

impl Host {
    /// The kernel is about to hold an inode of the object: its size, if all images agree on that.
    pub(crate) fn hold_inode(self: &Arc<Self>, id: &ObjectId) -> Option<u64> {
        loop {
            let generation = self.images.generation();
            let (size, list) = self.size_and_list(id)?;
            self.inodes.hold(*id, size, list);
            if self.images.generation() == generation {
                return Some(size);
            }
            // Somebody may have looked at the inodes just before: what was noted may no longer be what is agreed on.
            self.inodes.release(id);
        }
    }

    /// The kernel has let go of an inode.
    pub(crate) fn release_inode(&self, id: &ObjectId) {
        self.inodes.release(id);
    }

    /// The object's size, and the list that its chunks are handed out by if that is not known to be true.
    fn size_and_list(self: &Arc<Self>, id: &ObjectId) -> Option<(u64, Option<ListId>)> {
        match self.images.claims(id) {
            Claims::Agreed(claimants) => {
                let (image, entry) = claimants.first()?;
                if image.is_own_proof(id, entry) {
                    return Some((entry.size, None));
                }
                let list = image.list_id(entry);
                let is_true = self.images.judgement(id, &list) == Some(true);
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
                // A lookup cannot wait. Whoever tries again later finds the dispute settled.
                let _remembered = self.begin_resolving(id, claimants);
                None
            }
            Claims::Distrusted((_, entry)) => Some((self.complete(id).map_or(entry.size, |local| local.size), None)),
            Claims::Refuted | Claims::Unknown => self.checked_size(id).map(|size| (size, None)),
        }
    }

    /// As [`Inodes::contested`].
    pub(crate) fn contested_inode(&self, image: &Image) -> Option<ObjectId> {
        self.inodes.contested(image)
    }
}
