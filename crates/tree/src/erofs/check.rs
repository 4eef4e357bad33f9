//! Checks the consistency of an image, like `fsck`: for images that were fetched or stored for long, and for tests.

use std::collections::HashMap;

use super::error::ImageError;
use super::format::{CHECKSUM_OFFSET, Nid, SUPERBLOCK_OFFSET, u32_at};
use super::image::Image;
use super::write::checksum;
use crate::Kind;

/// The counts of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names, the root's included.
    pub names: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes with an object.
    pub objects: u64,
}

/// The state of an inode during the walk.
#[derive(Default)]
struct Seen {
    claimed_links: u32,
    links: u32,
    is_directory: bool,
}

impl<B: AsRef<[u8]>> Image<B> {
    /// Walks the whole image and checks that it is one tree: names sorted, every directory in one place, link counts right, every
    /// file that is not empty with an object, everything readable. Time and memory are bounded by the size of the image, whatever
    /// its bytes are.
    pub fn check(&self) -> Result<Summary, ImageError> {
        let superblock = usize::try_from(SUPERBLOCK_OFFSET).expect("1024 is a usize");
        if u32_at(self.as_bytes(), superblock + CHECKSUM_OFFSET) != checksum(self.as_bytes()) {
            return Err(ImageError::Corrupt("superblock checksum"));
        }
        let mut walk = Walk { image: self, seen: HashMap::new(), waiting: Vec::new(), summary: Summary::default() };
        walk.name(self.root(), Kind::Directory, self.root())?;
        while let Some((directory, parent)) = walk.waiting.pop() {
            walk.directory(directory, parent)?;
        }
        walk.finish()
    }
}

struct Walk<'i, B> {
    image: &'i Image<B>,
    seen: HashMap<Nid, Seen>,
    /// Directories that were found and not read yet, each with its parent.
    waiting: Vec<(Nid, Nid)>,
    summary: Summary,
}

impl<B: AsRef<[u8]>> Walk<'_, B> {
    /// Records an inode under one of its names.
    fn name(&mut self, nid: Nid, kind: Kind, parent: Nid) -> Result<(), ImageError> {
        self.summary.names += 1;
        // A name takes at least twelve bytes: more of them means that directories share their data.
        if self.summary.names > self.image.as_bytes().len() as u64 / 12 {
            return Err(ImageError::Corrupt("directories overlap"));
        }
        if let Some(seen) = self.seen.get_mut(&nid) {
            seen.links += 1;
            let same = !seen.is_directory && self.image.inode(nid)?.kind == kind;
            return if same { Ok(()) } else { Err(ImageError::Corrupt("directory with two names")) };
        }
        let inode = self.image.inode(nid)?;
        if inode.kind != kind {
            return Err(ImageError::Corrupt("kind in a directory entry"));
        }
        let is_directory = kind == Kind::Directory;
        self.seen.insert(nid, Seen { claimed_links: inode.links, links: 1, is_directory });
        self.image.xattrs(nid)?.try_for_each(|xattr| xattr.map(drop))?;
        match kind {
            Kind::Directory => self.waiting.push((nid, parent)),
            Kind::Symlink => drop(self.image.read_link(nid)?),
            Kind::File if self.image.object(nid)?.is_some() != (inode.size > 0) => {
                return Err(ImageError::Corrupt("file without object, or object without file"));
            }
            Kind::File => self.summary.objects += u64::from(inode.size > 0),
            Kind::CharDevice | Kind::BlockDevice | Kind::Fifo => {}
        }
        Ok(())
    }

    fn directory(&mut self, directory: Nid, parent: Nid) -> Result<(), ImageError> {
        let mut previous: &[u8] = b"";
        let mut dots = 0;
        let mut subdirectories = 0;
        for entry in self.image.read_dir(directory, 0)? {
            let entry = entry?;
            if entry.name <= previous {
                return Err(ImageError::Corrupt("order of names"));
            }
            previous = entry.name;
            let leads_to = match entry.name {
                b"." => directory,
                b".." => parent,
                _ => {
                    subdirectories += u32::from(entry.kind == Kind::Directory);
                    self.name(entry.nid, entry.kind, directory)?;
                    continue;
                }
            };
            dots += 1;
            if entry.nid != leads_to || entry.kind != Kind::Directory {
                return Err(ImageError::Corrupt("dot entries"));
            }
        }
        let seen = self.seen.entry(directory).or_default();
        seen.links += 1 + subdirectories;
        if dots == 2 { Ok(()) } else { Err(ImageError::Corrupt("dot entries")) }
    }

    fn finish(mut self) -> Result<Summary, ImageError> {
        self.summary.inodes = self.seen.len() as u64;
        if self.summary.inodes != self.image.inode_count() {
            return Err(ImageError::Corrupt("number of inodes"));
        }
        let wrong = self.seen.values().any(|seen| seen.claimed_links != seen.links);
        if wrong { Err(ImageError::Corrupt("link count")) } else { Ok(self.summary) }
    }
}
