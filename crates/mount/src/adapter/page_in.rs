//! [`PageIn`]: local bytes around a small read, put into the kernel's page cache (`FUSE_NOTIFY_STORE`).
//!
//! Without the kernel's read-ahead, which would fetch what no reader needs, each page of a mapped program is a request of its own: two
//! switches of threads for 4 KiB. Bytes that are local already cost a copy.
//!
//! A thread of its own sends them: the kernel locks the pages, and the lock of a page may be held by a request that the threads of the session
//! have yet to read ([`PageCache`]).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_fs::{Content, NodeId, Reads};

use crate::page_cache::PageCache;

/// The bytes around a read: twice what the kernel reads around a page fault by default.
const BLOCK_BYTES: u64 = 16 * PART_BYTES;
/// The parts in which a block is sent where not all of it is local.
const PART_BYTES: u64 = 16 << 10;
const PARTS: u32 = u16::BITS;
/// Longer reads show that the kernel or the program reads ahead.
const SMALL_READ_BYTES: u32 = 16 << 10;
/// Reads that wait for the thread. Those beyond this are answered, and nothing is sent around them.
const QUEUED_READS: usize = 256;
/// Blocks whose sent parts are remembered: those of 4 GiB.
const BLOCKS: usize = 16 << 10;

/// A read that was answered.
struct AnsweredRead {
    node: NodeId,
    content: Content,
    offset: u64,
}

/// Where bytes go.
trait Pages: Send + 'static {
    /// As [`PageCache::store`].
    fn store(&self, node: NodeId, offset: u64, bytes: Bytes) -> io::Result<bool>;
}

impl Pages for PageCache {
    fn store(&self, node: NodeId, offset: u64, bytes: Bytes) -> io::Result<bool> {
        PageCache::store(self, node, offset, bytes)
    }
}

/// Sends bytes around small reads, once that is started.
pub(crate) struct PageIn {
    reads: Reads,
    state: Mutex<State>,
    /// Held from the reading of bytes until the kernel has them.
    sending: Arc<Mutex<()>>,
    /// Nothing is sent any more.
    is_stopped: Arc<AtomicBool>,
}

#[derive(Default)]
enum State {
    /// Nothing is sent: the connection is not held, or has ended.
    #[default]
    Off,
    /// Sending can start, through this device of the connection.
    Ready(OwnedFd),
    Running(SyncSender<AnsweredRead>),
}

impl PageIn {
    /// For bytes of `reads`. Nothing is sent yet.
    pub(super) fn new(reads: Reads) -> Self {
        Self { reads, state: Mutex::default(), sending: Arc::default(), is_stopped: Arc::default() }
    }

    /// Allows to start, with a device of the connection from which no requests are read.
    pub(crate) fn allow(&self, device: OwnedFd) {
        *self.state.lock() = State::Ready(device);
    }

    /// Starts to send, if that is allowed and has not started.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(crate) fn start(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        let device = match std::mem::take(&mut *state) {
            State::Ready(device) => device,
            other => {
                *state = other;
                return Ok(());
            }
        };
        let pages = PageCache::start(device)?;
        let (queue, queued) = sync_channel(QUEUED_READS);
        let (reads, sending, is_stopped) = (self.reads.clone(), self.sending.clone(), self.is_stopped.clone());
        let sender = Sender { reads, pages, sent: HashMap::new(), sending, is_stopped };
        thread::Builder::new().name("page-in".to_owned()).spawn(move || sender.run(&queued))?;
        *state = State::Running(queue);
        Ok(())
    }

    /// Ends it for good. Returns whether it could send.
    pub(crate) fn stop(&self) -> bool {
        self.is_stopped.store(true, Relaxed);
        !matches!(std::mem::take(&mut *self.state.lock()), State::Off)
    }

    /// Notes a read of `size` bytes that was answered.
    pub(super) fn answered(&self, node: NodeId, content: Content, offset: u64, size: u32) {
        if size <= SMALL_READ_BYTES
            && content.size > u64::from(size)
            && let State::Running(queue) = &*self.state.lock()
        {
            // What is not sent is requested.
            let _is_queued = queue.try_send(AnsweredRead { node, content, offset });
        }
    }

    /// Ends it for good, and waits until the kernel has what is being sent. `false`: not before `until`.
    pub(crate) fn stop_until(&self, until: Instant) -> bool {
        self.stop();
        self.settle_until(until)
    }

    /// Waits until the kernel has what was read before this call. `false`: not before `until`.
    pub(crate) fn settle_until(&self, until: Instant) -> bool {
        self.sending.try_lock_until(until).is_some()
    }
}

