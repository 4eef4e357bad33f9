//! [`DiffFs`]: one layer of an image, as presented to overlayfs.
//!
//! There are two forms, which are equivalent in a stack of all layers of an image:
//!
//! - *alone*: the changes of the layer relative to those below it (`tarpon_tree::delta`).
//! - *merged*: the merged tree of the layer and all below it. Each directory in its root is opaque, so overlayfs searches lower
//!   layers only for names in the root. A name that lower layers have in their roots and the tree lacks is a whiteout. A path
//!   lookup in a deep stack thus finds everything in this one layer.
//!
//! Why they are equivalent: an opaque directory hides everything below it, a file hides what is below it, and the root,
//! which overlayfs always merges, shows exactly the names of the tree.
//!
//! Node ids are positions in the EROFS image and in the sorted list of whiteouts. So two processes, or two versions of this
//! program, use the same ids if both inputs are the same, which [`DiffFs::digest`] identifies.

use std::collections::HashSet;

use tarpon_fs::{Attr, Content, DirEntry, Errno, ImageFs, Kind, NodeId, Operations, Take, Totals};
use tarpon_layer::Timestamp;
use tarpon_oci::{Digest, Hasher};
use tarpon_tree::erofs::ImageError;

/// The xattr that marks an opaque directory for overlayfs, on the host and in a user namespace (mount option `userxattr`), where the kernel
/// shows no `trusted` xattrs.
const OPAQUE: [&[u8]; 2] = [b"trusted.overlay.opaque", b"user.overlay.opaque"];

/// First node id of whiteouts that are not in the image. Node ids of inodes are lower: they count 32 bytes of the image.
const WHITEOUTS: u64 = 1 << 33;
/// Number of bits of the largest node id.
pub(crate) const NODE_BITS: u32 = 34;
/// First position, in the root's listing, of whiteouts that are not in the image; far behind the positions of the image.
const WHITEOUT_POSITIONS: u64 = 1 << 62;

/// One layer. `B` holds the bytes of its tree.
pub(crate) struct DiffFs<B> {
    files: ImageFs<B>,
    digest: Digest,
    /// `None` in the form *alone*, whose image contains the opaque marks.
    merged: Option<Merged>,
    /// One of [`OPAQUE`].
    mark: &'static [u8],
}

struct Merged {
    opaque: HashSet<NodeId>,
    /// Sorted.
    whiteouts: Vec<Box<[u8]>>,
}

impl<B: AsRef<[u8]> + Send + Sync + 'static> DiffFs<B> {
    /// Creates the layer from the difference in `image`.
    pub(crate) fn alone(image: B) -> Result<Self, ImageError> {
        let digest = Digest::of(image.as_ref());
        let files = ImageFs::new(image)?;
        if files.size() / 32 >= WHITEOUTS {
            return Err(ImageError::Corrupt("it is too large"));
        }
        let mark = OPAQUE[usize::from(tarpon_store::in_user_namespace())];
        Ok(Self { files, digest, merged: None, mark })
    }

    /// Creates the layer from the merged tree in `image`, where lower layers have the names `below` in their roots.
    pub(crate) fn merged(image: B, below: impl IntoIterator<Item = Box<[u8]>>) -> Result<Self, ImageError> {
        let alone = Self::alone(image)?;
        let mut opaque = HashSet::new();
        let mut present = HashSet::new();
        let corrupt = |_: Errno| ImageError::Corrupt("root directory");
        alone
            .files
            .read_dir(NodeId::ROOT, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    present.insert(Box::<[u8]>::from(entry.name));
                    opaque.extend((entry.kind == Kind::Directory).then_some(entry.node));
                }
                Take::More
            })
            .map_err(corrupt)?;
        let mut whiteouts: Vec<_> = below.into_iter().filter(|name| !present.contains(name)).collect();
        whiteouts.sort_unstable();
        whiteouts.dedup();
        let digest = merged_digest(&alone.digest, &whiteouts);
        Ok(Self { digest, merged: Some(Merged { opaque, whiteouts }), ..alone })
    }

    /// Identifies everything that this layer shows, node ids included.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    fn whiteouts(&self) -> &[Box<[u8]>] {
        self.merged.as_ref().map_or(&[], |merged| &merged.whiteouts)
    }

    fn is_opaque(&self, node: NodeId) -> Result<bool, Errno> {
        match &self.merged {
            Some(merged) => Ok(merged.opaque.contains(&node)),
            None => self.files.is_opaque(node),
        }
    }
}

