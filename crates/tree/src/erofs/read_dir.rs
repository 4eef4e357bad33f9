//! [`ReadDir`]: iterates over the names of a directory, from any position.
//!
//! A cookie is the offset of an entry in the directory's data, as in the kernel: it is valid as long as the image exists, across
//! processes.

use super::directory::{BLOCK_BYTES, DirectoryData, ENTRY_BYTES};
use super::error::ImageError;
use super::format::{BLOCK, Nid};
use crate::Kind;

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name. Includes `.` and `..`.
    pub name: &'a [u8],
    /// Its inode.
    pub nid: Nid,
    /// The kind of the inode.
    pub kind: Kind,
    /// The cookie of the next entry.
    pub next: u64,
}

/// Iterates over a directory. Ends after the first error.
#[derive(Debug, Clone)]
pub struct ReadDir<'a> {
    data: DirectoryData<'a>,
    block: usize,
    index: usize,
}

impl<'a> ReadDir<'a> {
    pub(super) fn new(data: DirectoryData<'a>, cookie: u64) -> Self {
        let block = usize::try_from(cookie / BLOCK).unwrap_or(usize::MAX);
        let offset = usize::try_from(cookie % BLOCK).expect("below the size of a block");
        Self { data, block, index: offset.div_ceil(ENTRY_BYTES) }
    }

    fn read(&mut self) -> Result<Option<DirEntry<'a>>, ImageError> {
        while self.block < self.data.blocks() {
            let block = self.data.block(self.block)?;
            if self.index < block.count() {
                let (name, nid, kind) = block.entry(self.index)?;
                self.index += 1;
                if self.index == block.count() {
                    (self.block, self.index) = (self.block + 1, 0);
                }
                let next = self.block as u64 * BLOCK + (self.index * ENTRY_BYTES) as u64;
                return Ok(Some(DirEntry { name, nid, kind, next }));
            }
            (self.block, self.index) = (self.block + 1, 0);
        }
        Ok(None)
    }
}

impl<'a> Iterator for ReadDir<'a> {
    type Item = Result<DirEntry<'a>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read();
        if read.is_err() {
            self.block = usize::MAX / BLOCK_BYTES;
        }
        read.transpose()
    }
}
