//! [`MemorySource`]: blobs in memory, served by a script.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, Digest};

use super::traffic::Traffic;

/// Behavior of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Delay before the answer.
    pub latency: Duration,
    /// Size of each part of the body in bytes.
    pub part: usize,
    /// Delay between two parts.
    pub pace: Duration,
    /// The content of the answer.
    pub then: Then,
}

/// Content of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The requested bytes.
    Bytes,
    /// The requested number of bytes, with this one (counted from the blob's start) inverted if it is among them.
    Corrupt(u64),
    /// All bytes inverted.
    Garbage,
    /// An error instead of an answer.
    Refuse(Fault),
    /// An error after this many bytes.
    Break(usize, Fault),
    /// A normal end after this many bytes: a violation of the source's contract.
    End(usize),
    /// Silence after this many bytes.
    Hang(usize),
    /// No answer at all.
    Never,
}

impl From<Then> for Reply {
    fn from(then: Then) -> Self {
        Self { latency: Duration::ZERO, part: 16 << 10, pace: Duration::ZERO, then }
    }
}

impl Default for Reply {
    fn default() -> Self {
        Then::Bytes.into()
    }
}

/// A received request.
pub type Requested = (Digest, Range<u64>);

/// Blobs by digest. The script answers requests in order; after its end, the default reply applies.
#[derive(Default)]
pub struct MemorySource {
    blobs: HashMap<Digest, Bytes>,
    script: Mutex<VecDeque<Reply>>,
    default: Mutex<Reply>,
    requests: Mutex<Vec<Requested>>,
    traffic: Traffic,
}

impl MemorySource {
    /// A source with these blobs.
    pub fn new(blobs: impl IntoIterator<Item = Bytes>) -> Self {
        Self { blobs: blobs.into_iter().map(|blob| (Digest::of(&blob), blob)).collect(), ..Self::default() }
    }

    /// As [`MemorySource::new`], measured together with other sources.
    pub fn measured_by(blobs: impl IntoIterator<Item = Bytes>, traffic: &Traffic) -> Self {
        Self { traffic: traffic.clone(), ..Self::new(blobs) }
    }

    /// Sets the replies to the next requests.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.script).extend(replies);
    }

    /// Sets the default reply after the script.
    pub fn always(&self, reply: Reply) {
        *lock(&self.default) = reply;
    }

    /// From now on, answers everything correctly and at once.
    pub fn calm(&self) {
        lock(&self.script).clear();
        self.always(Reply::default());
    }

    /// All requests so far, in order.
    pub fn requests(&self) -> Vec<Requested> {
        lock(&self.requests).clone()
    }

    fn answer(&self, blob: Blob, range: &Range<u64>, reply: Reply) -> Result<BlobStream, SourceError> {
        let error = |fault| SourceError::new(fault, format!("scripted {fault:?} for {} {range:?}", blob.digest));
        let whole = self.blobs.get(&blob.digest).ok_or_else(|| error(Fault::NotFound))?;
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        assert!(range.start < range.end && range.end <= blob.size, "{range:?} of {} bytes", blob.size);
        let mut bytes = whole.slice(index(range.start)..index(range.end));
        let (limit, end) = match reply.then {
            Then::Refuse(fault) => return Err(error(fault)),
            Then::Break(after, fault) => (after, Ending::Error(error(fault))),
            Then::End(after) => (after, Ending::Clean),
            Then::Hang(after) => (after, Ending::Silence),
            Then::Corrupt(at) => {
                let inverted =
                    |(i, byte): (usize, &u8)| if index(range.start) + i == index(at) { !byte } else { *byte };
                bytes = bytes.iter().enumerate().map(inverted).collect();
                (bytes.len(), Ending::Clean)
            }
            Then::Garbage => {
                bytes = bytes.iter().map(|byte| !byte).collect();
                (bytes.len(), Ending::Clean)
            }
            Then::Bytes | Then::Never => (bytes.len(), Ending::Clean),
        };
        bytes.truncate(limit);
        Ok(body(bytes, reply, end))
    }
}

enum Ending {
    Clean,
    Error(SourceError),
    Silence,
}

fn body(bytes: Bytes, reply: Reply, end: Ending) -> BlobStream {
    let part = reply.part.max(1);
    let starts: Vec<usize> = (0..bytes.len()).step_by(part).collect();
    let parts = stream::iter(starts).then(move |start| {
        let piece = bytes.slice(start..bytes.len().min(start.saturating_add(part)));
        async move {
            if !reply.pace.is_zero() {
                tokio::time::sleep(reply.pace).await;
            }
            Ok(piece)
        }
    });
    match end {
        Ending::Clean => parts.boxed(),
        Ending::Error(error) => parts.chain(stream::iter([Err(error)])).boxed(),
        Ending::Silence => parts.chain(stream::pending()).boxed(),
    }
}

impl BlobSource for MemorySource {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        lock(&self.requests).push((blob.digest, range.clone()));
        let reply = lock(&self.script).pop_front().unwrap_or(*lock(&self.default));
        let on_its_way = self.traffic.begin(std::ptr::from_ref(self).addr(), &blob, range.clone());
        async move {
            if !reply.latency.is_zero() {
                tokio::time::sleep(reply.latency).await;
            }
            if reply.then == Then::Never {
                return futures::future::pending().await;
            }
            let parts = self.answer(blob, &range, reply)?;
            Ok(parts.inspect(move |part| on_its_way.received(part.as_ref().map_or(0, Bytes::len))).boxed())
        }
        .boxed()
    }

    fn name(&self) -> String {
        "memory".into()
    }
}

/// Locks a mutex even if it is poisoned: a test that failed elsewhere must not fail here again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
