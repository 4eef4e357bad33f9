//! Boot packs, from a trace to a start that needs no layer: made, published, found, replayed, kept, taken over, and done without.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use flate2::write::GzEncoder;
use serde_json::json;
use support::{EngineFixture, Notes, Served, load, serve};
use tarpon_engine::oci::{Compression, Digest, Source};
use tarpon_engine::trace::{Header, Touch, Trace};
use tarpon_engine::{
    Access, Engine, ErrorKind, ImageIndexArtifact, ImageRequest, IndexChoice, Prepared, TraceCoverage,
};
use tarpon_fetch::BootIndex;
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, EstargzOptions, Image, ImageBuilder, Item, Layer, estargz, tar};

const PART: Range<u64> = 1_000_000..1_040_000;
const OTHER_PART: Range<u64> = 2_000_000..2_010_000;

fn tool() -> Vec<u8> {
    text(3, 9_000)
}

fn large() -> Vec<u8> {
    text(2_654_435_761, 3_000_000)
}

fn conf() -> Vec<u8> {
    b"conf".to_vec()
}

/// Text that makes a layer of many blocks.
fn text(seed: u32, bytes: usize) -> Vec<u8> {
    let mut text: Vec<u8> =
        (0..).flat_map(|n: u32| format!("{:08x} ", n.wrapping_mul(seed)).into_bytes()).take(bytes).collect();
    text.truncate(bytes);
    text
}

fn items(more: &[Item]) -> Vec<Item> {
    let mut items = vec![
        Item::file("tool", tool()).mode(0o755),
        Item::file("large", large()),
        Item::file("conf", conf()),
        Item::file("other", text(7, 50_000)),
    ];
    items.extend_from_slice(more);
    items
}

fn gzipped(items: &[Item]) -> Layer {
    let bytes = tar(items, Dialect::Pax);
    // In many blocks, unlike the output of the fastest level.
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&bytes).unwrap();
    Layer { blob: encoder.finish().unwrap(), ..Layer::plain(&bytes, Compression::Gzip) }
}

fn image() -> Image {
    Image::of([gzipped(&items(&[]))])
}

