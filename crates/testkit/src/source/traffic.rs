//! [`Traffic`]: what the answers of sources carry at the same time.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use tarpon_oci::{Blob, Digest};

/// A meter of requests under way. Clones are the same meter.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<Measured>>);

/// What a meter has seen.
#[derive(Debug, Clone, Default)]
pub struct Peaks {
    /// The most requests at a time.
    pub requests: usize,
    /// The most bytes at a time that were requested and had not arrived.
    pub bytes: u64,
    /// The first request of bytes that another request of the same source was already bringing.
    pub twice: Option<String>,
}

#[derive(Debug, Default)]
struct Measured {
    open: HashMap<u64, Open>,
    begun: u64,
    bytes: u64,
    peaks: Peaks,
}

#[derive(Debug)]
struct Open {
    source: usize,
    blob: Digest,
    /// The bytes that have not arrived.
    missing: Range<u64>,
}

/// A request under way, until it is dropped.
pub(super) struct OnItsWay {
    traffic: Traffic,
    number: u64,
}

impl Traffic {
    /// The peaks so far.
    pub fn peaks(&self) -> Peaks {
        self.lock().peaks.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().expect("no test panics while it measures")
    }

    /// A request of a source begins.
    pub(super) fn begin(&self, source: usize, blob: &Blob, range: Range<u64>) -> OnItsWay {
        let mut measured = self.lock();
        // Probes request a byte that is not used.
        let is_probe = range.end - range.start == 1;
        let overlaps = |open: &&Open| {
            (open.source, open.blob) == (source, blob.digest)
                && open.missing.end - open.missing.start > 1
                && open.missing.start < range.end
                && range.start < open.missing.end
        };
        if !is_probe && let Some(other) = measured.open.values().find(overlaps) {
            let twice = format!("bytes {range:?} of {} while {:?} are on their way", blob.digest, other.missing);
            measured.peaks.twice.get_or_insert(twice);
        }
        let number = measured.begun;
        measured.begun += 1;
        measured.bytes += range.end - range.start;
        measured.open.insert(number, Open { source, blob: blob.digest, missing: range });
        measured.peaks.requests = measured.peaks.requests.max(measured.open.len());
        measured.peaks.bytes = measured.peaks.bytes.max(measured.bytes);
        OnItsWay { traffic: self.clone(), number }
    }
}

impl OnItsWay {
    /// The next bytes arrived.
    pub(super) fn received(&self, bytes: usize) {
        let mut measured = self.traffic.lock();
        if let Some(open) = measured.open.get_mut(&self.number) {
            let arrived = (bytes as u64).min(open.missing.end - open.missing.start);
            open.missing.start += arrived;
            measured.bytes -= arrived;
        }
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut measured = self.traffic.lock();
        if let Some(open) = measured.open.remove(&self.number) {
            measured.bytes -= open.missing.end - open.missing.start;
        }
    }
}
