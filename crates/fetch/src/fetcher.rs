//! [`Fetcher`]: the single entry point to the contents of all images of this host.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tarpon_blob::{BlobSource, ObjectStore, Opened};
use tarpon_layer::ObjectId;
use tarpon_layer::chunks::ChunkTable;
use tarpon_oci::Digest;
use tokio::runtime::Handle;

use crate::breaker::Breaker;
use crate::config::Config;
use crate::content::ObjectBytes;
use crate::distrust::Distrusted;
use crate::error::ReadError;
use crate::host::FetchHost;
use crate::image::{Image, ImageLog};
use crate::journal::{Event, Journal};
use crate::lanes::Budget;
use crate::ledger::Ledger;
use crate::local::LocalObject;
use crate::observed::{Observed, ReadObserver};
use crate::pack::BootIndex;
use crate::pack::places::{Pack, PackOrigin};
use crate::prefetch::governor::state::Governor;
use crate::prefetch::hints::Hint;
use crate::prefetch::policy::{Facts, Prefetch};
use crate::prefetch::rules::Background;
use crate::stats::{Stats, Tally};

/// Reads objects for all images of a host: from the store while they are local, through the images' sources otherwise. Cheap to
/// clone. All clones are the same fetcher.
#[derive(Clone)]
pub struct Fetcher {
    host: Arc<FetchHost>,
}

impl Fetcher {
    /// A fetcher without images, whose requests run on `runtime`.
    pub fn new(store: Arc<dyn ObjectStore>, runtime: Handle, config: Config) -> Self {
        Self { host: Arc::new(FetchHost::new(store, runtime, config)) }
    }

    /// A fetcher whose images share neither objects nor requests with those of this one. Its requests use the same room, and count
    /// towards the same statistics.
    pub fn beside(&self, store: Arc<dyn ObjectStore>) -> Self {
        Self { host: Arc::new(self.host.beside(store)) }
    }

    /// Registers an image: its objects can be read until the handle is dropped. `name` is shown to users.
    pub fn add_image(
        &self,
        table: ChunkTable<Bytes>,
        source: Arc<dyn BlobSource>,
        name: impl Into<Arc<str>>,
    ) -> ImageHandle {
        let tally = Tally { image: Arc::default(), host: self.host.counters.clone() };
        let budget = Budget::new(self.host.config.image_bytes);
        let journal = Arc::<Journal>::default();
        let breaker = Arc::new(Breaker::new(self.host.config.outage_grace, journal.clone()));
        let governor = Arc::<Governor>::default();
        let prefetch = Arc::new(Prefetch::new(Facts {
            lanes: self.host.lanes.clone(),
            bypass: self.host.bypass.clone(),
            breaker: breaker.clone(),
            governor: governor.clone(),
            source_is_local: source.is_local(),
            linger: self.host.config.whole_linger,
        }));
        let name = name.into();
        let early = Ledger::new(table.chunk_count(), self.host.images.open_early.clone());
        let observed = Observed::new(self.host.images.observers.clone());
        let image = self.host.images.add(|id| Image {
            id,
            name,
            table,
            source,
            distrusted: Distrusted::default(),
            budget,
            breaker,
            tally,
            governor,
            journal,
            log: ImageLog::default(),
            early,
            observed,
            prefetch,
        });
        self.host.flights.forget_failures();
        self.host.disputes.forget_failures();
        self.host.late_reads.forget_all();
        ImageHandle { host: self.host.clone(), image }
    }

    /// The bytes `offset..offset + length` of the object, if they are local and need no hashing first: exactly as many, fewer only
    /// at the end of the object. `None` means [`Fetcher::read`]. Blocks on the local disk alone, for as long as reading these bytes
    /// takes, so a thread that serves the kernel may call it.
    pub fn read_local(&self, object: &ObjectId, offset: u64, length: u64) -> Option<Result<ObjectBytes, ReadError>> {
        self.host.read_local(object, offset, length).sound()
    }

    /// As [`Fetcher::read_local`], of bytes that no reader requested, for the kernel's page cache.
    pub fn page_in(&self, object: &ObjectId, offset: u64, length: u64) -> Option<ObjectBytes> {
        self.host.page_in(object, offset, length)
    }

