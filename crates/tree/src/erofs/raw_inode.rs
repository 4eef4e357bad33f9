//! The fixed part of an inode, compact or extended.

use super::format::{DataLayout, u16_at, u32_at, u64_at};

/// The fixed part of an inode, before its xattrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawInode {
    pub(super) layout: DataLayout,
    pub(super) xattr_count: u16,
    pub(super) mode: u16,
    pub(super) size: u64,
    /// Block address, device number or chunk format.
    pub(super) data: u32,
    pub(super) serial: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) links: u32,
    /// None for the time in the superblock.
    pub(super) mtime: Option<(i64, u32)>,
}

/// Bytes of an inode whose numbers are small and whose time is the superblock's.
pub(super) const COMPACT_BYTES: u64 = 32;
/// Bytes of any other inode.
pub(super) const EXTENDED_BYTES: u64 = 64;

impl RawInode {
    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        if self.compact().is_some() { COMPACT_BYTES } else { EXTENDED_BYTES }
    }

    /// Bytes on disk of an inode that was read.
    pub(super) fn encoded_bytes(&self) -> u64 {
        if self.mtime.is_none() { COMPACT_BYTES } else { EXTENDED_BYTES }
    }

    /// Link count, size, uid and gid in the form of a compact inode, if they fit.
    fn compact(&self) -> Option<(u16, u32, u16, u16)> {
        let links = u16::try_from(self.links).ok()?;
        let (uid, gid) = (u16::try_from(self.uid).ok()?, u16::try_from(self.gid).ok()?);
        let size = u32::try_from(self.size).ok()?;
        self.mtime.is_none().then_some((links, size, uid, gid))
    }

    /// Appends the bytes on disk. `default_mtime` is that of the superblock, for extended inodes that have none.
    pub(super) fn encode(&self, default_mtime: (i64, u32), out: &mut Vec<u8>) {
        let compact = self.compact();
        let format = self.layout.code() << 1 | u16::from(compact.is_none());
        for half in [format, self.xattr_count, self.mode] {
            out.extend(half.to_le_bytes());
        }
        if let Some((links, size, uid, gid)) = compact {
            out.extend(links.to_le_bytes());
            out.extend(size.to_le_bytes());
            out.extend([0; 4]);
            out.extend(self.data.to_le_bytes());
            out.extend(self.serial.to_le_bytes());
            out.extend(uid.to_le_bytes());
            out.extend(gid.to_le_bytes());
            out.extend([0; 4]);
        } else {
            let (seconds, nanoseconds) = self.mtime.unwrap_or(default_mtime);
            out.extend([0; 2]);
            out.extend(self.size.to_le_bytes());
            for word in [self.data, self.serial, self.uid, self.gid] {
                out.extend(word.to_le_bytes());
            }
            out.extend(seconds.to_le_bytes());
            out.extend(nanoseconds.to_le_bytes());
            out.extend(self.links.to_le_bytes());
            out.extend([0; 16]);
        }
    }

    /// Reads an inode at the start of `bytes`. None if there are too few bytes, or for a layout that is never written.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let compact: &[u8; 32] = bytes.first_chunk()?;
        let format = u16_at(compact, 0);
        let layout = DataLayout::from_code(format >> 1)?;
        let common = Self {
            layout,
            xattr_count: u16_at(compact, 2),
            mode: u16_at(compact, 4),
            size: u64::from(u32_at(compact, 8)),
            data: u32_at(compact, 16),
            serial: u32_at(compact, 20),
            uid: u32::from(u16_at(compact, 24)),
            gid: u32::from(u16_at(compact, 26)),
            links: u32::from(u16_at(compact, 6)),
            mtime: None,
        };
        if format & 1 == 0 {
            return Some(common);
        }
        let extended: &[u8; 64] = bytes.first_chunk()?;
        Some(Self {
            size: u64_at(extended, 8),
            uid: u32_at(extended, 24),
            gid: u32_at(extended, 28),
            links: u32_at(extended, 44),
            mtime: Some((u64_at(extended, 32).cast_signed(), u32_at(extended, 40))),
            ..common
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: RawInode = RawInode {
        layout: DataLayout::Chunked,
        xattr_count: 20,
        mode: 0o104_755,
        size: u32::MAX as u64,
        data: 31,
        serial: 7,
        uid: 65535,
        gid: 65535,
        links: 65535,
        mtime: None,
    };

    #[test]
    fn whatever_is_encoded_is_decoded_in_the_size_it_needs() {
        let large = [
            RawInode { size: 1 << 32, ..SMALL },
            RawInode { uid: 65536, ..SMALL },
            RawInode { gid: 65536, ..SMALL },
            RawInode { links: 65536, ..SMALL },
            RawInode { mtime: Some((-1, 999_999_999)), ..SMALL },
        ];
        for (inode, bytes) in [(SMALL, COMPACT_BYTES)].into_iter().chain(large.map(|inode| (inode, EXTENDED_BYTES))) {
            let mut out = Vec::new();
            inode.encode((5, 6), &mut out);
            assert_eq!((out.len() as u64, inode.bytes()), (bytes, bytes));
            let mtime = inode.mtime.or((bytes == EXTENDED_BYTES).then_some((5, 6)));
            assert_eq!(RawInode::decode(&out), Some(RawInode { mtime, ..inode }));
            assert_eq!(RawInode::decode(&out[1..]), None);
        }
    }
}
