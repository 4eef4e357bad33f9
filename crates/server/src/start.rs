//! [`Start`]: observes what the start of an image reads.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tarpon_fetch::{ReadObserver, START};
use tarpon_oci::{Digest, Hasher, Source};
use tarpon_trace::{Header, Origin, Recorder, Trace};

/// Reads that are recorded of one start. A large machine-learning image reads about 20,000 files.
const READS: usize = 32_768;

/// Where the trace of a start is kept, and for whom it is.
#[derive(Debug)]
pub(crate) struct Profile {
    /// The name of the trace in the store.
    pub(crate) key: Digest,
    /// The command that starts the image; empty if it is not known.
    pub(crate) command: Vec<String>,
}

impl Profile {
    /// `None`: the image is in no registry.
    pub(crate) fn of(image: &str, platform: &str, command: &[String]) -> Option<Self> {
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
    pub(crate) profile: Profile,
    /// Whether it is known to be a start even if no reader waits.
    pub(crate) is_certain: bool,
    recorder: Recorder,
    /// The first read that waited.
    began: OnceLock<Instant>,
    reads: AtomicUsize,
    /// The objects of an earlier trace, and the call that follows it.
    pending: Mutex<Option<(HashSet<Digest>, Follow)>>,
}

type Follow = Box<dyn FnOnce() + Send>;

impl Start {
    pub(crate) fn new(profile: Profile, is_certain: bool) -> Arc<Self> {
        Arc::new(Self {
            profile,
            is_certain,
            recorder: Recorder::new(),
            began: OnceLock::new(),
            reads: AtomicUsize::new(0),
            pending: Mutex::default(),
        })
    }

    /// Calls `follow` after the next read that waits for one of these objects.
    pub(crate) fn follow_at(&self, objects: HashSet<Digest>, follow: Follow) {
        *self.pending.lock() = Some((objects, follow));
    }

    fn follow_if_it_begins_with(&self, object: &Digest) {
        let follow = self.pending.lock().take_if(|(objects, _)| objects.contains(object));
        if let Some((_, follow)) = follow {
            follow();
        }
    }

    /// What it read up to now.
    pub(crate) fn trace(&self, header: Header) -> Trace {
        self.recorder.finish(header)
    }

    /// Whether reads belong to it no longer.
    pub(crate) fn is_over(&self) -> bool {
        self.began.get().is_some_and(|began| began.elapsed() > START)
    }
}

impl ReadObserver for Start {
    fn was_read(&self, object: &Digest, size: u64, range: Range<u64>, waited: Duration) -> bool {
        if waited > Duration::ZERO {
            self.follow_if_it_begins_with(object);
            let _another_thread_was_first = self.began.set(Instant::now());
        }
        if self.began.get().is_none() || self.is_over() || self.reads.fetch_add(1, Relaxed) >= READS {
            return false;
        }
        let from = if waited > Duration::ZERO { Origin::Demand } else { Origin::Local };
        self.recorder.touch(*object, size, range, from, waited);
        true
    }
}