    /// The bytes `offset..offset + length` of the object, from wherever they are: exactly as many, fewer only at the end of the
    /// object, or an error within [`Config::read_deadline`]. Dropping the future ends the request if no other reader waits for it.
    /// `length` is at most [`crate::READ_BYTES`].
    pub async fn read(&self, object: &ObjectId, offset: u64, length: u64) -> Result<ObjectBytes, ReadError> {
        self.host.read(object, offset, length).await
    }

    /// Size of the object in bytes, if an image has it or the store has it whole.
    pub fn object_size(&self, object: &ObjectId) -> Option<u64> {
        let known = self.host.images.first_holding(object).map(|(_, entry)| entry.size);
        known.or_else(|| self.host.checked_size(object))
    }

    /// Objects of the added images whose names start with the first `bits` bits (1 to 64) of `start`: all of them, or two.
    pub fn objects_starting_with(&self, start: u64, bits: u32) -> Vec<ObjectId> {
        self.host.images.starting_with(start, bits)
    }

    /// Records that the kernel is about to hold an inode of the object that all images share, until [`Fetcher::release_inode`].
    /// Returns the object's size, if it is certain. Never waits for the network.
    pub fn hold_inode(&self, object: &ObjectId) -> Option<u64> {
        self.host.hold_inode(object)
    }

    /// Records that the kernel released one inode of the object.
    pub fn release_inode(&self, object: &ObjectId) {
        self.host.release_inode(object);
    }

    /// Hashes the object if it is a complete local file that must be hashed before use. Ends when that is done, or at the deadline
    /// of a read. [`Fetcher::open_local`] opens it then.
    pub fn check_local(&self, object: &ObjectId) -> Option<impl Future<Output = ()> + Send + use<>> {
        let Opened::Unchecked(size) = self.host.opened(object) else { return None };
        let (hashed, deadline) = (self.host.check(object, size), self.host.config.read_deadline);
        Some(async move { drop(tokio::time::timeout(deadline, hashed).await) })
    }

    /// The object as a plain local file, if it is complete and verified. Counts as read, because the kernel reads on without requests.
    pub fn open_local(&self, object: &ObjectId) -> Option<LocalObject> {
        let opened = self.host.complete(object);
        if opened.is_some() {
            self.host.images.was_read(object, 0..u64::MAX, Duration::ZERO);
        }
        opened
    }

    /// Closes the object's file, if it is open, so that the store can free its room after evicting it.
    pub fn close_local(&self, object: &ObjectId) {
        self.host.open.forget(object);
    }

    /// Fetches a part of an object that is likely to be read soon, behind all demand. Does not wait, and does nothing
    /// while there is no room for it.
    pub fn prefetch(&self, object: &ObjectId, range: Range<u64>) {
        self.host.prefetch(object, range);
    }

    /// Counters of all images, including removed ones.
    pub fn stats(&self) -> Stats {
        self.host.counters.snapshot()
    }

    /// Adds the counters of the host in an earlier process. See [`ImageHandle::continue_from`] for its images.
    pub fn continue_from(&self, earlier: &Stats) {
        self.host.counters.continue_from(earlier);
    }

    /// Returns when this work may send its next request, of whatever image.
    pub async fn turn(&self, work: Background) {
        work.turn(&self.host.lanes).await;
    }

    /// Number of pieces on their way. Zero when idle.
    pub fn pieces_in_flight(&self) -> usize {
        self.host.flights.count()
    }
}

/// An image that is registered with a [`Fetcher`], until dropped. Dropping it does not affect reads under way.
pub struct ImageHandle {
    pub(crate) host: Arc<FetchHost>,
    pub(crate) image: Arc<Image>,
}

impl ImageHandle {
    /// Counters of this image.
    pub fn stats(&self) -> Stats {
        self.image.tally.image.snapshot()
    }

    /// Adds the counters of the image in an earlier process, for the image alone.
    pub fn continue_from(&self, earlier: &Stats) {
        self.image.tally.image.continue_from(earlier);
    }

    /// The journal of this image.
    pub fn journal(&self) -> &Journal {
        &self.image.journal
    }

