//! Where blobs come from.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use tarpon_oci::Blob;

/// The bytes of one answer, in order, in pieces of any size. Ends after exactly the bytes that were asked for, or
/// with an error; never short without one.
pub type BlobStream = BoxStream<'static, Result<Bytes, SourceError>>;

/// A registry repository, an OCI layout or an archive: serves ranges of blobs, unverified.
///
/// Retries, redirects, tokens and mirrors are the source's own business; an error that leaves it is final for
/// this request.
pub trait BlobSource: Send + Sync + 'static {
    /// Asks for `range` of `blob`. `range` is never empty and lies within the blob's size.
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>>;

    /// Asks for the byte of `blob` at `at`, to find out whether the source answers: in one attempt, so that an error is known at once, and
    /// with all the time that the source takes.
    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.read(blob, at..at + 1)
    }

    /// The image, in a user's words, for messages.
    fn name(&self) -> String;

    /// Whether it is on this host: then nothing is gained by keeping what was read from it.
    fn is_local(&self) -> bool {
        false
    }
}

/// Why a source gave no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The blob or image is not there.
    NotFound,
    /// 401 or 403, also after a fresh token.
    Denied,
    /// The server, the network or the disk failed; another attempt may work.
    Unavailable,
    /// No answer in time.
    Timeout,
    /// An answer that is not what was asked for: wrong range, wrong length, wrong encoding.
    BadData,
    /// Certificates, refused redirects, unsupported answers: no attempt will change it.
    Refused,
}

/// A failed request: what was being done and why it failed. Cheap to clone, so that all waiters get it.
#[derive(Clone)]
pub struct SourceError {
    /// The class, which decides what callers do.
    pub fault: Fault,
    message: Arc<str>,
}

impl SourceError {
    /// `message` says in one line what was asked of whom and what came of it. It must not hold secrets.
    pub fn new(fault: Fault, message: impl Into<Arc<str>>) -> Self {
        Self { fault, message: message.into() }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.fault, self.message)
    }
}

impl std::error::Error for SourceError {}
