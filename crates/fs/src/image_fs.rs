//! [`ImageFs`]: one image's merged tree, read in place from the EROFS image in memory.
//!
//! There is no table of inodes. A node id is the image's own inode number, which both mount modes show and which every
//! process computes alike; only the root is [`NodeId::ROOT`] here, because FUSE requires it. (No inode of an image has
//! that number: its first kilobyte is empty.) So nothing is counted, forgotten or locked.

use tarpon_tree::erofs::{Image, ImageError, Inode, Nid, redirect_to};

use crate::{Attr, Content, DirEntry, Errno, Kind, NodeId, Operations, Take, Totals};

/// The xattrs by which overlayfs in a user namespace (mount option `userxattr`) recognises a file without data, and finds its data.
/// Images have none of that namespace.
const METACOPY: &[u8] = b"user.overlay.metacopy";
const REDIRECT: &[u8] = b"user.overlay.redirect";

/// The file system of one image. `B` holds its bytes.
pub struct ImageFs<B> {
    image: Image<B>,
    /// Whether files show [`METACOPY`] and [`REDIRECT`].
    redirects: bool,
}

impl<B: AsRef<[u8]>> ImageFs<B> {
    /// Opens the tree in `bytes`; reads only its header.
    pub fn new(bytes: B) -> Result<Self, ImageError> {
        Ok(Self { image: Image::open(bytes)?, redirects: false })
    }

    /// As [`ImageFs::new`], as the uppermost layer of an overlay in a user namespace: files lead to their objects in layers below.
    pub fn with_redirects(bytes: B) -> Result<Self, ImageError> {
        Ok(Self { redirects: true, ..Self::new(bytes)? })
    }

    /// The value of one of overlayfs' own xattrs.
    fn redirect(&self, nid: Nid, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        if !self.redirects || name != METACOPY && name != REDIRECT {
            return Ok(None);
        }
        let object = if self.image.inode(nid)?.kind == Kind::File { self.image.object(nid)? } else { None };
        Ok(object.map(|object| if name == REDIRECT { redirect_to(&object) } else { Vec::new() }))
    }

    fn node(&self, nid: Nid) -> NodeId {
        if nid == self.image.root() { NodeId::ROOT } else { NodeId(nid.0) }
    }

    fn nid(&self, node: NodeId) -> Nid {
        if node == NodeId::ROOT { self.image.root() } else { Nid(node.0) }
    }

    /// Whether this directory hides lower layers.
    pub fn is_opaque(&self, node: NodeId) -> Result<bool, Errno> {
        Ok(self.image.is_opaque(self.nid(node))?)
    }

    /// Size of the image in bytes.
    pub fn size(&self) -> u64 {
        self.image.as_bytes().len() as u64
    }

    /// Mean size of its regular files, each of which counts as often as it has names. `None` if it has no files, or more than `most`
    /// entries of directories: the walk through the tree ends there.
    pub fn mean_file_size(&self, most: u64) -> Option<u64> {
        if self.image.inode_count() > most {
            return None;
        }
        let (mut entries, mut files, mut bytes) = (0_u64, 0_u64, 0_u64);
        let mut pending = vec![self.image.root()];
        while let Some(directory) = pending.pop() {
            for entry in self.image.read_dir(directory, 0).ok()? {
                let entry = entry.ok()?;
                entries += 1;
                match entry.kind {
                    _ if entries > most => return None,
                    Kind::Directory if entry.name != b"." && entry.name != b".." => pending.push(entry.nid),
                    Kind::File => {
                        files += 1;
                        bytes = bytes.saturating_add(self.image.inode(entry.nid).ok()?.size);
                    }
                    _ => {}
                }
            }
        }
        bytes.checked_div(files)
    }

    fn attr(&self, inode: &Inode) -> Attr {
        Attr {
            node: self.node(inode.nid),
            kind: inode.kind,
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            size: inode.size,
            mtime: inode.mtime,
            device: (inode.device.major, inode.device.minor),
        }
    }
}

impl<B: AsRef<[u8]> + Send + Sync + 'static> Operations for ImageFs<B> {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        if name == b"." {
            return self.attributes(parent);
        }
        let (nid, _) = self.image.lookup(self.nid(parent), name)?.ok_or(Errno::NotFound)?;
        Ok(self.attr(&self.image.inode(nid)?))
    }

    fn finds_by_number(&self) -> bool {
        true
    }

    fn attributes(&self, node: NodeId) -> Result<Attr, Errno> {
        Ok(self.attr(&self.image.inode(self.nid(node))?))
    }

    fn read_link(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        Ok(self.image.read_link(self.nid(node))?.to_vec())
    }

    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno> {
        for entry in self.image.read_dir(self.nid(node), position)? {
            let entry = entry?;
            let listed = DirEntry { name: entry.name, node: self.node(entry.nid), kind: entry.kind, next: entry.next };
            if take(listed) == Take::Enough {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if let Some(value) = self.redirect(self.nid(node), name)? {
            return Ok(value);
        }
        for xattr in self.image.xattrs(self.nid(node))? {
            let xattr = xattr?;
            if xattr.is(name) {
                return Ok(xattr.value.to_vec());
            }
        }
        Err(Errno::NoAttribute)
    }

    fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let mut names = Vec::new();
        for xattr in self.image.xattrs(self.nid(node))? {
            names.extend(xattr?.name());
            names.push(0);
        }
        for name in [METACOPY, REDIRECT] {
            if self.redirect(self.nid(node), name)?.is_some() {
                names.extend([name, b"\0"].concat());
            }
        }
        Ok(names)
    }

    fn has_xattrs(&self) -> bool {
        self.redirects || self.image.has_xattrs()
    }

    fn content(&self, node: NodeId) -> Result<Content, Errno> {
        let inode = self.image.inode(self.nid(node))?;
        match inode.kind {
            Kind::File => Ok(Content { object: self.image.object(inode.nid)?, size: inode.size }),
            Kind::Directory => Err(Errno::IsADirectory),
            _ => Err(Errno::Invalid),
        }
    }

    fn forget(&self, _: NodeId, _: u64) {}

    fn names_may_appear(&self) -> bool {
        false
    }

    fn totals(&self) -> Totals {
        Totals { bytes: self.image.as_bytes().len() as u64, inodes: self.image.inode_count() }
    }
}