    /// Records that the kernel reads complete objects of this image without requests (mode `native`): bytes of those that were
    /// fetched early and seem not to have been read count as unknown from now on.
    pub fn kernel_reads(&self) {
        self.image.kernel_reads();
    }

    /// Passes the reads of this image to `observer` from now on, instead of an earlier one.
    pub fn observe(&self, observer: Option<Arc<dyn ReadObserver>>) {
        self.image.observed.set(observer);
    }

    /// Counts bytes of a layer that the completion in the background fetched.
    pub fn backfilled(&self, bytes: u64) {
        self.image.tally.add(|counters| &counters.bytes_backfill, bytes);
    }

    /// The name of the image, as shown to users.
    pub fn name(&self) -> &str {
        &self.image.name
    }

    /// Starts the replay of the boot pack, whose frames the image's source has as a blob, behind what readers wait for. Once per
    /// image: a second pack is ignored, and `false` is returned.
    pub fn replay(&self, index: &BootIndex) -> bool {
        self.replay_of(index, PackOrigin::Recorded)
    }

    /// As [`ImageHandle::replay`], for a boot pack of a predicted start: hints and neighbours, which know what it lacks, are fetched too.
    pub fn replay_predicted(&self, index: &BootIndex) -> bool {
        self.replay_of(index, PackOrigin::Predicted)
    }

    fn replay_of(&self, index: &BootIndex, origin: PackOrigin) -> bool {
        let (host, image) = (self.host.clone(), self.image.clone());
        let pack = Arc::new(Pack::new(index, &image.table, origin));
        let replay = |pack, replaying| self.host.runtime.spawn(host.replay(image, pack, replaying)).abort_handle();
        self.image.prefetch.start_pack(pack.clone(), |replaying| replay(pack, replaying))
    }

    /// Starts to fetch what the hints lead to, behind what readers wait for and behind a predicted boot pack. `false` if there is a recorded
    /// boot pack, which is more precise, or other hints are being followed.
    pub fn follow(&self, hints: Vec<Hint>) -> bool {
        let (host, image) = (self.host.clone(), self.image.clone());
        self.image.prefetch.start_hints(|| self.host.runtime.spawn(host.follow(image, hints)).abort_handle())
    }

    /// Stops fetching what hints lead to. Requests on the wire complete. A boot pack is not affected.
    pub fn stop_following(&self) {
        self.image.prefetch.stop_hints();
    }

    /// Whether the boot pack, or what hints lead to, is still being fetched.
    pub fn is_replaying(&self) -> bool {
        self.image.prefetch.predicts()
    }

    /// Whether the rest of the image, or a first part of it to measure the link, is being fetched because readers have waited too
    /// long for parts of it.
    pub fn is_downloading(&self) -> bool {
        self.image.prefetch.downloads()
    }

    /// An object of the image of which the kernel holds an inode with a size or with pages that this image does not confirm. Call
    /// it after the image was added and before each mount on shared inodes, and make none if there is one. Whatever the kernel gets
    /// from then on is right for this image too.
    pub fn contested_inode(&self) -> Option<ObjectId> {
        self.host.contested_inode(&self.image)
    }

    /// Stops reading a layer of this image: its index is wrong, or the layer is not the expected one, as `reason` states. Reads of
    /// incomplete objects in it fail at once, even where some of their chunks are local. Complete objects, which were hashed as a
    /// whole, and other layers stay readable.
    pub fn distrust(&self, layer: &Digest, reason: &str) {
        if !self.image.distrusted.add(layer, reason) {
            return;
        }
        let text = format!("layer {layer} of {} is no longer served: {reason}", self.image.name);
        tracing::error!("{text}");
        self.image.tally.failed(&text);
        self.image.tally.add(|counters| &counters.distrusted_layers, 1);
        self.image.journal.note(Event::Distrusted { layer: *layer, reason: reason.to_owned() });
        self.host.images.changed();
    }

    /// Size of the object in bytes, if this image has it.
    pub fn object_size(&self, object: &ObjectId) -> Option<u64> {
        self.image.table.find(object).map(|record| record.size)
    }
}

impl Drop for ImageHandle {
    fn drop(&mut self) {
        self.image.prefetch.close();
        self.host.forget_image(self.image.id);
    }
}
