//! [`fuser::Filesystem`] for [`Adapter`]: each operation in the same shape, then refusals of every write operation.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tarpon_fs::{Attempt, Content, DirEntry, Errno, NodeId, Take};

use super::convert::{self, node};
use super::fuse_adapter::{Adapter, cached_open};
use super::guarded::GENERATION;
use super::reply::Refuse;

/// Block size of `statfs`.
const BLOCK: u32 = 4096;
const NAME_BYTES: u32 = 255;

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (files, parent) = (self.guarded.clone(), node(parent));
        match self.guarded(|files| files.before_lookup(parent, name.as_bytes())) {
            Ok(None) => {
                let _request = self.in_flight.begin();
                files.lookup(parent, name.as_bytes(), reply);
            }
            Ok(Some(wait)) => {
                let name = name.as_bytes().to_vec();
                self.later(wait, move || files.lookup(parent, &name, reply));
            }
            Err(errno) => reply.error(convert::errno(errno)),
        }
    }

    fn forget(&self, _: &Request, inode: INodeNo, count: u64) {
        self.guarded.files.forget(node(inode), count);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            reply,
            |files| files.attributes(node(inode)),
            |reply, attr| reply.attr(&self.presence_lasts(node(inode)), &convert::attributes(&attr)),
        );
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        self.answer(reply, |files| files.read_link(node(inode)), |reply, target| reply.data(&target));
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.guarded.counters.opens.fetch_add(1, Ordering::Relaxed);
        let Some(opens) = &self.opens else {
            // Sticky: the kernel never asks again and keeps its page cache across opens.
            return reply.error(fuser::Errno::ENOSYS);
        };
        self.answer(
            reply,
            |files| files.content(node(inode)),
            |reply, content| {
                let (node, opens, reads) = (node(inode), opens.clone(), self.reads.clone());
                let wants_local = opens.wants_local(node, content.size);
                let wait = wants_local.then(|| reads.before_local_file(content)).flatten();
                let open = move || match opens.open(node, content.size, || reads.local_file(content), &reply) {
                    Some(backing) => reply.opened_passthrough(FileHandle(0), FopenFlags::FOPEN_NOFLUSH, &backing),
                    None => reply.opened(FileHandle(0), cached_open()),
                };
                match wait {
                    None => open(),
                    Some(wait) => self.later(wait, open),
                }
            },
        );
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        if let Some(opens) = &self.opens {
            let _survived = self.guarded(|_| opens.release(node(inode)));
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Ok(Some(bytes)) = self.guarded(|files| files.streamed(node(inode), offset, size)) {
            return self.reply_later(bytes, reply, || ());
        }
        self.answer(
            reply,
            |files| {
                if let Some(bytes) = files.held(node(inode)) {
                    return Ok((Content { object: None, size: 0 }, Some(part(&bytes, offset, size))));
                }
                let content = files.content(node(inode))?;
                Ok((content, self.reads.now(content, offset, size)?))
            },
            |reply, (content, here)| match here {
                Some(bytes) => {
                    self.guarded.counters.reads_local.fetch_add(1, Ordering::Relaxed);
                    reply.data(&bytes);
                    self.page_in.answered(node(inode), content, offset, size);
                }
                None => self.read_later(node(inode), content, offset, size, reply),
            },
        );
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if !self.guarded.files.lists_change() {
            // Sticky, and allows the kernel to keep the listing.
            return reply.error(fuser::Errno::ENOSYS);
        }
        let kept = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
        let flags = if self.guarded.files.lasts(node(inode)) { kept } else { FopenFlags::empty() };
        reply.opened(FileHandle(0), flags);
    }

    fn releasedir(&self, _: &Request, _: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut take = |entry: DirEntry<'_>| {
            let name = OsStr::from_bytes(entry.name);
            full(reply.add(INodeNo(entry.node.0), entry.next, convert::kind(entry.kind), name))
        };
        let listed = self.guarded(|files| files.read_dir(node(inode), offset, &mut take));
        self.answer(reply, |_| listed?, |reply, ()| reply.ok());
    }

    fn readdirplus(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let lasts = self.presence_lasts(node(inode));
        let listed = self.guarded(|files| {
            let mut failure = None;
            files.read_dir(node(inode), offset, &mut |entry| match files.attributes(entry.node) {
                Ok(attr) => {
                    let (name, attr) = (OsStr::from_bytes(entry.name), convert::attributes(&attr));
                    full(reply.add(attr.ino, entry.next, name, &lasts, &attr, GENERATION))
                }
                Err(errno) => {
                    failure = Some(errno);
                    Take::Enough
                }
            })?;
            failure.map_or(Ok(()), Err)
        });
        self.answer(reply, |_| listed?, |reply, ()| reply.ok());
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.answer(
            reply,
            |files| Ok(files.totals()),
            |reply, totals| {
                let blocks = totals.bytes.div_ceil(BLOCK.into());
                reply.statfs(blocks, 0, 0, totals.inodes, 0, BLOCK, NAME_BYTES, BLOCK);
            },
        );
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.guarded.files.has_xattrs() {
            // Sticky: spares one round trip per file under overlayfs, ls and exec.
            return reply.error(fuser::Errno::ENOSYS);
        }
        self.answer(
            reply,
            |files| files.xattr(node(inode), name.as_bytes()),
            |reply, value| give_xattr(reply, &value, size),
        );
    }

    fn listxattr(&self, _: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(reply, |files| files.xattr_names(node(inode)), |reply, names| give_xattr(reply, &names, size));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Sticky: there is never anything to flush.
        reply.error(fuser::Errno::ENOSYS);
    }

    // From here on: the operations that change something. Most mounts are read-only, so the kernel itself refuses almost
    // all of them.

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(fuser::Errno::EROFS);
    }

    fn mknod(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        self.refuse(parent, name, Attempt::Create, reply);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.refuse(parent, name, Attempt::RemoveDirectory, reply);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(fuser::Errno::EROFS);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        self.refuse(parent, name, Attempt::Create, reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(fuser::Errno::EROFS);
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(fuser::Errno::EROFS);
    }
}

