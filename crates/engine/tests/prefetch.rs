//! Prefetching: what is fetched of an image before its start, what is not, and what the start finds then.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write as _;
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use flate2::write::GzEncoder;
use support::{EngineFixture as _, Served, serve};
use tarpon_engine::oci::{Compression, Digest, Source};
use tarpon_engine::registry::Contents;
use tarpon_engine::trace::{Header, Touch, Trace};
use tarpon_engine::{
    Access, BroughtStart, Engine, ErrorKind, ImageRequest, IndexChoice, LayerLimits, PrefetchExtent, Prefetched,
    Silent, StartKind,
};
use tarpon_fetch::BootIndex;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, EstargzOptions, Image, Item, Layer, estargz, tar};
use tarpon_testkit::registry::{Auth, Referrers};

/// What a start reads of the large file, and of the small one: of the latter a part, which is no file of its own.
const LARGE_PART: Range<u64> = 300_000..350_000;
const SMALL_PART: Range<u64> = 10_000..20_000;

/// Text that makes a layer of many blocks.
fn text(seed: u32, bytes: usize) -> Vec<u8> {
    let words = (0..).flat_map(|n: u32| format!("{:08x} ", n.wrapping_mul(seed)).into_bytes());
    words.take(bytes).collect()
}

fn large() -> Vec<u8> {
    text(2_654_435_761, 900_000)
}

fn small() -> Vec<u8> {
    text(7, 50_000)
}

fn tool() -> Vec<u8> {
    text(3, 9_000)
}

/// An image whose layer has no table of contents.
fn image(name: &str) -> Image {
    let items = [
        Item::file("large", large()),
        Item::file("small", small()),
        Item::file("tool", tool()),
        Item::file("name", name),
    ];
    let bytes = tar(&items, Dialect::Pax);
    // In many blocks, unlike the output of the fastest level.
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&bytes).unwrap();
    Image::of([Layer { blob: encoder.finish().unwrap(), ..Layer::plain(&bytes, Compression::Gzip) }])
}

