//! [`PageCache`]: puts bytes into the kernel's page cache (`FUSE_NOTIFY_STORE`).
//!
//! The kernel locks the pages, and the lock of a page may be held by a request that is not answered yet. A process that is killed while a
//! thread of it waits for such a lock does not end before the request is answered. So that thread shares no descriptor with its process: the
//! kernel closes those of the process at once, and the holder starts a successor. The kernel fails or repeats what the process had read, and
//! the successor answers the rest. Without a holder there would be no answer, so only connections that are held have a page cache.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use rustix::io::Errno;
use tarpon_fs::NodeId;

/// `FUSE_NOTIFY_STORE` in `<linux/fuse.h>`.
const STORE: i32 = 4;
/// `fuse_out_header` and `fuse_notify_store_out`.
const HEADER_BYTES: u32 = 40;

/// The kernel's page cache of a connection, for one user.
pub(crate) struct PageCache {
    orders: SyncSender<Order>,
    results: Receiver<io::Result<bool>>,
}

struct Order {
    node: NodeId,
    offset: u64,
    bytes: Bytes,
}

impl PageCache {
    /// `device`: one of the connection, from which no requests are read.
    ///
    /// # Errors
    /// There is no thread, or it cannot have descriptors of its own (before Linux 5.9).
    pub(crate) fn start(device: OwnedFd) -> io::Result<Self> {
        let ((orders, ordered), (result, results)) = (sync_channel(1), sync_channel(1));
        let number = device.as_raw_fd();
        thread::Builder::new().name("page-cache".to_owned()).spawn(move || serve(number, &ordered, &result))?;
        // Then the thread has a descriptor of its own of the device, and this one is closed.
        results.recv().map_err(io::Error::other)??;
        Ok(Self { orders, results })
    }

    /// Stores bytes of an inode, whole pages or up to its end. Returns once the kernel has them; `false` if it has no memory for them. An inode
    /// that the kernel does not hold any more is not an error.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn store(&self, node: NodeId, offset: u64, bytes: Bytes) -> io::Result<bool> {
        self.orders.send(Order { node, offset, bytes }).map_err(io::Error::other)?;
        self.results.recv().map_err(io::Error::other)?
    }
}

fn serve(number: RawFd, orders: &Receiver<Order>, result: &SyncSender<io::Result<bool>>) {
    let device = match keep_only(number) {
        Ok(device) => device,
        // No result is awaited any more if the page cache was dropped.
        Err(error) => return drop(result.send(Err(error))),
    };
    let mut sent = result.send(Ok(true));
    while let (Ok(()), Ok(order)) = (sent, orders.recv()) {
        sent = result.send(send(&device, &order));
    }
}

fn send(device: &OwnedFd, order: &Order) -> io::Result<bool> {
    let size = u32::try_from(order.bytes.len()).map_err(io::Error::other)?;
    let header = header(order.node, order.offset, size)?;
    match rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(&order.bytes)]) {
        Ok(_) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOMEM) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn header(node: NodeId, offset: u64, size: u32) -> io::Result<[u8; HEADER_BYTES as usize]> {
    let mut header = [0; HEADER_BYTES as usize];
    let length = size.checked_add(HEADER_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&STORE.to_ne_bytes());
    header[16..24].copy_from_slice(&node.0.to_ne_bytes());
    header[24..32].copy_from_slice(&offset.to_ne_bytes());
    header[32..36].copy_from_slice(&size.to_ne_bytes());
    Ok(header)
}

/// Gives the calling thread descriptors of its own: this one and no other.
#[expect(unsafe_code, reason = "the libraries have no such call, and cannot know that nothing here uses the others")]
fn keep_only(number: RawFd) -> io::Result<OwnedFd> {
    let close = |first: u32, last: u32, flags: libc::c_uint| {
        if first > last {
            return Ok(());
        }
        // SAFETY: a system call without pointers. With the flag the thread leaves the descriptors of its process, so it closes none of them.
        match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let kept = u32::try_from(number).map_err(io::Error::other)?;
    // The upper ones first, because there are always such numbers: only this call separates the thread from its process.
    close(kept + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if let Some(below) = kept.checked_sub(1) {
        close(0, below, 0)?;
    }
    // SAFETY: the caller has it open until this thread reports that it has its own, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};

    use super::*;

    /// What a descriptor refers to. Of a socket, it is unique.
    fn descriptor(link: &Path) -> PathBuf {
        std::fs::read_link(link).unwrap_or_default()
    }

    /// What the descriptors of a thread refer to; nothing if it has ended.
    fn descriptors(thread: &Path) -> Vec<PathBuf> {
        let links = std::fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
        links.map(|link| descriptor(&link.path())).collect()
    }

    #[test]
    fn bytes_are_sent_by_a_thread_that_has_no_other_descriptor() {
        let (device, mut kernel) = UnixStream::pair().unwrap();
        let socket = descriptor(Path::new(&format!("/proc/self/fd/{}", device.as_raw_fd())));
        let cache = PageCache::start(device.into()).unwrap();
        cache.store(NodeId(7), 4096, Bytes::from_static(b"page")).unwrap();
        let mut sent = [0; HEADER_BYTES as usize + 4];
        kernel.read_exact(&mut sent).unwrap();
        let number = |at: usize| u64::from_ne_bytes(sent[at..at + 8].try_into().unwrap());
        assert_eq!(sent[..4], 44_u32.to_ne_bytes());
        assert_eq!((number(8), number(16), number(24), &sent[40..]), (0, 7, 4096, &b"page"[..]));

        let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
        let with_it: Vec<_> = threads.map(|thread| descriptors(&thread)).filter(|all| all.contains(&socket)).collect();
        assert_eq!(with_it, [[socket]], "no other thread has the device");
        drop(cache);
        assert_eq!(kernel.read(&mut sent).unwrap(), 0, "the thread has ended, and the device is closed");
    }

    #[test]
    fn a_connection_that_has_ended_is_an_error() {
        let (device, kernel) = UnixStream::pair().unwrap();
        let cache = PageCache::start(device.into()).unwrap();
        drop(kernel);
        assert!(cache.store(NodeId(1), 0, Bytes::from_static(b"page")).is_err());
    }
}
