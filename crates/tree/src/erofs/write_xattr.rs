//! The xattrs of inodes on disk: inline behind the inode, or once in an area that inodes share.
//!
//! Shared are the image's own xattrs that several inodes carry (labels, ACLs), where that saves room, and large ones, so that
//! inodes stay in one block. The redirects are never shared: the kernel reads them with the inode, and too few files have equal
//! content to pay for a second read.

use std::collections::HashMap;

use tarpon_layer::{ObjectId, Xattr};

use super::prefixes::{LongPrefixes, METACOPY, OPAQUE, REDIRECT};
use crate::tree::{Inode, Tree};

/// Bytes before the ids of the shared xattrs.
pub(super) const HEADER_BYTES: usize = 12;
/// Bytes of an entry before its name.
pub(super) const ENTRY_BYTES: usize = 4;
/// Larger entries are shared even if only one inode has them: 256 smaller ones fit behind an inode.
const LARGE: usize = 512;
/// The number of shared xattrs of an inode is stored in a byte.
const SHARED_MAX: usize = 255;

type NameAndValue<'a> = (&'a [u8], &'a [u8]);

fn key(xattr: &Xattr) -> NameAndValue<'_> {
    (&xattr.name, &xattr.value)
}

/// Encodes the xattrs of inodes.
pub(super) struct XattrWriter<'a> {
    /// Offset of an xattr in the shared area, in units of four bytes.
    shared: HashMap<NameAndValue<'a>, u32>,
    area: Vec<u8>,
    prefixes: LongPrefixes,
}

impl<'a> XattrWriter<'a> {
    /// Fills the shared area for `tree`, in the order of its inodes.
    pub(super) fn new(tree: &Tree<'a>, prefixes: LongPrefixes) -> Self {
        let mut writer = Self { shared: HashMap::new(), area: Vec::new(), prefixes };
        let all = || tree.inodes().flat_map(Inode::xattrs);
        let mut carriers: HashMap<NameAndValue<'a>, usize> = HashMap::new();
        all().for_each(|xattr| *carriers.entry(key(xattr)).or_default() += 1);
        for xattr in all() {
            let bytes = writer.entry(&xattr.name, &xattr.value).len();
            let pays = bytes > LARGE || carriers[&key(xattr)] > 1 && bytes > 8;
            if pays && !writer.shared.contains_key(&key(xattr)) {
                let place = u32::try_from(writer.area.len() / 4).expect("the xattrs of an image are limited");
                writer.shared.insert(key(xattr), place);
                let entry = writer.entry(&xattr.name, &xattr.value);
                writer.area.extend(entry);
            }
        }
        writer
    }

    /// The shared area.
    pub(super) fn area(&self) -> &[u8] {
        &self.area
    }

    /// The bytes behind an inode. Empty for an inode without xattrs. A multiple of four bytes.
    pub(super) fn inline(&self, inode: &Inode<'a>) -> Vec<u8> {
        let shared: Vec<u32> =
            inode.xattrs().filter_map(|xattr| self.shared.get(&key(xattr))).copied().take(SHARED_MAX).collect();
        let mut left_to_share = SHARED_MAX;
        let mut out = vec![0; HEADER_BYTES];
        out[4] = u8::try_from(shared.len()).expect("no more than SHARED_MAX were taken");
        out.extend(shared.iter().flat_map(|place| place.to_le_bytes()));
        if let Some(object) = inode.object() {
            out.extend(self.entry(METACOPY, b""));
            out.extend(self.entry(REDIRECT, &redirect_to(&object.id)));
        }
        if inode.is_opaque() {
            out.extend(self.entry(OPAQUE, b"y"));
        }
        for xattr in inode.xattrs() {
            if self.shared.contains_key(&key(xattr)) && left_to_share > 0 {
                left_to_share -= 1;
            } else {
                out.extend(self.entry(&xattr.name, &xattr.value));
            }
        }
        if out.len() == HEADER_BYTES {
            out.clear();
        }
        out
    }

    /// An xattr in its disk format, padded to four bytes.
    fn entry(&self, name: &[u8], value: &[u8]) -> Vec<u8> {
        let (number, rest) = self.prefixes.split(name).expect("the tree keeps known namespaces only");
        let name_length = u8::try_from(rest.len()).expect("the tree keeps names of at most 255 bytes");
        let value_length = u16::try_from(value.len()).expect("the tree keeps values below 64 KiB");
        let mut entry = vec![name_length, number];
        entry.extend(value_length.to_le_bytes());
        entry.extend(rest);
        entry.extend(value);
        entry.resize(entry.len().next_multiple_of(4), 0);
        entry
    }
}

/// The path of an object in a data-only layer of overlayfs: `/ab/cdef…`.
pub fn redirect_to(object: &ObjectId) -> Vec<u8> {
    let hex = object.hex();
    format!("/{}/{}", &hex[..2], &hex[2..]).into_bytes()
}

/// The object of a redirect, if it is one of [`redirect_to`].
pub(super) fn object_of_redirect(redirect: &[u8]) -> Option<ObjectId> {
    let redirect: &[u8; 66] = redirect.try_into().ok()?;
    let mut hex = [0; 64];
    hex[..2].copy_from_slice(&redirect[1..3]);
    hex[2..].copy_from_slice(&redirect[4..]);
    let slashes = redirect[0] == b'/' && redirect[3] == b'/';
    std::str::from_utf8(&hex).ok().filter(|_| slashes).and_then(|hex| ObjectId::from_hex(hex).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_back_to_its_object() {
        let object = ObjectId::of(b"content");
        let redirect = redirect_to(&object);
        assert_eq!(object_of_redirect(&redirect), Some(object));
        for wrong in [&redirect[1..], b"", &[b"/", &redirect[..65]].concat(), &redirect.to_ascii_uppercase()] {
            assert_eq!(object_of_redirect(wrong), None);
        }
    }
}
