//! The numbers that shape fetching, each with its reason. The limits for external input are in [`tarpon_oci::limits`]. The values
//! here are choices of this host.

use std::sync::Arc;
use std::time::Duration;

use tarpon_layer::decode::{Decoder, InProcess};

/// The settings of a [`crate::Fetcher`]. [`Config::default`] is right for a host; tests vary single numbers.
#[derive(Debug, Clone)]
pub struct Config {
    /// A read ends within this time, all queues and retries included. A process waits at most 30 s because of us: the rest is for a
    /// burst of answers, and for the second request by which the kernel follows an error.
    pub read_deadline: Duration,
    /// A source that sends nothing for this long has failed. As long as the deadline: by then no reader waits.
    pub stall_limit: Duration,
    /// After wrong bytes, and other failures that another attempt will hardly change, reads of the same piece fail at once for this long.
    pub failure_memo: Duration,
    /// As [`Config::failure_memo`], after the source failed. The kernel retries once after each EIO, at once; without a memory
    /// the user would wait twice. Longer than a burst of such second requests takes, and no longer, because the source may be back.
    pub outage_memo: Duration,
    /// No read fails in this first part of an outage: the time in which a registry restarts, or a host gets a network again. After
    /// that a read fails as soon as a request made since the read began fails. It leaves two thirds of the deadline for the
    /// requests after the source is back.
    pub outage_grace: Duration,
    /// After the store refused bytes, nothing is fetched ahead for this long: bytes that cannot be kept must not be fetched on suspicion.
    pub bypass_pause: Duration,
    /// Chunks of one layer whose gap is at most this are fetched in one request. Fetching a gap costs transfer, a second request
    /// costs a round trip: on a link of 100 Mbit/s and 10 ms a round trip is worth 122 KiB. This is a quarter of it, because
    /// requests may run side by side and unread bytes are a cost.
    pub coalesce_gap: u64,
    /// Longest range of one request, unless a single piece is longer. At 100 Mbit/s it lasts 0.7 s: round trips are negligible
    /// then, and a failed request loses little.
    pub range_bytes: u64,
    /// An object whose encoded chunks have at most this many bytes is fetched whole at first touch: one round trip's worth.
    pub whole_object_bytes: u64,
    /// Bytes of demand in flight on this host: eight of the largest pieces.
    pub host_bytes: u64,
    /// Bytes of demand in flight for one image, so that one image cannot take the whole host.
    pub image_bytes: u64,
    /// Bytes of boot packs in flight on this host, beside the demand: four of the largest requests, encoded and decoded.
    pub trace_bytes: u64,
    /// Bytes of read-ahead, prefetch and whole downloads in flight on this host, beside the demand.
    pub ahead_bytes: u64,
    /// First window of read-ahead: what the kernel reads ahead by itself.
    pub ahead_min: u64,
    /// Largest window of read-ahead: eight of the largest customary chunks (4 MiB). While one is decoded and one is read, others must be
    /// on their way, or the link idles: with two, a file of 1 GiB at 1 Gbit/s took 1.3 times as long as a pull.
    pub ahead_max: u64,
    /// A whole download stops when no reader has waited for this long: either the download is ahead of them all, or the program has
    /// what it needs. The next reader that waits restarts it at the price of one read, so it may be short.
    pub whole_linger: Duration,
    /// Decoded chunks that the store did not take, kept in memory so that a 4 MiB chunk is not fetched again for
    /// each 128 KiB of it.
    pub bypass_bytes: u64,
    /// Complete objects that are kept open. With [`Config::live_objects`] well under the promised 1,024 files.
    pub open_files: u64,
    /// Partly local objects whose state is kept in memory; each may hold one open file.
    pub live_objects: u64,
    /// Pieces that decode to at most this are decoded on the async thread, and kept there while there is room. On a busy machine
    /// this made reads of small files of 8 KiB 5 times as fast as a hand-over to another thread and back (`benches/reads.rs`).
    pub inline_bytes: u64,
    /// A stream through a whole layer waits this long for the next reader before it ends: the next read is likely to need an object
    /// a little further on, and a restart would fetch everything before it again.
    pub stream_linger: Duration,
    /// An object is not made into a plain local file when it has more zeros than this: a sparse file of 8 TiB would
    /// have to be hashed whole for nothing.
    pub publish_zeros: u64,
    /// Decodes what sources return.
    pub decoder: Arc<dyn Decoder>,
    /// Whether work that blocks on the disk or the processor has threads of its own. Tests with a virtual clock do without, so that
    /// the same things always happen in the same order.
    pub blocking_threads: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            read_deadline: Duration::from_secs(28),
            stall_limit: Duration::from_secs(28),
            failure_memo: Duration::from_secs(5),
            outage_memo: Duration::from_secs(2),
            outage_grace: Duration::from_secs(10),
            bypass_pause: Duration::from_secs(30),
            coalesce_gap: 32 << 10,
            range_bytes: 8 << 20,
            whole_object_bytes: 128 << 10,
            host_bytes: 136 << 20,
            image_bytes: 68 << 20,
            trace_bytes: 32 << 20,
            ahead_bytes: 64 << 20,
            ahead_min: 128 << 10,
            ahead_max: 32 << 20,
            whole_linger: Duration::from_secs(5),
            bypass_bytes: 32 << 20,
            open_files: 384,
            live_objects: 384,
            inline_bytes: 32 << 10,
            stream_linger: Duration::from_secs(5),
            publish_zeros: 64 << 20,
            decoder: Arc::new(InProcess),
            blocking_threads: true,
        }
    }
}

