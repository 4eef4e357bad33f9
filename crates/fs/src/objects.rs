//! [`Objects`]: the source of bytes, as a file system sees it.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_oci::Digest;

use crate::Errno;

/// Serves ranges of objects, some of which are local and others not yet. The fetcher is the one implementation outside tests.
///
/// A reader requests a range inside the object and gets exactly that range, checked against a digest, or an error; never less.
pub trait Objects: Send + Sync + 'static {
    /// The size of an object that some image of this host contains; `None` for all others.
    fn size(&self, object: &Digest) -> Option<u64>;

    /// Notifies that the kernel is about to hold an inode of the object, for all images, until [`Objects::release`].
    /// Returns the size of the inode. `None` if there is no such object or images contradict each other about its size.
    /// Answers from memory or the local disk.
    fn hold(&self, object: &Digest) -> Option<u64> {
        self.size(object)
    }

    /// Notifies that the kernel has released the inode, and so all its pages.
    fn release(&self, _object: &Digest) {}

    /// The objects of the images of this host whose digests start with the first `bits` bits of `start`; at most two,
    /// since the caller needs one.
    fn starting_with(&self, _start: u64, _bits: u32) -> Vec<Digest> {
        Vec::new()
    }

    /// The range, if it is available without the network. Blocks on memory and the local disk only.
    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, Errno>;

    /// The range, which no reader requested, for the kernel's page cache. `None`: not all of it is local, or each request is to be seen, and
    /// what is in the page cache needs none. Blocks as [`Objects::read_local`].
    fn page_in(&self, _object: &Digest, _offset: u64, _length: usize) -> Option<Bytes> {
        None
    }

    /// The range, from any source. Ends within the read deadline.
    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>>;

    /// The future to await before [`Objects::open_local`], if the object is a local file that must be hashed first. Ends
    /// within the read deadline.
    fn check_local(&self, _object: &Digest) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The complete, verified object as a local file, if there is one.
    fn open_local(&self, object: &Digest) -> Option<Arc<File>>;
}
