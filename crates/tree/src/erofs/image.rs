//! [`Image`]: an EROFS metadata image, read in place.
//!
//! Invariant: whatever the bytes are, nothing here panics, loops without end or reads out of bounds. Numbers from the image are
//! checked before use. Looking up a name or an inode allocates nothing.

use tarpon_layer::ObjectId;

use super::directory::{BLOCK_BYTES, DirectoryData};
use super::error::ImageError;
use super::format::{BLOCK, DataLayout, Nid, SLOT, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, Version};
use super::inode::Inode;
use super::read_dir::ReadDir;
use super::read_xattr::{Prefix, Xattrs};
use super::{prefixes, read_xattr, write_xattr};
use crate::Kind;
use tarpon_oci::limits;

/// An EROFS metadata image in memory or mapped.
#[derive(Debug)]
pub struct Image<B> {
    bytes: B,
    superblock: Superblock,
    prefixes: Vec<Prefix>,
}

impl<B: AsRef<[u8]>> Image<B> {
    /// Reads the superblock. Nothing else is read, so this costs the same for every size of image.
    pub fn open(bytes: B) -> Result<Self, ImageError> {
        let image = Self::open_any(bytes)?;
        if image.is_outdated() { Err(ImageError::Outdated) } else { Ok(image) }
    }

    /// As [`Image::open`], for every version of the writer.
    pub(super) fn open_any(bytes: B) -> Result<Self, ImageError> {
        let all = bytes.as_ref();
        let start = usize::try_from(SUPERBLOCK_OFFSET).expect("1024 is a usize");
        let raw = all.get(start..start + SUPERBLOCK_BYTES).and_then(|raw| raw.first_chunk());
        let superblock = raw.and_then(Superblock::decode).ok_or(ImageError::NotAnImage)?;
        if (all.len() as u64) < u64::from(superblock.blocks) * BLOCK || all.len() < BLOCK_BYTES {
            return Err(ImageError::Truncated);
        }
        let prefixes = read_xattr::prefix_table(all, &superblock)?;
        Ok(Self { bytes, superblock, prefixes })
    }

    /// Whether [`super::write()`] would now write it differently.
    pub(super) fn is_outdated(&self) -> bool {
        self.superblock.version != Version::Current
    }

    /// The root directory.
    pub fn root(&self) -> Nid {
        Nid(u64::from(self.superblock.root))
    }

    /// Number of inodes, as the superblock claims it.
    pub fn inode_count(&self) -> u64 {
        self.superblock.inodes
    }

    /// Whether [`Image::xattrs`] may return anything for any inode.
    pub fn has_xattrs(&self) -> bool {
        !self.superblock.no_xattrs
    }

    /// The bytes of the image.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The attributes of an inode.
    pub fn inode(&self, nid: Nid) -> Result<Inode, ImageError> {
        let start = nid.0.checked_mul(SLOT).filter(|start| *start < self.as_bytes().len() as u64);
        let start = start.and_then(|start| usize::try_from(start).ok()).ok_or(ImageError::Corrupt("inode number"))?;
        Inode::decode(nid, &self.as_bytes()[start..], &self.superblock)
    }

