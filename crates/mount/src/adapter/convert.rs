//! Conversions of our types to those of fuser.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use tarpon_fs::{Attr, Errno, Kind, NodeId};
use tarpon_layer::Timestamp;

/// Bytes per block of `st_blocks`.
const BLOCK: u64 = 512;

pub(super) fn node(inode: INodeNo) -> NodeId {
    NodeId(inode.0)
}

pub(super) fn errno(errno: Errno) -> fuser::Errno {
    match errno {
        Errno::NotFound => fuser::Errno::ENOENT,
        Errno::NotADirectory => fuser::Errno::ENOTDIR,
        Errno::IsADirectory => fuser::Errno::EISDIR,
        Errno::Invalid => fuser::Errno::EINVAL,
        Errno::Io => fuser::Errno::EIO,
        Errno::ReadOnly => fuser::Errno::EROFS,
        Errno::NoAttribute => fuser::Errno::ENODATA,
        Errno::Stale => fuser::Errno::ESTALE,
    }
}

pub(super) fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Symlink => FileType::Symlink,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::NamedPipe,
    }
}

pub(super) fn attributes(attr: &Attr) -> FileAttr {
    let time = time(attr.mtime);
    FileAttr {
        ino: INodeNo(attr.node.0),
        size: attr.size,
        blocks: attr.size.div_ceil(BLOCK),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: kind(attr.kind),
        perm: attr.mode,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: device(attr.device),
        blksize: 4096,
        flags: 0,
    }
}

/// An entry without an inode: the kernel takes it as "no such name" and may cache that.
pub(super) fn nothing() -> FileAttr {
    let no_inode = Attr {
        node: NodeId(0),
        kind: Kind::File,
        mode: 0,
        links: 0,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: Timestamp::default(),
        device: (0, 0),
    };
    attributes(&no_inode)
}

/// Device number in the encoding of FUSE: the kernel's `new_encode_dev`.
fn device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Converts a time; one outside the range of the system's clock type becomes 1970.
fn time(stamp: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(stamp.seconds.unsigned_abs());
    let whole = if stamp.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(stamp.nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_count_forward_before_1970() {
        let stamp = Timestamp { seconds: -2, nanoseconds: 500_000_000 };
        assert_eq!(UNIX_EPOCH.duration_since(time(stamp)).unwrap(), Duration::from_millis(1500));
    }

    #[test]
    fn large_minor_numbers_keep_their_upper_bits() {
        assert_eq!(device((1, 3)), 0x103);
        assert_eq!(device((8, 0x12345)), 0x1230_0845);
    }
}
