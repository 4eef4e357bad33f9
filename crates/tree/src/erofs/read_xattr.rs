//! [`Xattrs`]: the xattrs of an inode, read in place.

use super::error::ImageError;
use super::format::{Superblock, u16_at, u32_at};
use super::prefixes::{self, HIDDEN, LONG};
use super::write_xattr::{ENTRY_BYTES, HEADER_BYTES};

const CORRUPT: ImageError = ImageError::Corrupt("xattrs");

/// One of the image's long prefixes.
#[derive(Debug)]
pub(super) struct Prefix(Box<[u8]>);

/// Reads the table of long prefixes.
pub(super) fn prefix_table(image: &[u8], superblock: &Superblock) -> Result<Vec<Prefix>, ImageError> {
    let corrupt = ImageError::Corrupt("xattr prefixes");
    let mut at = u64::from(superblock.prefix_start) * 4;
    let mut table = Vec::new();
    for _ in 0..superblock.prefix_count & !LONG {
        let bytes = usize::try_from(at).ok().and_then(|at| image.get(at..)).ok_or(corrupt)?;
        let (length, rest) = bytes.split_first_chunk::<2>().ok_or(corrupt)?;
        let length = u16::from_le_bytes(*length);
        let (number, infix) = rest.get(..usize::from(length)).and_then(<[u8]>::split_first).ok_or(corrupt)?;
        let namespace = prefixes::namespace(*number).ok_or(corrupt)?;
        table.push(Prefix([namespace, infix].concat().into()));
        at = (at + 2 + u64::from(length)).next_multiple_of(4);
    }
    Ok(table)
}

/// One extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xattr<'a> {
    prefix: &'a [u8],
    rest: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Xattr<'a> {
    /// The whole name, in its two stored parts.
    pub(crate) fn name_parts(&self) -> [&'a [u8]; 2] {
        [self.prefix, self.rest]
    }

    /// The whole name.
    pub fn name(&self) -> Vec<u8> {
        self.name_parts().concat()
    }

    /// Whether this is its name.
    pub fn is(&self, name: &[u8]) -> bool {
        name.strip_prefix(self.prefix) == Some(self.rest)
    }

    fn is_hidden(&self) -> bool {
        let mut name = self.prefix.iter().chain(self.rest);
        HIDDEN.iter().all(|byte| name.next() == Some(byte))
    }
}

/// Iterates over the xattrs of an inode. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Xattrs<'a> {
    image: &'a [u8],
    prefixes: &'a [Prefix],
    shared_start: u64,
    shared: &'a [u8],
    inline: &'a [u8],
    show_hidden: bool,
}

impl<'a> Xattrs<'a> {
    /// `behind_inode` is the header with everything that belongs to it, or empty.
    pub(super) fn new(
        image: &'a [u8],
        prefixes: &'a [Prefix],
        behind_inode: &'a [u8],
        shared_start: u64,
    ) -> Result<Self, ImageError> {
        let (shared, inline): (&[u8], &[u8]) = match behind_inode.split_at_checked(HEADER_BYTES) {
            Some((header, rest)) => rest.split_at_checked(4 * usize::from(header[4])).ok_or(CORRUPT)?,
            None => (&[], &[]),
        };
        Ok(Self { image, prefixes, shared_start, shared, inline, show_hidden: true })
    }

    pub(super) fn without_hidden(self) -> Self {
        Self { show_hidden: false, ..self }
    }

    fn read(&mut self) -> Result<Option<Xattr<'a>>, ImageError> {
        if let Some((entry, rest)) = self.shared.split_first_chunk::<4>() {
            self.shared = rest;
            let at = self.shared_start + u64::from(u32_at(entry, 0)) * 4;
            let bytes = usize::try_from(at).ok().and_then(|at| self.image.get(at..)).ok_or(CORRUPT)?;
            return Ok(Some(self.entry(bytes)?.0));
        }
        if self.inline.is_empty() {
            return Ok(None);
        }
        let (xattr, length) = self.entry(self.inline)?;
        self.inline = self.inline.get(length.next_multiple_of(4)..).unwrap_or_default();
        Ok(Some(xattr))
    }

    /// The entry at the start of `bytes`, and its length without padding.
    fn entry(&self, bytes: &'a [u8]) -> Result<(Xattr<'a>, usize), ImageError> {
        let (header, rest) = bytes.split_at_checked(ENTRY_BYTES).ok_or(CORRUPT)?;
        let (rest_of_name, rest) = rest.split_at_checked(usize::from(header[0])).ok_or(CORRUPT)?;
        let value = rest.get(..usize::from(u16_at(header, 2))).ok_or(CORRUPT)?;
        let prefix = match header[1] {
            long if long & LONG != 0 => self.prefixes.get(usize::from(long & !LONG)).map(|prefix| &*prefix.0),
            short => prefixes::namespace(short),
        };
        let xattr = Xattr { prefix: prefix.ok_or(CORRUPT)?, rest: rest_of_name, value };
        Ok((xattr, ENTRY_BYTES + rest_of_name.len() + value.len()))
    }
}

impl<'a> Iterator for Xattrs<'a> {
    type Item = Result<Xattr<'a>, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let read = self.read();
            match &read {
                Ok(Some(xattr)) if !self.show_hidden && xattr.is_hidden() => continue,
                Ok(_) => {}
                Err(_) => (self.shared, self.inline) = (&[], &[]),
            }
            return read.transpose();
        }
    }
}
