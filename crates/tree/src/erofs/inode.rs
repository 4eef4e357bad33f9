//! [`Inode`]: the attributes of one inode of an image.

use tarpon_layer::{Device, Timestamp};

use super::error::ImageError;
use super::format::{DataLayout, Nid, SLOT, Superblock, kind_of_mode};
use super::plan::decode_device;
use super::raw_inode::RawInode;
use super::write_xattr::HEADER_BYTES;
use crate::Kind;

/// The `stat` attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub nid: Nid,
    /// Its kind.
    pub kind: Kind,
    /// `mode & 0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; for directories two and the number of subdirectories.
    pub links: u32,
    /// Size of a file or of a link's target in bytes. For a directory, the size of its data here.
    pub size: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Numbers of a device; 0:0 for everything else.
    pub device: Device,
    pub(super) layout: DataLayout,
    pub(super) data_block: u32,
    pub(super) xattr_start: u64,
    pub(super) xattr_bytes: u64,
}

impl Inode {
    /// Reads the inode `nid` from the bytes at its place.
    pub(super) fn decode(nid: Nid, bytes: &[u8], superblock: &Superblock) -> Result<Self, ImageError> {
        let corrupt = ImageError::Corrupt("inode");
        let raw = RawInode::decode(bytes).ok_or(corrupt)?;
        let kind = kind_of_mode(raw.mode).ok_or(corrupt)?;
        let (seconds, nanoseconds) = raw.mtime.unwrap_or((superblock.seconds.cast_signed(), superblock.nanoseconds));
        if nanoseconds >= 1_000_000_000 {
            return Err(corrupt);
        }
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        let xattr_bytes = match raw.xattr_count {
            0 => 0,
            count => HEADER_BYTES as u64 + 4 * u64::from(count - 1),
        };
        Ok(Self {
            nid,
            kind,
            mode: raw.mode & 0o7777,
            uid: raw.uid,
            gid: raw.gid,
            links: raw.links,
            size: raw.size,
            mtime: Timestamp { seconds, nanoseconds },
            device: if is_device { decode_device(raw.data) } else { Device { major: 0, minor: 0 } },
            layout: raw.layout,
            data_block: raw.data,
            xattr_start: nid.0 * SLOT + raw.encoded_bytes(),
            xattr_bytes,
        })
    }

    /// Start of the data behind the inode and its xattrs.
    pub(super) fn tail_start(&self) -> u64 {
        self.xattr_start + self.xattr_bytes
    }
}