fn merged_digest(tree: &Digest, whiteouts: &[Box<[u8]>]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.update(b"merged");
    hasher.update(tree.as_bytes());
    for name in whiteouts {
        hasher.update(name);
        // No name contains it.
        hasher.update(&[0]);
    }
    hasher.finish()
}

fn whiteout(index: u64) -> Attr {
    Attr {
        node: NodeId(WHITEOUTS + index),
        kind: Kind::CharDevice,
        mode: 0,
        links: 1,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: Timestamp::default(),
        device: (0, 0),
    }
}

/// Index of the added whiteout with this node id; `None` for a node of the image.
fn added(node: NodeId) -> Option<u64> {
    node.0.checked_sub(WHITEOUTS)
}

impl<B: AsRef<[u8]> + Send + Sync + 'static> Operations for DiffFs<B> {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        if added(parent).is_some() {
            return Err(Errno::NotADirectory);
        }
        match self.files.lookup(parent, name) {
            Err(Errno::NotFound) if parent == NodeId::ROOT => {
                let index = self.whiteouts().binary_search_by(|whiteout| (**whiteout).cmp(name));
                index.map(|index| whiteout(index as u64)).map_err(|_| Errno::NotFound)
            }
            found => found,
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attr, Errno> {
        match added(node) {
            Some(index) if index < self.whiteouts().len() as u64 => Ok(whiteout(index)),
            Some(_) => Err(Errno::Stale),
            None => self.files.attributes(node),
        }
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        if added(node).is_some() { Err(Errno::Invalid) } else { self.files.read_link(node) }
    }

    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno> {
        if added(node).is_some() {
            return Err(Errno::NotADirectory);
        }
        let mut is_full = false;
        if position < WHITEOUT_POSITIONS {
            self.files.read_dir(node, position, &mut |entry| {
                let taken = take(entry);
                is_full = taken == Take::Enough;
                taken
            })?;
        }
        if is_full || node != NodeId::ROOT {
            return Ok(());
        }
        let first = position.saturating_sub(WHITEOUT_POSITIONS);
        for (index, name) in (0_u64..).zip(self.whiteouts()).skip_while(|(index, _)| *index < first) {
            let (node, kind) = (NodeId(WHITEOUTS + index), Kind::CharDevice);
            if take(DirEntry { name, node, kind, next: WHITEOUT_POSITIONS + index + 1 }) == Take::Enough {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if added(node).is_some() {
            return Err(Errno::NoAttribute);
        }
        if name == self.mark {
            return if self.is_opaque(node)? { Ok(b"y".to_vec()) } else { Err(Errno::NoAttribute) };
        }
        self.files.xattr(node, name)
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        if added(node).is_some() {
            return Ok(Vec::new());
        }
        let mut names = self.files.xattr_names(node)?;
        if self.is_opaque(node)? {
            names.extend(self.mark);
            names.push(0);
        }
        Ok(names)
    }

    fn has_xattrs(&self) -> bool {
        true
    }

    fn content(&self, node: NodeId) -> Result<Content, Errno> {
        if added(node).is_some() { Err(Errno::Invalid) } else { self.files.content(node) }
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn names_may_appear(&self) -> bool {
        false
    }

    fn has_access_lists(&self) -> bool {
        // No layer format can express them.
        false
    }

    fn totals(&self) -> Totals {
        self.files.totals()
    }
}

#[cfg(test)]
mod tests;
