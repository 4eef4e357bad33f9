//! How fast layers are streamed.

use futures::FutureExt;
use futures::future::BoxFuture;

/// Layers that are streamed at the same time. Each inflates and hashes on two threads, so that three keep a few cores and
/// any link busy; more would only delay the first that is done.
pub const STREAMS: usize = 3;

/// Controls when the next bytes of a layer may be taken from its source.
pub trait Pace: Send + Sync {
    /// Called between two pieces, with the size of the last one. Waiting here keeps the source waiting.
    fn pass(&self, bytes: u64) -> BoxFuture<'_, ()>;
}

/// As fast as they arrive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unhindered;

impl Pace for Unhindered {
    fn pass(&self, _bytes: u64) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}
