//! [`Host`]: a host that starts containers of the image, with the real planner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tarpon_fetch::{Config, Fetcher, ImageHandle, Stats};
use tarpon_oci::Digest;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::clock::{Clock, Moment};
use super::early::EarlyPack;
use super::image::{self, SimulatedImage};
use super::link::Processors;
use super::network::{Client, Network, Wanted};
use super::shape::Shape;
use super::source::HostSource;
use super::store::BitStore;

/// Processor time of a start, besides that of the program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// Of each container: its client, until the first request.
    pub(super) client: Duration,
    /// Once on a host: reading the index, merging the tree, the server, the mount.
    pub(super) prepare: Duration,
    /// Of each container: the runtime, without what the recorded start contains.
    pub(super) create: Duration,
    /// Receiving, decoding, verifying and keeping a MiB of a layer or a pack.
    pub(super) per_mib: Duration,
}

/// Number of the first document among the blobs: the layer and the boot pack come before.
const FIRST_DOCUMENT: u32 = 2;
/// Descriptors of complete objects that the planner of a host keeps open: all hosts share one process here.
const OPEN_FILES: u64 = 1;
/// Work of a program that is done at once, unless it has to wait before.
const WORK: Duration = Duration::from_millis(4);
/// How often a host looks whether what it fetches ahead is complete, and for how long at most.
const IDLE_POLL: Duration = Duration::from_millis(100);
const IDLE_POLLS: usize = 6_000;

/// What all hosts have in common.
pub(super) struct Common {
    pub(super) shape: Arc<Shape>,
    pub(super) image: Arc<SimulatedImage>,
    pub(super) network: Arc<Network>,
    pub(super) costs: Costs,
    pub(super) has_pack: bool,
}

/// A host.
pub(super) struct Host {
    common: Arc<Common>,
    client: Arc<Client>,
    processors: Arc<Processors>,
    fetcher: Fetcher,
    mounted: OnceCell<(ImageHandle, Moment)>,
    /// Touches that a container has made: the kernel has their pages.
    touched: Vec<AtomicBool>,
}

impl Host {
    pub(super) fn new(common: Arc<Common>, processors: Arc<Processors>) -> Self {
        let store = Arc::new(BitStore::new(common.image.clone()));
        let decoder = common.image.decoder.clone();
        let config = Config { decoder, blocking_threads: false, open_files: OPEN_FILES, ..Config::default() };
        let fetcher = Fetcher::new(store, Handle::current(), config);
        let client = Arc::new(common.network.client());
        let touched = common.shape.touches.iter().map(|_| AtomicBool::new(false)).collect();
        Self { common, client, processors, fetcher, mounted: OnceCell::new(), touched }
    }

    fn clock(&self) -> Clock {
        self.common.network.clock
    }

    /// Starts a container at `at`, and returns when it is ready.
    pub(super) async fn start(&self, at: Moment) -> Result<Moment> {
        let costs = self.common.costs;
        self.clock().until(at).await;
        let at = self.processors.run(&self.clock(), at, costs.client).await;
        let (_, mounted) = self.mounted.get_or_try_init(|| self.mount(at)).await?;
        let at = self.processors.run(&self.clock(), at.max(*mounted), costs.create).await;
        self.touch_all(at).await
    }

    /// Requests what a mount needs, and prepares it.
    async fn mount(&self, at: Moment) -> Result<(ImageHandle, Moment)> {
        let mut at = at;
        for (document, is_blob) in
            [("manifest", false), ("config", true), ("referrers", false), ("referrers-tag", false), ("artifact", false)]
        {
            at = self.document(document, is_blob, at).await?;
        }
        let early = Arc::new(EarlyPack::default());
        let (index, boot_index) = tokio::join!(self.document("index", true, at), self.begin_pack(early.clone(), at));
        let at = index?.max(boot_index?);
        let at = self.processors.run(&self.clock(), at, self.common.costs.prepare).await;
        let Common { image, network, costs, .. } = &*self.common;
        let (image, network, client, processors) =
            (image.clone(), network.clone(), self.client.clone(), self.processors.clone());
        let table = image.table.clone();
        let source = HostSource { image, network, client, processors, early: early.clone(), per_mib: costs.per_mib };
        let handle = self.fetcher.add_image(table, Arc::new(source), "simulated");
        early.stop();
        if self.common.has_pack {
            handle.replay(&self.common.image.pack);
        }
        Ok((handle, at))
    }

    /// Requests the index of the boot pack, if there is one, and then the pack.
    async fn begin_pack(&self, early: Arc<EarlyPack>, at: Moment) -> Result<Moment> {
        if !self.common.has_pack {
            return Ok(at);
        }
        let at = self.document("boot-index", true, at).await?;
        let pack = self.common.image.pack.blob;
        if let Some((name, _)) = self.common.image.blob(&pack.digest) {
            tokio::spawn(early.fetch(self.common.network.clone(), self.client.clone(), name, pack.size, at));
        }
        Ok(at)
    }

    async fn document(&self, name: &str, is_blob: bool, at: Moment) -> Result<Moment> {
        let (number, bytes) = self.common.shape.document(name)?;
        let wanted = match is_blob {
            true => Wanted::Blob(image::name(FIRST_DOCUMENT + number, &Digest::of(name.as_bytes())), bytes),
            false => Wanted::Document(bytes),
        };
        Ok(self.common.network.whole(&self.client, wanted, at).await)
    }

    /// Reads what the recorded start read, in its order, with the work of the program between.
    async fn touch_all(&self, mut at: Moment) -> Result<Moment> {
        let mut work = Duration::ZERO;
        for (touch, touched) in self.common.shape.touches.iter().zip(&self.touched) {
            work += touch.think;
            if work >= WORK {
                at = self.processors.run(&self.clock(), at, std::mem::take(&mut work)).await;
            }
            if touched.load(Ordering::Relaxed) {
                continue;
            }
            let (offset, length) = (touch.range.start, touch.range.end - touch.range.start);
            let Some(object) = self.common.image.objects.get(touch.object).map(|object| object.digest) else {
                continue;
            };
            if self.fetcher.read_local(&object, offset, length).is_none() {
                at = self.processors.run(&self.clock(), at, std::mem::take(&mut work)).await;
                self.fetcher.read(&object, offset, length).await?;
                at = at.max(self.clock().now());
            }
            touched.store(true, Ordering::Relaxed);
        }
        Ok(self.processors.run(&self.clock(), at, work).await)
    }

    /// Waits until nothing is being fetched ahead any more, and returns the counters.
    pub(super) async fn finish(&self) -> Stats {
        let is_busy = || {
            let replays = self.mounted.get().is_some_and(|(image, _)| image.is_replaying() || image.is_downloading());
            replays || self.fetcher.pieces_in_flight() > 0
        };
        for _ in 0..IDLE_POLLS {
            if !is_busy() {
                break;
            }
            tokio::time::sleep(IDLE_POLL).await;
        }
        self.fetcher.stats()
    }
}