fn start() -> Trace {
    let touch = |(content, range): (Vec<u8>, Range<u64>)| Touch {
        object: Digest::of(&content),
        size: content.len() as u64,
        range,
        at: Duration::ZERO,
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    let touches = [(large(), LARGE_PART), (small(), SMALL_PART), (tool(), 0..9_000)];
    let header = Header::new("app", Digest::of(b"some image"), "default");
    Trace { header, touches: touches.into_iter().map(touch).collect() }
}

/// A registry with `app:v1`, which has a boot pack, and `app:plain`, which has not even an index.
struct Rollout {
    fixture: Fixture,
    v1: Image,
}

impl Rollout {
    async fn new() -> Self {
        let (v1, plain) = (image("v1"), image("plain"));
        let mut contents = Contents::new();
        v1.add_to(&mut contents, "app", "v1");
        plain.add_to(&mut contents, "app", "plain");
        let fixture = Fixture::with_registry(contents, Auth::Anonymous).await;
        fixture.registry().model().set_referrers(Referrers::Kept { page: 100, filters: true });
        let rollout = Self { fixture, v1 };
        let engine = rollout.fixture.engine("maker");
        let request = rollout.request("app:v1");
        let made = engine.make_index(&request, &[start()], &Silent).await.unwrap();
        engine.publish_index(&made, &request.source, &Access::default(), None).await.unwrap();
        rollout
    }

    fn request(&self, image: &str) -> ImageRequest {
        let profile = Some("default".to_owned());
        ImageRequest { index: IndexChoice::Registry, profile, ..self.fixture.request(image) }
    }

    /// A new process on a host.
    fn engine(&self) -> Engine {
        self.fixture.engine("host")
    }

    async fn prefetch(&self, image: &str, extent: PrefetchExtent) -> tarpon_engine::Result<Prefetched> {
        self.engine().prefetch(&self.request(image), extent, &Silent).await
    }

    /// Requests to the registry since `before`, and bytes that it sent.
    fn since(&self, before: (u64, u64)) -> (u64, u64) {
        let stats = self.fixture.registry().stats();
        (stats.requests - before.0, stats.bytes - before.1)
    }

    fn layer_bytes(&self) -> u64 {
        self.v1.layers[0].blob.len() as u64
    }
}

async fn assert_start_is_local(engine: &Engine, prefetched: &Prefetched, request: &ImageRequest) {
    let prepared = engine.prepare(request, &Silent).await.unwrap();
    assert_eq!(*prepared.manifest(), prefetched.record.manifest);
    let served = serve(engine, &prepared).await;
    for (content, range) in [(large(), LARGE_PART), (small(), SMALL_PART), (tool(), 0..9_000)] {
        assert_eq!(read(&served, &content, &range).await, content[bounds(&range)], "{range:?}");
    }
}

async fn read(served: &Served, content: &[u8], range: &Range<u64>) -> Vec<u8> {
    let read = served.fetcher.read(&Digest::of(content), range.start, range.end - range.start).await;
    read.unwrap().into_bytes().to_vec()
}

fn bounds(range: &Range<u64>) -> Range<usize> {
    usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()
}

#[tokio::test]
async fn what_a_start_needs_is_fetched_nothing_else_and_the_start_needs_no_request() {
    let rollout = Rollout::new().await;
    let before = rollout.since((0, 0));
    let fetched = rollout.prefetch("app:v1", PrefetchExtent::StartOnly).await.unwrap();
    let (requests, bytes) = rollout.since(before);
    let start = fetched.start.as_ref().unwrap();
    assert_eq!((start.kind, start.missing, start.missing_before), (StartKind::BootPack, 0, start.wanted));
    assert_eq!((fetched.fetched.requests, fetched.fetched.bytes), (requests, bytes), "it reports what it cost");
    assert_eq!(start.bytes, start.wanted, "the pack");
    assert!(fetched.is_new && fetched.lacks().is_none());
    assert!(bytes < rollout.layer_bytes() / 4, "{bytes} bytes of {}", rollout.layer_bytes());
    let before = rollout.since((0, 0));
    assert_start_is_local(&rollout.engine(), &fetched, &rollout.request("app:v1")).await;
    assert_eq!(rollout.since(before), (0, 0));
}

#[tokio::test]
async fn a_second_run_asks_what_the_tag_is_and_fetches_nothing() {
    let rollout = Rollout::new().await;
    let first = rollout.prefetch("app:v1", PrefetchExtent::StartOnly).await.unwrap();
    let before = rollout.since((0, 0));
    let second = rollout.prefetch("app:v1", PrefetchExtent::Start).await.unwrap();
    let (requests, bytes) = rollout.since(before);
    assert!(requests == 1 && bytes <= rollout.v1.manifest.len() as u64, "{requests} requests, {bytes} bytes");
    let wanted = first.start.unwrap().wanted;
    assert!(!second.is_new);
    assert_eq!(second.start, Some(BroughtStart { kind: StartKind::BootPack, wanted, ..BroughtStart::UNKNOWN }));
    let by_digest = format!("app@{}", rollout.v1.digest());
    rollout.prefetch(&by_digest, PrefetchExtent::Start).await.unwrap();
    let before = rollout.since((0, 0));
    rollout.prefetch(&by_digest, PrefetchExtent::Start).await.unwrap();
    assert_eq!(rollout.since(before), (0, 0), "a digest is no other image tomorrow");
}

#[tokio::test]
async fn an_image_that_would_be_streamed_is_refused_if_only_its_start_is_wanted() {
    let rollout = Rollout::new().await;
    let refused = rollout.prefetch("app:plain", PrefetchExtent::StartOnly).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Refused);
    assert!(refused.to_string().contains("there is no table of contents and no index for it"), "{refused}");
    let engine = rollout.engine();
    assert!(engine.store().images().unwrap().is_empty(), "nothing is left of it");
    let fetched = rollout.prefetch("app:plain", PrefetchExtent::Start).await.unwrap();
    assert_eq!(fetched.start, Some(BroughtStart::UNKNOWN));
    assert!(fetched.fetched.bytes > rollout.layer_bytes() * 9 / 10);
    let again = rollout.prefetch("app:plain", PrefetchExtent::StartOnly).await.unwrap();
    assert_eq!(again.start, Some(BroughtStart::UNKNOWN), "it is prepared now");
}

#[tokio::test]
async fn a_whole_image_needs_no_request_at_all() {
    let rollout = Rollout::new().await;
    let fetched = rollout.prefetch("app:v1", PrefetchExtent::Whole).await.unwrap();
    assert!(fetched.start.is_none() && fetched.fetched.bytes > rollout.layer_bytes());
    assert!(fetched.is_new && !rollout.prefetch("app:v1", PrefetchExtent::Whole).await.unwrap().is_new);
    let before = rollout.since((0, 0));
    let engine = rollout.engine();
    assert_start_is_local(&engine, &fetched, &rollout.request("app:v1")).await;
    let prepared = engine.prepare(&rollout.request("app:v1"), &Silent).await.unwrap();
    let served = serve(&engine, &prepared).await;
    assert_eq!(read(&served, b"v1", &(0..2)).await, b"v1");
    assert_eq!(rollout.since(before), (0, 0));
}