/// The thread that sends.
struct Sender<P> {
    reads: Reads,
    pages: P,
    /// The parts of each block that were sent, a bit each.
    sent: HashMap<(NodeId, u64), u16>,
    sending: Arc<Mutex<()>>,
    is_stopped: Arc<AtomicBool>,
}

impl<P: Pages> Sender<P> {
    fn run(mut self, queued: &Receiver<AnsweredRead>) {
        while let Ok(read) = queued.recv() {
            if let Err(error) = self.send_around(&read) {
                // The connection has ended, or this kernel takes no pages.
                if !self.is_stopped.load(Relaxed) {
                    tracing::info!(%error, "no pages are put into the kernel's page cache any more");
                }
                return;
            }
        }
    }

    fn send_around(&mut self, read: &AnsweredRead) -> io::Result<()> {
        let number = read.offset / BLOCK_BYTES;
        let key = (read.node, number);
        let sent = self.sent.remove(&key).unwrap_or_default();
        let part = u32::try_from(read.offset % BLOCK_BYTES / PART_BYTES).unwrap_or_default();
        if sent & (1 << part) != 0 {
            // The kernel has dropped it since, or had requested it before: the next read sends the block again.
            return Ok(());
        }
        let sent = sent | self.send(read, number * BLOCK_BYTES, 0..PARTS, sent)?;
        if self.sent.len() >= BLOCKS {
            self.sent.clear();
        }
        self.sent.insert(key, sent);
        Ok(())
    }

    /// Sends those of the parts that are local and were not sent yet, in as large pieces as possible, and returns them.
    fn send(&self, read: &AnsweredRead, block: u64, parts: Range<u32>, sent: u16) -> io::Result<u16> {
        let wanted = parts.clone().fold(0, |bits, part| bits | 1 << part);
        let offset = block + u64::from(parts.start) * PART_BYTES;
        if sent & wanted == wanted || offset >= read.content.size {
            return Ok(0);
        }
        if sent & wanted == 0 && self.send_whole(read, offset, parts.len() as u64 * PART_BYTES)? {
            return Ok(wanted);
        }
        if parts.len() == 1 {
            return Ok(0);
        }
        let middle = parts.start.midpoint(parts.end);
        let first = self.send(read, block, parts.start..middle, sent)?;
        Ok(first | self.send(read, block, middle..parts.end, sent)?)
    }

