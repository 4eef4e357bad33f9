//! [`HeldInodes`]: the inodes of objects that the kernel holds, and the lists that their pages came from.

use std::collections::HashMap;

use parking_lot::Mutex;
use tarpon_layer::ObjectId;

use crate::ids::ListId;
use crate::image::Image;

/// The inodes that the kernel holds, bounded by the kernel's own memory for them.
#[derive(Default)]
pub(crate) struct HeldInodes {
    held: Mutex<HashMap<ObjectId, HeldInode>>,
}

struct HeldInode {
    references: u64,
    size: u64,
    fed: PageSource,
}

/// The origin of the pages of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageSource {
    /// From content that was hashed as a whole.
    Truth,
    /// Also from a list that may be false.
    List(ListId),
    /// From several such lists.
    Lists,
}

impl PageSource {
    fn and(self, list: ListId) -> Self {
        match self {
            Self::Truth => Self::List(list),
            Self::List(known) if known == list => self,
            Self::List(_) | Self::Lists => Self::Lists,
        }
    }
}

impl HeldInodes {
    /// Pages that were checked against this list are about to be served.
    pub(crate) fn feed(&self, object: &ObjectId, list: ListId) {
        if let Some(inode) = self.held.lock().get_mut(object) {
            inode.fed = inode.fed.and(list);
        }
    }

    /// The list was found to be true.
    pub(crate) fn confirm(&self, object: &ObjectId, list: ListId) {
        if let Some(inode) = self.held.lock().get_mut(object)
            && inode.fed == PageSource::List(list)
        {
            inode.fed = PageSource::Truth;
        }
    }

    pub(crate) fn hold(&self, object: ObjectId, size: u64, list: Option<ListId>) {
        let mut held = self.held.lock();
        let inode = held.entry(object).or_insert(HeldInode { references: 0, size, fed: PageSource::Truth });
        inode.references += 1;
        if let Some(list) = list {
            inode.fed = inode.fed.and(list);
        }
        if inode.size != size {
            // Two connections were given different sizes.
            inode.fed = PageSource::Lists;
        }
    }

    pub(crate) fn release(&self, object: &ObjectId) {
        let mut held = self.held.lock();
        if let Some(inode) = held.get_mut(object) {
            inode.references -= 1;
            if inode.references == 0 {
                held.remove(object);
            }
        }
    }

    /// An object of the image whose inode may show a size or pages that the image's list does not vouch for.
    pub(crate) fn contested(&self, image: &Image) -> Option<ObjectId> {
        let held = self.held.lock();
        let contradicts = |(id, inode): &(&ObjectId, &HeldInode)| {
            let Some(entry) = image.table.find(id) else { return false };
            entry.size != inode.size
                || match inode.fed {
                    PageSource::Truth => false,
                    PageSource::List(list) => image.list_id(&entry) != list,
                    PageSource::Lists => true,
                }
        };
        held.iter().find(contradicts).map(|(id, _)| *id)
    }
}