impl Adapter {
    /// Answers from the async runtime, after `wait`.
    fn later(&self, wait: impl Future<Output = ()> + Send + 'static, answer: impl FnOnce() + Send + 'static) {
        let (guarded, request) = (self.guarded.clone(), self.in_flight.begin());
        self.runtime.spawn(async move {
            wait.await;
            // A panic drops the reply, which answers EIO.
            let _survived = guarded.guarded(|_| answer());
            drop(request);
        });
    }

    /// Replies from the async runtime once the bytes are local. A runtime that shuts down drops the reply, which answers EIO.
    fn read_later(&self, node: NodeId, content: Content, offset: u64, size: u32, reply: ReplyData) {
        let (reads, page_in) = (self.reads.clone(), self.page_in.clone());
        let bytes = async move { reads.later(content, offset, size).await };
        self.reply_later(bytes, reply, move || page_in.answered(node, content, offset, size));
    }

    /// `then` runs after the reply, unless that is an error.
    fn reply_later(
        &self,
        bytes: impl Future<Output = Result<Bytes, Errno>> + Send + 'static,
        reply: ReplyData,
        then: impl FnOnce() + Send + 'static,
    ) {
        let (counters, request) = (self.guarded.counters.clone(), self.in_flight.begin());
        self.runtime.spawn(async move {
            match bytes.await {
                Ok(bytes) => {
                    counters.reads_fetched.fetch_add(1, Ordering::Relaxed);
                    reply.data(&bytes);
                    then();
                }
                Err(errno) => {
                    counters.read_errors.fetch_add(1, Ordering::Relaxed);
                    reply.error(convert::errno(errno));
                }
            }
            drop(request);
        });
    }
}

impl Adapter {
    /// Refuses a change. The meaning of such an attempt is resolved on the async runtime.
    fn refuse<R: Refuse>(&self, parent: INodeNo, name: &OsStr, what: Attempt, reply: R) {
        match self.guarded(|files| files.attempted(node(parent), name.as_bytes(), what)) {
            Ok(Some(answer)) => {
                let request = self.in_flight.begin();
                self.runtime.spawn(async move {
                    reply.refuse(convert::errno(answer.await));
                    drop(request);
                });
            }
            Ok(None) => reply.refuse(fuser::Errno::EROFS),
            Err(errno) => reply.refuse(convert::errno(errno)),
        }
    }
}

/// The part of `bytes` that a read returns.
fn part(bytes: &Bytes, offset: u64, size: u32) -> Bytes {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let length = usize::try_from(size).unwrap_or(usize::MAX).min(bytes.len() - start);
    bytes.slice(start..start + length)
}

fn full(no_room: bool) -> Take {
    if no_room { Take::Enough } else { Take::More }
}

/// The two-step protocol of xattrs: size 0 queries the length, any other size must suffice.
fn give_xattr(reply: ReplyXattr, value: &[u8], size: u32) {
    match u32::try_from(value.len()) {
        Ok(length) if size == 0 => reply.size(length),
        Ok(length) if length <= size => reply.data(value),
        _ => reply.error(fuser::Errno::ERANGE),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::BoxFuture;
    use tarpon_fs::{ImageFs, Objects, Reads};
    use tarpon_oci::Digest;

    use super::super::OpenPolicy;
    use super::*;

    /// No objects.
    struct Nothing;

    impl Objects for Nothing {
        fn size(&self, _: &Digest) -> Option<u64> {
            None
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            Box::pin(std::future::ready(Err(Errno::Io)))
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<std::fs::File>> {
            None
        }
    }

    #[tokio::test]
    async fn an_answer_that_panics_on_the_runtime_is_counted() {
        let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&[tarpon_testkit::entries::layer([])]).unwrap());
        let files = Arc::new(ImageFs::new(Bytes::from(tree)).unwrap());
        let runtime = tokio::runtime::Handle::current();
        let adapter = Adapter::new(files, Reads::new(Arc::new(Nothing)), runtime, OpenPolicy::NoOpen);
        adapter.later(std::future::ready(()), || panic!("as this test wants it"));
        while adapter.in_flight().len() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(adapter.counters().panics.load(Ordering::Relaxed), 1);
    }
}