    fn send_whole(&self, read: &AnsweredRead, offset: u64, length: u64) -> io::Result<bool> {
        let _sending = self.sending.lock();
        if self.is_stopped.load(Relaxed) {
            return Ok(false);
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        match self.reads.page_in(read.content, offset, length) {
            Some(bytes) => self.pages.store(read.node, offset, bytes),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use futures::future::BoxFuture;
    use tarpon_fs::{Errno, Objects};
    use tarpon_oci::Digest;

    use super::*;

    /// Objects of which only the bytes between these offsets are local.
    struct Partial(&'static [(u64, u64)]);

    impl Objects for Partial {
        fn size(&self, _: &Digest) -> Option<u64> {
            None
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn page_in(&self, _: &Digest, offset: u64, length: usize) -> Option<Bytes> {
            let end = offset + length as u64;
            let is_local = self.0.iter().any(|local| local.0 <= offset && end <= local.1);
            is_local.then(|| Bytes::from(vec![0; length]))
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            Box::pin(std::future::ready(Err(Errno::Io)))
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    type Ranges = Vec<(u64, Range<u64>)>;

    /// The ranges that were stored, by node.
    #[derive(Clone, Default)]
    struct Stored(Arc<Mutex<Ranges>>);

    impl Pages for Stored {
        fn store(&self, node: NodeId, offset: u64, bytes: Bytes) -> io::Result<bool> {
            self.0.lock().push((node.0, offset..offset + bytes.len() as u64));
            Ok(true)
        }
    }

    impl Stored {
        fn take(&self) -> Ranges {
            std::mem::take(&mut self.0.lock())
        }
    }

    const SIZE: u64 = 3 * BLOCK_BYTES + 100;

    fn sender(local: &'static [(u64, u64)]) -> (Sender<Stored>, Stored) {
        let stored = Stored::default();
        let reads = Reads::new(Arc::new(Partial(local)));
        let (sending, is_stopped) = (Arc::default(), Arc::default());
        (Sender { reads, pages: stored.clone(), sent: HashMap::new(), sending, is_stopped }, stored)
    }

    fn read(node: u64, offset: u64) -> AnsweredRead {
        let content = Content { object: Some(Digest::of(b"")), size: SIZE };
        AnsweredRead { node: NodeId(node), content, offset }
    }

    #[test]
    fn the_block_of_a_read_is_sent_once_and_again_after_the_kernel_dropped_it() {
        let (mut sender, stored) = sender(&[(0, SIZE)]);
        sender.send_around(&read(1, BLOCK_BYTES + 5000)).unwrap();
        assert_eq!(stored.take(), [(1, BLOCK_BYTES..2 * BLOCK_BYTES)]);
        sender.send_around(&read(2, BLOCK_BYTES)).unwrap();
        assert_eq!(stored.take(), [(2, BLOCK_BYTES..2 * BLOCK_BYTES)]);
        sender.send_around(&read(1, BLOCK_BYTES)).unwrap();
        assert_eq!(stored.take(), [], "it may have been requested before the block arrived");
        sender.send_around(&read(1, BLOCK_BYTES)).unwrap();
        assert_eq!(stored.take(), [(1, BLOCK_BYTES..2 * BLOCK_BYTES)]);
        sender.send_around(&read(1, SIZE - 1)).unwrap();
        assert_eq!(stored.take(), [(1, 3 * BLOCK_BYTES..SIZE)], "the end of the file");
    }

    #[test]
    fn what_is_not_local_is_left_out_until_it_is() {
        let (mut missing, stored) = sender(&[(0, 3 * PART_BYTES), (7 * PART_BYTES, 8 * PART_BYTES + 1)]);
        missing.send_around(&read(1, 0)).unwrap();
        let parts = |parts: Range<u64>| (1, parts.start * PART_BYTES..parts.end * PART_BYTES);
        assert_eq!(stored.take(), [parts(0..2), parts(2..3), parts(7..8)]);
        let mut whole = Sender { reads: Reads::new(Arc::new(Partial(&[(0, SIZE)]))), ..missing };
        whole.send_around(&read(1, 5 * PART_BYTES)).unwrap();
        assert_eq!(stored.take(), [parts(3..4), parts(4..6), parts(6..7), parts(8..16)]);
    }

    #[test]
    fn nothing_is_sent_once_it_is_stopped_and_what_is_being_sent_is_waited_for_within_a_limit() {
        let (mut sender, stored) = sender(&[(0, SIZE)]);
        let page_in = PageIn::new(Reads::new(Arc::new(Partial(&[]))));
        (sender.sending, sender.is_stopped) = (page_in.sending.clone(), page_in.is_stopped.clone());
        sender.send_around(&read(1, 0)).unwrap();
        assert_eq!(stored.take().len(), 1);
        let being_sent = page_in.sending.lock();
        assert!(!page_in.settle_until(Instant::now()));
        assert!(!page_in.stop_until(Instant::now()));
        drop(being_sent);
        assert!(page_in.settle_until(Instant::now()));
        assert!(page_in.stop_until(Instant::now()));
        sender.send_around(&read(2, 0)).unwrap();
        assert_eq!(stored.take(), []);
    }

    #[test]
    fn only_small_reads_of_larger_files_are_noted_and_no_more_than_fit() {
        let page_in = PageIn::new(Reads::new(Arc::new(Partial(&[]))));
        let (queue, queued) = sync_channel(2);
        let content = read(1, 0).content;
        page_in.answered(NodeId(1), content, 0, 4096);
        *page_in.state.lock() = State::Running(queue);
        page_in.answered(NodeId(2), content, 0, SMALL_READ_BYTES + 1);
        page_in.answered(NodeId(3), Content { size: 4096, ..content }, 0, 4096);
        for node in 4..8 {
            page_in.answered(NodeId(node), content, 0, 4096);
        }
        assert_eq!(queued.try_iter().map(|read| read.node.0).collect::<Vec<_>>(), [4, 5]);
    }
}