/// A start that touches these ranges, in this order.
fn start(profile: &str, touched: &[(&[u8], Range<u64>)]) -> Trace {
    let touch = |(millis, (content, range)): (u64, &(&[u8], Range<u64>))| Touch {
        object: Digest::of(content),
        size: content.len() as u64,
        range: range.clone(),
        at: Duration::from_millis(millis),
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    let header = Header::new("app", Digest::of(b"some image"), profile);
    Trace { header, touches: (0..).zip(touched).map(touch).collect() }
}

/// The tool, a part of the large file, nothing else.
fn default_start() -> Trace {
    let tool = tool();
    start("default", &[(&large(), PART), (&tool, 0..tool.len() as u64)])
}

fn web_start() -> Trace {
    start("web", &[(&large(), OTHER_PART), (&conf(), 0..4)])
}

/// A layout with one image, and a store for making its index.
struct PackFixture {
    fixture: Fixture,
    engine: Engine,
    notes: Notes,
    image: Image,
}

impl std::ops::Deref for PackFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl PackFixture {
    fn new(image: Image) -> Self {
        let fixture = Fixture::with_layout(&image);
        Self { engine: fixture.engine("maker"), fixture, notes: Notes::default(), image }
    }

    fn request(&self, profile: Option<&str>) -> ImageRequest {
        ImageRequest {
            index: IndexChoice::Registry,
            profile: profile.map(str::to_owned),
            ..support::request(&self.layout_name())
        }
    }

    async fn make(&self, starts: &[Trace]) -> ImageIndexArtifact {
        self.engine.make_index(&self.request(None), starts, &self.notes).await.unwrap()
    }

    /// Makes an index and publishes it beside the image.
    async fn publish(&self, starts: &[Trace]) -> ImageIndexArtifact {
        let made = self.make(starts).await;
        self.push(&made, &self.layout()).await;
        made
    }

    /// Makes an index with a predicted start and publishes it beside the image.
    async fn publish_predicted(&self) -> ImageIndexArtifact {
        let layout = Source::OciLayout { directory: self.layout(), tag: None };
        let made = self.engine.make_predicted_index(&self.request(None), &layout, &self.notes).await.unwrap();
        self.push(&made, &self.layout()).await;
        made
    }

    async fn push(&self, made: &ImageIndexArtifact, layout: &Path) {
        let layout = Source::OciLayout { directory: layout.to_owned(), tag: None };
        let digest = self.engine.publish_index(made, &layout, &Access::default(), None).await.unwrap();
        assert_eq!(digest, made.index_digest);
    }

    /// Removes the layers from the layout.
    fn lose_layers(&self) {
        for layer in &self.image.layers {
            std::fs::remove_file(self.blob(&layer.descriptor().digest)).unwrap();
        }
    }

    fn blob(&self, digest: &Digest) -> PathBuf {
        self.layout().join("blobs/sha256").join(digest.hex())
    }

    /// The blob that holds the frames of the pack for `profile`, according to its index.
    fn frames(&self, made: &ImageIndexArtifact, profile: &str) -> PathBuf {
        let pack = made.boots.iter().find(|pack| pack.profile == profile).unwrap();
        let index = BootIndex::read(&std::fs::read(self.blob(&pack.digest)).unwrap()).unwrap();
        self.blob(&index.blob.digest)
    }

    /// The image in an empty store, served until its pack is replayed.
    async fn start(&self, profile: &str) -> Started {
        let (fixture, notes) = (Fixture::new(), Notes::default());
        let engine = fixture.engine("store");
        let prepared = engine.prepare(&self.request(Some(profile)), &notes).await.unwrap();
        let served = serve(&engine, &prepared).await;
        let boot = load(&engine, &prepared).boot;
        if let Some(boot) = &boot {
            assert!(served.image.replay(&BootIndex::read(boot).unwrap()));
            while served.image.is_replaying() {
                tokio::task::yield_now().await;
            }
        }
        Started { _fixture: fixture, prepared, notes: notes.take(), has_pack: boot.is_some(), served }
    }
}

/// An image that is being served.
struct Started {
    _fixture: Fixture,
    prepared: Prepared,
    notes: Vec<String>,
    has_pack: bool,
    served: Served,
}

impl Started {
    async fn read(&self, content: &[u8], range: Range<u64>) -> Option<Bytes> {
        let read = self.served.fetcher.read(&Digest::of(content), range.start, range.end - range.start).await;
        read.ok().map(|read| read.into_bytes())
    }

    /// Reads and verifies what the start touched.
    async fn assert_reads(&self, start: &Trace) {
        for (content, touch) in start.touches.iter().map(|touch| (content(&touch.object), touch)) {
            let range = touch.range.clone();
            let bytes = self.read(&content, range.clone()).await.unwrap();
            assert!(bytes == content[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]);
        }
    }

    fn states(&self) -> Vec<&str> {
        self.prepared.record.layers.iter().map(|layer| layer.verification.as_str()).collect()
    }
}

fn content(object: &Digest) -> Vec<u8> {
    [tool(), large(), conf()].into_iter().find(|content| Digest::of(content) == *object).unwrap()
}

fn profiles(made: &ImageIndexArtifact) -> Vec<&str> {
    made.boots.iter().map(|pack| pack.profile.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_start_touched_is_here_before_it_is_asked_for_and_no_layer_is() {
    let fixture = PackFixture::new(image());
    let made = fixture.publish(&[default_start()]).await;
    assert_eq!(profiles(&made), ["default"]);
    fixture.lose_layers();
    let started = fixture.start("default").await;
    assert!(started.has_pack, "{:?}", started.notes);
    assert_eq!(started.states(), ["index-trusted"]);
    std::fs::remove_file(fixture.frames(&made, "default")).unwrap();
    started.assert_reads(&default_start()).await;
    assert_eq!(started.served.image.stats().last_error, None);
    // Pieces of 32 KiB, and no more of the large file than those.
    assert!(made.boots[0].decoded_size < 120_000, "{}", made.boots[0].decoded_size);
    assert_eq!(started.read(&large(), OTHER_PART).await, None, "nobody has it");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_profile_has_a_pack_of_its_own() {
    let fixture = PackFixture::new(image());
    let made = fixture.publish(&[default_start(), web_start()]).await;
    assert_eq!(profiles(&made), ["default", "web"]);
    assert_ne!(fixture.frames(&made, "default"), fixture.frames(&made, "web"));
    fixture.lose_layers();
    let started = fixture.start("web").await;
    started.assert_reads(&web_start()).await;
    assert_eq!(started.read(&large(), PART).await, None, "that is of the other profile");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_traces_make_the_same_index_everywhere() {
    let traces = [default_start(), web_start()];
    let (one, other) = (PackFixture::new(image()).make(&traces).await, PackFixture::new(image()).make(&traces).await);
    assert_eq!(one.index_digest, other.index_digest);
    let [default, web] = traces;
    assert_eq!(PackFixture::new(image()).make(&[web, default]).await.index_digest, one.index_digest, "in any order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_profile_without_a_pack_costs_a_line_and_nothing_else() {
    let fixture = PackFixture::new(image());
    fixture.publish(&[web_start()]).await;
    for profile in ["default", "none-such"] {
        let started = fixture.start(profile).await;
        assert!(!started.has_pack);
        assert_eq!(started.states(), ["index-trusted"], "the index is used all the same");
        let note = format!("the boot pack {profile} is not used: the index has none of this name");
        assert_eq!(started.notes.iter().filter(|found| **found == note).count(), 1, "{:?}", started.notes);
        started.assert_reads(&default_start()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_pack_is_reported_only_if_one_was_requested() {
    let fixture = PackFixture::new(image());
    fixture.publish(&[]).await;
    let started = fixture.start("default").await;
    assert!(!started.has_pack && started.notes.len() == 1, "{:?}", started.notes);
    let started = fixture.start("web").await;
    assert!(started.notes.iter().any(|note| note.contains("web is not used")), "{:?}", started.notes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_whose_frames_are_gone_or_wrong_is_done_without() {
    let spoils: [fn(&Path); 3] = [
        |frames| std::fs::remove_file(frames).unwrap(),
        |frames| {
            let wrong = std::fs::read(frames).unwrap().iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>();
            std::fs::write(frames, wrong).unwrap();
        },
        |frames| std::fs::write(frames, b"short").unwrap(),
    ];
    for spoil in spoils {
        let fixture = PackFixture::new(image());
        let made = fixture.publish(&[default_start()]).await;
        spoil(&fixture.frames(&made, "default"));
        let started = fixture.start("default").await;
        assert!(started.has_pack);
        started.assert_reads(&default_start()).await;
        let error = started.served.image.stats().last_error.unwrap();
        assert!(error.contains("boot pack") && error.contains("abandoned"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_whose_index_is_gone_or_wrong_leaves_the_index_of_the_layers_in_use() {
    for wrong in [None, Some(b"no such index".as_slice())] {
        let fixture = PackFixture::new(image());
        let made = fixture.publish(&[default_start()]).await;
        let file = fixture.blob(&made.boots[0].digest);
        wrong.map_or_else(|| std::fs::remove_file(&file), |bytes| std::fs::write(&file, bytes)).unwrap();
        let started = fixture.start("default").await;
        assert!(!started.has_pack);
        assert_eq!(started.states(), ["index-trusted"]);
        let lines = started.notes.iter().filter(|note| note.contains("the boot pack default is not used"));
        assert_eq!(lines.count(), 1, "{:?}", started.notes);
        started.assert_reads(&default_start()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_tables_of_contents_has_a_pack_and_no_index_of_layers() {
    let options = EstargzOptions { chunk_bytes: 100_000, ..EstargzOptions::default() };
    let fixture = PackFixture::new(Image::of([estargz(&items(&[]), options)]));
    let made = fixture.publish(&[default_start()]).await;
    assert!(made.layers.is_empty());
    let without = fixture.start("web").await;
    assert!(!without.has_pack);
    assert!(without.notes.iter().any(|note| note.contains("web is not used")), "{:?}", without.notes);

    let started = fixture.start("default").await;
    assert!(started.has_pack, "{:?}", started.notes);
    fixture.lose_layers();
    std::fs::remove_file(fixture.frames(&made, "default")).unwrap();
    started.assert_reads(&default_start()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_of_other_profiles_outlive_a_new_index() {
    let fixture = PackFixture::new(image());
    let first = fixture.publish(&[web_start()]).await;
    let second = fixture.publish(&[default_start()]).await;
    assert_eq!(profiles(&second), ["default", "web"]);
    assert_eq!(second.boots[1].digest, first.boots[0].digest, "as it was");
    assert!(second.boots[1].fit.is_none() && second.boots[0].fit.is_some());
    // And one that only describes the layers, as `tarpon index --push` makes it.
    let third = fixture.publish(&[]).await;
    assert_eq!(third.index_digest, second.index_digest, "there is nothing new in it");
    fixture.lose_layers();
    for start in [default_start(), web_start()] {
        let started = fixture.start(&start.header.profile).await;
        std::fs::rename(fixture.frames(&third, &start.header.profile), fixture.path("aside")).unwrap();
        // Cut for both, each finds the chunks that it was made of.
        started.assert_reads(&start).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_recording_takes_the_place_of_the_pack_of_its_profile() {
    let fixture = PackFixture::new(image());
    fixture.publish(&[web_start()]).await;
    let conf = start("web", &[(&conf(), 0..4)]);
    let made = fixture.publish(std::slice::from_ref(&conf)).await;
    assert_eq!(profiles(&made), ["web"]);
    assert_eq!(made.boots[0].decoded_size, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_that_are_kept_go_where_the_index_goes() {
    let fixture = PackFixture::new(image());
    fixture.publish(&[web_start()]).await;
    let made = fixture.make(&[default_start()]).await;
    let elsewhere = fixture.path("elsewhere");
    fixture.push(&made, &elsewhere).await;
    let frames = fixture.frames(&made, "web");
    let copied = elsewhere.join(frames.strip_prefix(fixture.layout()).unwrap());
    assert_eq!(std::fs::read(copied).unwrap(), std::fs::read(frames).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuilt_image_takes_over_what_it_still_has() {
    let more = [Item::file("more", b"of another image")];
    let old = PackFixture::new(Image::of([gzipped(&items(&more))]));
    old.publish(&[default_start(), web_start(), start("gone", &[(b"of another image", 0..16)])]).await;
    let old_name = old.request(None).text;

    // The tool has changed; the other touched contents are in their place, or not.
    let rebuilt = [Item::file("tool", b"a new tool"), Item::file("lib", large()), Item::file("conf", conf())];
    let fixture = PackFixture::new(Image::of([gzipped(&rebuilt)]));
    let made = fixture.engine.make_index_from(&fixture.request(None), &old_name, None, &fixture.notes).await.unwrap();
    assert_eq!(profiles(&made), ["default", "web"]);
    let TraceCoverage { files, bytes, kept_files, kept_bytes } = made.boots[0].fit.unwrap();
    assert_eq!((files, kept_files, bytes - kept_bytes), (2, 1, tool().len() as u64));
    assert!(kept_bytes >= PART.end - PART.start);
    assert!(fixture.notes.take().iter().any(|note| note.contains("nothing of what the start gone touched")));
    fixture.push(&made, &fixture.layout()).await;
    fixture.lose_layers();
    let started = fixture.start("default").await;
    started.assert_reads(&start("default", &[(&large(), PART)])).await;

    let one =
        fixture.engine.make_index_from(&fixture.request(None), &old_name, Some("web"), &fixture.notes).await.unwrap();
    assert!(one.boots.iter().any(|pack| pack.profile == "web" && pack.fit.is_some()));
    assert!(one.boots.iter().any(|pack| pack.profile == "default" && pack.fit.is_none()), "kept, as ever");
}

/// The image, started by the tool with a configuration.
fn with_command() -> Image {
    ImageBuilder::new().layer(gzipped(&items(&[]))).config("Cmd", json!(["/tool", "conf"])).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicted_start_is_here_before_it_is_asked_for_although_nothing_was_recorded() {
    let fixture = PackFixture::new(with_command());
    let made = fixture.publish_predicted().await;
    assert_eq!(profiles(&made), ["predicted"]);
    fixture.lose_layers();
    let started = fixture.start("default").await;
    assert!(started.has_pack, "{:?}", started.notes);
    let tool = tool();
    started.assert_reads(&start("default", &[(&tool, 0..tool.len() as u64), (&conf(), 0..4)])).await;
    assert_eq!(started.read(&large(), PART).await, None, "no argument names it");
    for profile in ["web", "none"] {
        assert!(!fixture.start(profile).await.has_pack, "{profile} is another start");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_default_start_replaces_the_predicted_one_for_good() {
    let fixture = PackFixture::new(with_command());
    fixture.publish_predicted().await;
    let web = fixture.publish(&[web_start()]).await;
    assert_eq!(profiles(&web), ["predicted", "web"], "that is another start");
    let recorded = fixture.publish(&[default_start()]).await;
    assert_eq!(profiles(&recorded), ["default", "web"]);
    assert_eq!(profiles(&fixture.publish_predicted().await), ["default", "web"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_a_command_gets_an_index_and_no_pack() {
    let fixture = PackFixture::new(image());
    assert!(profiles(&fixture.publish_predicted().await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_tables_of_contents_gets_the_pack_of_a_predicted_start_or_nothing() {
    let image =
        |command| ImageBuilder::new().layer(estargz(&items(&[]), EstargzOptions::default())).config("Cmd", command);
    let fixture = PackFixture::new(image(json!(["/tool", "conf"])).build());
    let made = fixture.publish_predicted().await;
    assert!(made.layers.is_empty() && profiles(&made) == ["predicted"], "{made:?}");
    assert_eq!(fixture.publish_predicted().await.index_digest, made.index_digest, "there is nothing new in it");
    let started = fixture.start("default").await;
    assert!(started.has_pack, "{:?}", started.notes);
    fixture.lose_layers();
    let tool = tool();
    started.assert_reads(&start("default", &[(&tool, 0..tool.len() as u64), (&conf(), 0..4)])).await;

    let unknown = PackFixture::new(image(json!(["/none"])).build());
    let layout = Source::OciLayout { directory: unknown.layout(), tag: None };
    let made = unknown.engine.make_predicted_index(&unknown.request(None), &layout, &unknown.notes).await;
    let error = made.unwrap_err();
    assert!(error.kind == ErrorKind::Refused && error.to_string().contains("table of contents"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicted_pack_is_not_taken_over_for_another_image() {
    let fixture = PackFixture::new(with_command());
    fixture.publish_predicted().await;
    let text = fixture.request(None).text;
    let none = fixture.engine.make_index_from(&fixture.request(None), &text, None, &fixture.notes).await.unwrap_err();
    assert_eq!(none.kind, ErrorKind::NotFound, "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_become_a_pack_is_an_error() {
    let fixture = PackFixture::new(image());
    let request = fixture.request(None);
    let twice = fixture.engine.make_index(&request, &[web_start(), web_start()], &fixture.notes).await.unwrap_err();
    assert!(twice.kind == ErrorKind::Refused && twice.cause().to_string().contains("\"web\""), "{twice}");
    let nothing = start("default", &[(b"of another image", 0..16)]);
    let nothing = fixture.engine.make_index(&request, &[nothing], &fixture.notes).await.unwrap_err();
    assert_eq!(nothing.kind, ErrorKind::Refused, "{nothing}");
    fixture.publish(&[web_start()]).await;
    for profile in [Some("none-such"), Some("default")] {
        let none = fixture.engine.make_index_from(&request, &request.text, profile, &fixture.notes).await.unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound, "{none}");
    }
}
