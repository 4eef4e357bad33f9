//! [`BlobSource`]: where blobs come from.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use tarpon_oci::{Blob, Digest};

/// The bytes of one response, in order, in parts of any size. It ends after exactly the requested bytes or with an error,
/// and is never short without one.
pub type BlobStream = BoxStream<'static, Result<Bytes, SourceError>>;

/// A registry repository, an OCI layout or an archive: serves ranges of blobs, unverified.
///
/// The source itself handles retries, redirects, tokens and mirrors; an error that it returns is final for the request.
pub trait BlobSource: Send + Sync + 'static {
    /// Requests `range` of `blob`. `range` is never empty and lies within the blob's size.
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>>;

    /// Requests the byte of `blob` at `at`, to find out whether the source responds: in one attempt, so that an error is
    /// known at once, and without a timeout of the source's own.
    fn probe(&self, blob: Blob, at: u64) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.read(blob, at..at + 1)
    }

    /// The image's name, for messages.
    fn name(&self) -> String;

    /// The bytes that were received for `blob` do not match a digest. Returns whether the source will request them elsewhere from now on,
    /// so that another attempt makes sense: at another mirror, or at the registry itself.
    fn distrust(&self, blob: &Digest) -> bool {
        let _ = blob;
        false
    }

    /// Whether the source is on this host: then keeping a copy of its bytes gains nothing.
    fn is_local(&self) -> bool {
        false
    }
}

/// Why a source returned no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// The blob or image does not exist there.
    NotFound,
    /// 401 or 403, also with a fresh token.
    Denied,
    /// The server, the network or the disk failed; another attempt may work.
    Unavailable,
    /// No response in time.
    Timeout,
    /// The response does not match the request: wrong range, wrong length, wrong encoding.
    BadData,
    /// Certificates, refused redirects, unsupported responses: another attempt fails in the same way.
    Refused,
}

/// A failed request: the step and the cause. Cheap to clone, so that every waiter gets it.
#[derive(Clone)]
pub struct SourceError {
    /// The class of the error, by which callers decide what to do.
    pub fault: Fault,
    message: Arc<str>,
}

impl SourceError {
    /// `message` names the request, the server and the cause in one line. It must not contain secrets.
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
