//! A fetcher with its images and sources, from the start of a process to its end, and what must be true of it at any time.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use tarpon_fetch::{Config, Fetcher, ImageHandle, Stats};
use tarpon_testkit::seeds::Random;
use tarpon_testkit::source::{MemorySource, MemoryStore, Traffic};
use tokio::runtime::Handle;

use crate::contents::{Contents, ImageContents};

/// Probes of one source at a time.
const PROBES: usize = 10;
/// Tasks of one image that are no requests: a boot pack, hints, a whole download.
const PREFETCHERS: usize = 3;
/// A budget counts in units of this size.
const UNIT: u64 = 1 << 10;

/// A process.
pub(crate) struct Life<'c> {
    pub(crate) contents: &'c Contents,
    pub(crate) config: Config,
    pub(crate) fetcher: Fetcher,
    pub(crate) images: Vec<ImageHandle>,
    pub(crate) hostile: Option<ImageHandle>,
    pub(crate) sources: Vec<Arc<MemorySource>>,
    traffic: Traffic,
    /// Number of processes of the run until now: tasks of the earlier ones go on in this simulation.
    number: usize,
    most_tasks: Cell<usize>,
}

/// Which images a process has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Images {
    /// Number of honest ones.
    pub(crate) honest: usize,
    /// Whether there is a hostile one, and whether it comes first.
    pub(crate) hostile: Option<bool>,
}

impl<'c> Life<'c> {
    pub(crate) fn begin(
        contents: &'c Contents,
        store: &MemoryStore,
        config: &Config,
        images: Images,
        number: usize,
    ) -> Self {
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), config.clone());
        let traffic = Traffic::default();
        let mut sources = Vec::new();
        let mut add = |image: &ImageContents| {
            let blobs: [Bytes; 2] = [image.layer.bytes.clone(), image.pack.1.clone()];
            let source = Arc::new(MemorySource::measured_by(blobs, &traffic));
            sources.push(source.clone());
            fetcher.add_image(image.table.clone(), source, "simulated:latest")
        };
        let before = (images.hostile == Some(true)).then(|| add(&contents.hostile));
        let honest = contents.honest.iter().take(images.honest).map(&mut add).collect();
        let hostile = before.or_else(|| (images.hostile == Some(false)).then(|| add(&contents.hostile)));
        let config = config.clone();
        Self { contents, config, fetcher, images: honest, hostile, sources, traffic, number, most_tasks: Cell::new(0) }
    }

    /// Notes the number of tasks.
    pub(crate) fn sample(&self) {
        self.most_tasks.set(self.most_tasks.get().max(Handle::current().metrics().num_alive_tasks()));
    }

    /// No queue grew without limit: tasks, pieces, and bytes on the wire.
    pub(crate) fn is_bounded(&self, seed: u64) {
        let (limits, images) = (&self.contents.limits, self.images.len() + usize::from(self.hostile.is_some()));
        let pieces = self.fetcher.pieces_in_flight();
        assert!(pieces <= limits.pieces, "seed {seed}: {pieces} pieces under way, and there are {}", limits.pieces);
        let most = limits.pieces + images.max(3) * (PROBES + PREFETCHERS) + self.contents.objects.len();
        let tasks = self.most_tasks.get();
        assert!(tasks <= self.number * most, "seed {seed}: {tasks} tasks, and no more than {most} have work");
        let peaks = self.traffic.peaks();
        if self.contents.has_streams() || self.config.coalesce_gap > 0 {
            return;
        }
        // A request that needs more than the whole budget runs alone.
        let run = limits.piece.max(self.config.range_bytes * limits.growth) + limits.neighbours;
        let room = |bytes: u64| (bytes / UNIT * UNIT).max(UNIT).max(run);
        let Config { host_bytes, trace_bytes, ahead_bytes, .. } = self.config;
        let room = room(host_bytes) + room(trace_bytes) + room(ahead_bytes) + (PROBES * images.max(3)) as u64;
        assert!(peaks.bytes <= room, "seed {seed}: {} bytes on the wire, and there is room for {room}", peaks.bytes);
    }

    /// No bytes were fetched by two requests at once. Where bytes are evicted they may be: a request brings local bytes between
    /// those that it was made for, rather than leave a gap.
    pub(crate) fn fetches_nothing_twice(&self, seed: u64) {
        if let Some(twice) = self.traffic.peaks().twice.filter(|_| self.config.coalesce_gap == 0) {
            panic!("seed {seed}: {twice}");
        }
    }

    /// Waits until nothing is under way.
    pub(crate) async fn is_idle(&self, seed: u64) {
        for _ in 0..200 {
            if self.fetcher.pieces_in_flight() == 0 && self.fetcher.stats().requests_in_flight == 0 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
        let stats = self.fetcher.stats();
        let left = (self.fetcher.pieces_in_flight(), stats.requests_in_flight, stats.bytes_in_flight);
        assert_eq!(left, (0, 0, 0), "seed {seed}: something never ended");
    }

    pub(crate) fn stats(&self) -> Stats {
        self.fetcher.stats()
    }

    /// Starts one of the prefetchers, or stops one.
    pub(crate) fn prefetch(&self, random: &mut Random) {
        let image = random.index(self.images.len());
        match random.below(6) {
            0 => {
                self.images[image].replay(&self.contents.honest[image].pack.0);
            }
            1 | 2 => {
                self.images[image].follow(self.contents.hints(random));
            }
            3 => self.images[image].stop_following(),
            _ => {
                let (object, bytes) = &self.contents.objects[random.index(self.contents.objects.len())];
                let start = random.below(bytes.len() as u64);
                self.fetcher.prefetch(object, start..start + random.below(30_000));
            }
        }
    }
}