    /// The inode and kind of a name in a directory. None if it does not exist. `.` and `..` are ordinary names.
    pub fn lookup(&self, directory: Nid, name: &[u8]) -> Result<Option<(Nid, Kind)>, ImageError> {
        let data = self.directory(directory)?;
        // The last block whose first name is not beyond the requested one.
        let (mut low, mut high) = (0, data.blocks());
        while low < high {
            let middle = low + (high - low) / 2;
            if data.block(middle)?.entry(0)?.0 <= name {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(block) = low.checked_sub(1) else { return Ok(None) };
        let block = data.block(block)?;
        let (mut low, mut high) = (0, block.count());
        while low < high {
            let middle = low + (high - low) / 2;
            let (found, nid, kind) = block.entry(middle)?;
            match found.cmp(name) {
                std::cmp::Ordering::Equal => return Ok(Some((nid, kind))),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// The inode at a path from the root, without following links. None if it does not exist.
    pub fn resolve(&self, path: &[u8]) -> Result<Option<Nid>, ImageError> {
        let mut at = self.root();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            match self.lookup(at, name) {
                Ok(Some((nid, _))) => at = nid,
                Ok(None) | Err(ImageError::NotDirectory) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(at))
    }

    /// The names of a directory from `cookie` on, sorted, with `.` and `..`. Cookie 0 is the beginning. Each entry carries the
    /// cookie of the next one. Any other number selects some later part of the directory or its end.
    pub fn read_dir(&self, directory: Nid, cookie: u64) -> Result<ReadDir<'_>, ImageError> {
        Ok(ReadDir::new(self.directory(directory)?, cookie))
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, nid: Nid) -> Result<&[u8], ImageError> {
        let inode = self.inode(nid)?;
        if inode.kind != Kind::Symlink {
            return Err(ImageError::NotSymlink);
        }
        let corrupt = ImageError::Corrupt("symbolic link");
        let in_range = (1..=limits::SYMLINK_BYTES as u64).contains(&inode.size);
        match inode.layout {
            DataLayout::Plain if in_range => self.slice(u64::from(inode.data_block) * BLOCK, inode.size),
            DataLayout::Inline if in_range => self.slice(inode.tail_start(), inode.size),
            _ => Err(corrupt),
        }
    }

    /// The xattrs that the image's layers set. Those that overlayfs reads are hidden.
    pub fn xattrs(&self, nid: Nid) -> Result<Xattrs<'_>, ImageError> {
        Ok(self.all_xattrs(nid)?.without_hidden())
    }

    /// The content of a regular file. None if it is empty, or something else.
    pub fn object(&self, nid: Nid) -> Result<Option<ObjectId>, ImageError> {
        for xattr in self.all_xattrs(nid)? {
            let xattr = xattr?;
            if xattr.is(prefixes::REDIRECT) {
                let object = write_xattr::object_of_redirect(xattr.value);
                return object.map(Some).ok_or(ImageError::Corrupt("redirect"));
            }
        }
        Ok(None)
    }

    /// Whether this directory hides the content of lower layers.
    pub fn is_opaque(&self, nid: Nid) -> Result<bool, ImageError> {
        for xattr in self.all_xattrs(nid)? {
            if xattr?.is(prefixes::OPAQUE) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn all_xattrs(&self, nid: Nid) -> Result<Xattrs<'_>, ImageError> {
        let inode = self.inode(nid)?;
        let inline = self.slice(inode.xattr_start, inode.xattr_bytes)?;
        let shared_start = u64::from(self.superblock.xattr_block) * BLOCK;
        Xattrs::new(self.as_bytes(), &self.prefixes, inline, shared_start)
    }

    fn directory(&self, nid: Nid) -> Result<DirectoryData<'_>, ImageError> {
        let inode = self.inode(nid)?;
        if inode.kind != Kind::Directory {
            return Err(ImageError::NotDirectory);
        }
        let tail = if inode.layout == DataLayout::Inline { inode.size % BLOCK } else { 0 };
        let in_blocks = match inode.layout {
            DataLayout::Plain | DataLayout::Inline => inode.size - tail,
            DataLayout::Chunked => return Err(ImageError::Corrupt("directory")),
        };
        let blocks = if in_blocks == 0 { &[] } else { self.slice(u64::from(inode.data_block) * BLOCK, in_blocks)? };
        let may_lack_nul = self.superblock.version == Version::Unterminated;
        Ok(DirectoryData { blocks, tail: self.slice(inode.tail_start(), tail)?, may_lack_nul })
    }

    fn slice(&self, start: u64, length: u64) -> Result<&[u8], ImageError> {
        let range = || {
            let end = usize::try_from(start.checked_add(length)?).ok()?;
            self.as_bytes().get(usize::try_from(start).ok()?..end)
        };
        range().ok_or(ImageError::Corrupt("an address leads out of the image"))
    }
}
