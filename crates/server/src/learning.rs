//! Learns from the start of an image what its next start will read first, and fetches that.
//!
//! The reads of the first minute after the first one that had to wait become a trace in the store, under the name of the repository and the
//! command. The next start, also of another version, follows it as hints: a trace names content, so what both versions have is known.
//! Images with a recorded boot pack, recorded mounts and local sources need none. With a predicted pack, the trace has what the pack
//! lacks, and is followed behind it.
//!
//! A start by a known command replays a predicted pack and follows the trace at once. One without a command may be of anything, and in
//! Podman's stores may come hours later: it does both from the first read that waits for something in them. Where starts are not
//! observed, the pack is replayed at once.
//!
//! A start that follows a trace shows only what the trace lacks: where the kernel reads local files itself, the use of the rest is
//! unknown. So the new trace is the union of both, without what the image does not have any more.
//!
//! The trace has the number of starts in a row that were equal: of the same manifest, with at most a tenth of the contents new. A start by a
//! known command that waits for nothing, because all is local or was fetched ahead, is one of them.

use std::sync::Arc;

use tarpon_client::traces::learned;
use tarpon_images::DEFAULT_PROFILE;
use tarpon_trace::{Header, MOST_STARTS, Trace, merge, starts_with};

use super::images::LoadedImage;
use super::start::{Profile, Start};

impl LoadedImage {
    /// Begins a start of the image by this command, empty if it is not known: observes what it reads, and returns the work of fetching what
    /// earlier ones read, or else what the landmarks of the layers name. The work accesses the disk.
    pub fn begin_start(self: &Arc<Self>, command: &[String], learns: bool) -> impl FnOnce() + Send + use<> {
        self.observe_and_follow(command, learns, !command.is_empty())
    }

    /// As [`LoadedImage::begin_start`], for a mount of an earlier server, which may have started long ago.
    pub(crate) fn continue_start(self: &Arc<Self>, command: &[String], learns: bool) -> impl FnOnce() + Send + use<> {
        self.observe_and_follow(command, learns, false)
    }

    fn observe_and_follow(
        self: &Arc<Self>,
        command: &[String],
        learns: bool,
        is_certain: bool,
    ) -> impl FnOnce() + Send + use<> {
        let profile = Profile::of(self.handle().name(), &self.record.platform, command);
        let profile = profile.filter(|_| learns && !self.has_recorded_pack() && !self.source().is_local());
        let start = profile.map(|profile| self.observe_start(profile, is_certain));
        let image = self.clone();
        move || {
            let trace = start.as_ref().and_then(|start| learned(image.store(), &start.profile.key));
            match start {
                Some(start) if start.profile.command.is_empty() => image.follow_when_read(&start, trace),
                _ => {
                    image.replay_predicted();
                    image.follow(trace.as_ref());
                }
            }
        }
    }

    /// Fetches what is predicted, and what the trace names, from the first read on that waits for something in them.
    fn follow_when_read(self: &Arc<Self>, start: &Start, trace: Option<Trace>) {
        let mut objects = self.predicted();
        objects.extend(trace.iter().flat_map(|trace| &trace.touches).map(|touch| touch.object));
        if trace.is_none() {
            self.follow(None);
        }
        if objects.is_empty() {
            return;
        }
        let image = Arc::downgrade(self);
        let follow = move || {
            let Some(image) = image.upgrade() else { return };
            image.replay_predicted();
            if trace.is_some() {
                image.follow(trace.as_ref());
            }
        };
        start.follow_at(objects, Box::new(follow));
    }

    /// The start that is observed: of several at once the first, with the reads of all.
    fn observe_start(&self, profile: Profile, is_certain: bool) -> Arc<Start> {
        let mut start = self.start.lock();
        if let Some(running) = start.as_ref().filter(|start| !start.is_over()) {
            return running.clone();
        }
        self.keep_start(start.take());
        let begun = Start::new(profile, is_certain);
        self.handle().observe(Some(begun.clone()));
        start.insert(begun).clone()
    }

    /// Keeps the trace of a start that is over; of any if `ends`. If something is predicted that was not read in it, the next start is
    /// observed: a container of Podman may start an hour after the image was shown.
    pub(crate) fn end_start(self: &Arc<Self>, ends: bool) {
        let Some(ended) = self.start.lock().take_if(|start| ends || start.is_over()) else { return };
        self.handle().observe(None);
        self.keep_start(Some(ended.clone()));
        if !ends && !self.predicted().is_empty() {
            self.observe_and_follow(&ended.profile.command, true, false)();
        }
    }

    fn keep_start(&self, start: Option<Arc<Start>>) {
        let Some(start) = start else { return };
        let earlier = learned(self.store(), &start.profile.key);
        let Some(trace) = self.next_trace(&start, earlier) else { return };
        match self.store().set_trace(&start.profile.key, &trace.write()) {
            Ok(()) => tracing::debug!(image = self.handle().name(), touches = trace.touches.len(), "learned a start"),
            Err(error) => tracing::debug!(image = self.handle().name(), %error, "the trace of a start is not kept"),
        }
    }

    /// The trace that replaces the earlier one; `None`: it stays.
    fn next_trace(&self, start: &Start, earlier: Option<Trace>) -> Option<Trace> {
        let header = Header::new(self.handle().name(), self.record.manifest, DEFAULT_PROFILE);
        let trace = start.trace(Header { command: start.profile.command.clone(), ..header });
        let bytes: u64 = trace.touches.iter().map(|touch| touch.range.end - touch.range.start).sum();
        if bytes == 0 {
            return self.counted(start, earlier?);
        }
        // A reader of more than about half of an image does not start a program.
        if bytes > self.record.compressed_size() {
            return None;
        }
        let mut trace = self.with_earlier(trace, earlier.as_ref());
        trace.header.starts = starts_with(earlier.as_ref(), &trace);
        Some(trace)
    }

    /// The earlier trace with one start more, of which nothing was seen: its reads are those of the starts before.
    fn counted(&self, start: &Start, mut earlier: Trace) -> Option<Trace> {
        let starts = &mut earlier.header.starts;
        if !start.is_certain || earlier.header.manifest != self.record.manifest || *starts >= MOST_STARTS {
            return None;
        }
        *starts += 1;
        Some(earlier)
    }

    /// The trace with what an earlier start read of this image's content.
    fn with_earlier(&self, trace: Trace, earlier: Option<&Trace>) -> Trace {
        let Some(mut earlier) = earlier.cloned() else { return trace };
        earlier.touches.retain(|touch| self.handle().object_size(&touch.object) == Some(touch.size));
        let both = [trace, earlier];
        let merged = merge(&both);
        let [trace, _] = both;
        merged.unwrap_or(trace)
    }
}

#[cfg(test)]
mod tests;
