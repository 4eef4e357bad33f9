//! Learns from the start of an image what its next start will read first, and fetches that.
//!
//! The reads of the first minute after the first one that had to wait become a trace in the store, under the name of the repository and the
//! command. The next start, also of another version, follows it as hints: a trace names content, so what both versions have is known.
//! Images with a boot pack, recorded mounts and local sources need none.
//!
//! A start that follows a trace shows only what the trace lacks: where the kernel reads local files itself, nobody sees whether the rest is
//! read. So the new trace is the union of both, without what the image does not have any more.

use std::ops::Range;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tarpon_client::traces::learned;
use tarpon_fetch::{ReadObserver, START};
use tarpon_oci::{Digest, Hasher, Source};
use tarpon_trace::{Header, Origin, Recorder, Trace, merge};

use super::images::LoadedImage;

/// Reads that are recorded of one start. A large machine-learning image reads about 20,000 files.
const READS: usize = 32_768;

/// Where the trace of a start is kept, and for whom it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Profile {
    key: Digest,
    command: Vec<String>,
}

impl Profile {
    /// `None`: the image is in no registry.
    fn of(image: &str, platform: &str, command: &[String]) -> Option<Self> {
        let Ok(Source::Registry(reference)) = image.parse() else { return None };
        let mut hasher = Hasher::new();
        let parts = [reference.registry(), reference.repository(), platform];
        for part in parts.into_iter().chain(command.iter().map(String::as_str)) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Some(Self { key: hasher.finish(), command: command.to_vec() })
    }
}

/// A start that is being observed.
pub(crate) struct Start {
    profile: Profile,
    recorder: Recorder,
    /// The first read that waited.
    began: OnceLock<Instant>,
    reads: AtomicUsize,
}

impl Start {
    fn new(profile: Profile) -> Arc<Self> {
        Arc::new(Self { profile, recorder: Recorder::new(), began: OnceLock::new(), reads: AtomicUsize::new(0) })
    }

    /// Whether reads belong to it no longer.
    fn is_over(&self) -> bool {
        self.began.get().is_some_and(|began| began.elapsed() > START)
    }
}

impl ReadObserver for Start {
    fn was_read(&self, object: &Digest, size: u64, range: Range<u64>, waited: Duration) {
        if self.began.get().is_none() && waited > Duration::ZERO {
            let _another_thread_was_first = self.began.set(Instant::now());
        }
        if self.began.get().is_none() || self.is_over() || self.reads.fetch_add(1, Relaxed) >= READS {
            return;
        }
        let from = if waited > Duration::ZERO { Origin::Demand } else { Origin::Local };
        self.recorder.touch(*object, size, range, from, waited);
    }
}

impl LoadedImage {
    /// Begins a start of the image by this command, empty if it is not known: observes what it reads, and returns the work of fetching what
    /// earlier ones read, or else what the landmarks of the layers name. The work accesses the disk.
    pub fn begin_start(self: &Arc<Self>, command: &[String], learns: bool) -> impl FnOnce() + Send + use<> {
        let profile = Profile::of(self.handle().name(), &self.record.platform, command);
        let profile = profile.filter(|_| learns && !self.has_pack() && !self.source().is_local());
        if let Some(profile) = profile.clone() {
            self.observe_start(profile);
        }
        let image = self.clone();
        move || {
            let learned = profile.and_then(|profile| learned(image.store(), &profile.key));
            image.follow(learned.as_ref());
        }
    }

    fn observe_start(&self, profile: Profile) {
        let mut start = self.start.lock();
        // Of several at once the first is observed, with the reads of all.
        if start.as_ref().is_none_or(|start| start.is_over()) {
            self.keep_start(start.take());
            let begun = Start::new(profile);
            self.handle().observe(Some(begun.clone()));
            *start = Some(begun);
        }
    }

    /// Keeps the trace of a start that is over; of any if `ends`.
    pub(crate) fn end_start(&self, ends: bool) {
        let mut start = self.start.lock();
        if start.as_ref().is_some_and(|start| ends || start.is_over()) {
            self.handle().observe(None);
            self.keep_start(start.take());
        }
    }

    fn keep_start(&self, start: Option<Arc<Start>>) {
        let Some(start) = start else { return };
        let Some(trace) = self.trace_of(&start) else { return };
        let earlier = learned(self.store(), &start.profile.key);
        let trace = self.with_earlier(trace, earlier);
        match self.store().set_trace(&start.profile.key, &trace.write()) {
            Ok(()) => tracing::debug!(image = self.handle().name(), touches = trace.touches.len(), "learned a start"),
            Err(error) => tracing::debug!(image = self.handle().name(), %error, "the trace of a start is not kept"),
        }
    }

    /// What the start read, if a reader waited at all.
    fn trace_of(&self, start: &Start) -> Option<Trace> {
        // Who reads all of an image does not start a program.
        if self.counters().whole_downloads > 0 {
            return None;
        }
        let trace = start.recorder.finish(Header {
            image: self.handle().name().to_owned(),
            manifest: self.record.manifest,
            profile: String::new(),
            command: start.profile.command.clone(),
            ready: None,
            truncated: false,
        });
        (!trace.touches.is_empty()).then_some(trace)
    }

    /// The trace with what an earlier start read of this image's content.
    fn with_earlier(&self, trace: Trace, earlier: Option<Trace>) -> Trace {
        let Some(mut earlier) = earlier else { return trace };
        earlier.touches.retain(|touch| self.handle().object_size(&touch.object) == Some(touch.size));
        let both = [trace, earlier];
        let merged = merge(&both);
        let [trace, _] = both;
        merged.unwrap_or(trace)
    }
}

#[cfg(test)]
mod tests;