/// Bytes of one read. The kernel requests at most 1 MiB at a time; the rest is room for other callers.
pub const READ_BYTES: u64 = 16 << 20;
/// Chunks that one encoded piece is split into. Further ones are fetched when they are read. A hostile table can name one place a
/// million times, and each name costs a hash.
pub(crate) const PIECE_CHUNKS: usize = 4096;
/// How often a read replans when what it waited for was cancelled or evicted.
pub(crate) const READ_ROUNDS: u32 = 8;
/// The first probe of a source follows its failure after this time. The pause doubles with each probe that fails.
pub(crate) const PROBE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause between probes. It bounds the time to notice that a source is back, and the requests of a host to a registry
/// that is down. With the connection timeout (4 s), a reader learns within 5 s that the source cannot be reached, if others have waited for it.
pub(crate) const PROBE_LONGEST: Duration = Duration::from_secs(1);
/// The pause after this many attempts in a row that failed.
pub(crate) fn pause_after(failed: u32) -> Duration {
    (PROBE_FIRST * (1 << failed.min(10))).min(PROBE_LONGEST)
}

/// After this much silence of a probe the next one may begin: the connection of the first may be lost. A token, a redirect and the
/// first byte of a distant source take one second.
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(3);
/// Probes of one source under way. Each follows the one before after [`PROBE_PATIENCE`] and a pause, and ends after
/// [`Config::stall_limit`], so this limit is never exceeded.
pub(crate) const PROBES: usize = 10;
/// For this long after a request that was silent for all of its time, a probe that is silent for [`PROBE_PATIENCE`] counts as
/// failed. While readers arrive, probes end more often than that. After it a reader waits for the source as the first one did.
pub(crate) const SILENCE_MEMO: Duration = Duration::from_secs(60);
/// Failures that are kept in memory.
pub(crate) const MEMO_ENTRIES: u64 = 16_384;
/// A boot pack may be silent for this part of [`Config::stall_limit`].
pub(crate) const PACK_STALL_SHARE: u32 = 3;
/// The same for what comes along in a request: a reader that joined it must have time for a request of its own.
pub(crate) const ALONG_STALL_SHARE: u32 = 3;
/// Attempts at a time, of all images, to decode the first chunk of a piece before the rest has arrived: they leave threads to others.
pub(crate) const FIRST_CHUNKS: usize = 8;
/// Pieces of one request that are decoded while the next bytes arrive.
pub(crate) const DECODING: usize = 2;