#[tokio::test]
async fn what_an_author_marked_is_fetched_if_no_start_is_known_unless_only_the_start_is_wanted() {
    let items = [Item::file("tool", tool()), Item::file(".prefetch.landmark", b"\x0f"), Item::file("large", large())];
    let image = Image::of([estargz(&items, EstargzOptions::default())]);
    let fixture = Fixture::with_image(&image).await;
    let (engine, request) = (fixture.engine("host"), fixture.request("app:v1"));
    let only = engine.prefetch(&request, PrefetchExtent::StartOnly, &Silent).await.unwrap();
    assert_eq!(only.start, Some(BroughtStart::UNKNOWN));
    let fetched = engine.prefetch(&request, PrefetchExtent::Start, &Silent).await.unwrap();
    let start = fetched.start.unwrap();
    assert_eq!((start.kind, start.missing), (StartKind::Landmarks, 0));
    assert!(start.wanted > 0 && start.bytes < 20_000, "{start:?}");
    assert!(engine.store().contains(&Digest::of(&tool())) && !engine.store().contains(&Digest::of(&large())));
}

#[tokio::test]
async fn an_image_counts_as_used_when_it_is_prefetched_even_if_nothing_was_missing() {
    let rollout = Rollout::new().await;
    let first = rollout.prefetch("app:v1", PrefetchExtent::StartOnly).await.unwrap();
    let manifest = first.record.manifest;
    let record = rollout.engine().store().folder().join("images").join(manifest.hex()).join("record.json");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::open(record).unwrap().set_modified(long_ago).unwrap();
    for extent in [PrefetchExtent::StartOnly, PrefetchExtent::Whole] {
        rollout.prefetch("app:v1", extent).await.unwrap();
        assert!(rollout.engine().store().image(&manifest).unwrap().unwrap().last_used > 1_000_000_000, "{extent:?}");
    }
}

#[tokio::test]
async fn a_missing_pack_is_reported_and_the_image_is_prepared() {
    let image = image("v1");
    let fixture = Fixture::with_layout(&image);
    let request = ImageRequest {
        index: IndexChoice::Registry,
        profile: Some("default".to_owned()),
        ..support::request(&fixture.layout_name())
    };
    let maker = fixture.engine("maker");
    let made = maker.make_index(&request, &[start()], &Silent).await.unwrap();
    let layout = Source::OciLayout { directory: fixture.layout(), tag: None };
    maker.publish_index(&made, &layout, &Access::default(), None).await.unwrap();
    let blobs = fixture.layout().join("blobs/sha256");
    let index = BootIndex::read(&std::fs::read(blobs.join(made.boots[0].digest.hex())).unwrap()).unwrap();
    std::fs::remove_file(blobs.join(index.blob.digest.hex())).unwrap();
    let engine = fixture.engine("host");
    let prefetched = engine.prefetch(&request, PrefetchExtent::StartOnly, &Silent).await.unwrap();
    assert_eq!(prefetched.lacks().unwrap().kind, ErrorKind::Unavailable);
    let start = prefetched.start.unwrap();
    assert_eq!((start.missing, start.kind), (start.wanted, StartKind::BootPack));
    assert!(start.problem.unwrap().contains("boot pack"));
    assert_eq!(engine.store().images().unwrap().len(), 1);
}

#[tokio::test]
async fn layers_come_at_the_rate_too() {
    let image = image("v1");
    let fixture = Fixture::with_layout(&image);
    // Threads wait for the layer, so the clock is the real one. A busy machine only makes it later.
    let limits = LayerLimits { rate: NonZeroU64::new(image.layers[0].blob.len() as u64 * 4), ..LayerLimits::default() };
    let request = ImageRequest { limits, ..support::request(&fixture.layout_name()) };
    for (store, extent) in [("one", PrefetchExtent::Whole), ("another", PrefetchExtent::Start)] {
        let began = Instant::now();
        fixture.engine(store).prefetch(&request, extent, &Silent).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(240), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn the_user_hears_what_was_requested() {
    let rollout = Rollout::new().await;
    let seen = Seen::default();
    let engine = rollout.engine();
    let fetched = engine.prefetch(&rollout.request("app:v1"), PrefetchExtent::Start, &seen).await.unwrap();
    let wanted = fetched.start.unwrap().wanted;
    assert_eq!(*seen.last.lock().unwrap(), (wanted, wanted));
}

#[derive(Default)]
struct Seen {
    last: std::sync::Mutex<(u64, u64)>,
}

impl tarpon_engine::Progress for Seen {
    fn start_requested(&self, requested: u64, missing: u64) {
        *self.last.lock().unwrap() = (requested, missing);
    }
}
