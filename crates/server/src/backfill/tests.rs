//! Images mounted by a correct or a wrong index, and completed from a scripted registry.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tarpon_blob::Fault;
use tarpon_fetch::ReadError;
use tarpon_images::index::artifact::{self, Indexed};
use tarpon_images::prepare::complete::Completion;
use tarpon_images::prepare::preparation::index_layers;
use tarpon_images::sources::InProcess;
use tarpon_images::{ImageRequest, Images, IndexChoice, Prepared, Silent, access, admission};
use tarpon_layer::{LayerIndex, Node};
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Blob, EMPTY_CONFIG, NewDescriptor};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{
    Dialect, EstargzOptions, Image as TestImage, ImageBuilder, Item, Layer, SOCI_V2, Ztoc, estargz, soci_manifest, tar,
    with_soci_index,
};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tarpon_testkit::source::{MemorySource, Then};
use tempfile::TempDir;
use tokio::time::Instant;

use super::*;
use crate::ServerSetup;

/// Deterministic bytes that do not compress.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

const BASE: u64 = 1;
const APP: u64 = 2;
const LAZY: u64 = 3;
const FILE: usize = 300_000;
const POINT: &str = "/nowhere";

fn files(seed: u64, name: &str) -> [Item; 2] {
    [Item::file(name, noise(seed, FILE)), Item::file(format!("{name}.other"), noise(seed + 10, FILE))]
}

/// Two plain layers and one with a table of contents.
fn image() -> TestImage {
    let plain = |seed, name| Layer::plain(&tar(&files(seed, name), Dialect::Pax), tarpon_oci::Compression::Gzip);
    let lazy = estargz(&files(LAZY, "lazy"), EstargzOptions::default());
    ImageBuilder::new().layer(plain(BASE, "base")).layer(plain(APP, "app")).layer(lazy).build()
}

struct BackfillFixture {
    folder: TempDir,
    server: TestServer,
    image: TestImage,
    stores: AtomicU64,
}

impl BackfillFixture {
    async fn new(image: TestImage) -> Self {
        Self::serving(Contents::new(), image).await
    }

    /// The image, with a SOCI index that `spoil` modifies.
    async fn with_soci(spoil: impl Fn(&mut Ztoc)) -> Self {
        let image = image();
        let plain = &image.layers[..2];
        let ztoc = |layer: &Layer| {
            let mut ztoc = Ztoc::of(&layer.blob, 100_000);
            spoil(&mut ztoc);
            ztoc.bytes()
        };
        let ztocs: Vec<Vec<u8>> = plain.iter().map(ztoc).collect();
        let pairs: Vec<(&Layer, &[u8])> = plain.iter().zip(&ztocs).map(|(layer, ztoc)| (layer, &ztoc[..])).collect();
        let soci = soci_manifest(SOCI_V2, &pairs, None);
        let image = with_soci_index(&image, &soci);
        let mut contents = Contents::new();
        for ztoc in ztocs {
            contents.add_blob(ztoc);
        }
        contents.add_manifest(None, tarpon_oci::media_type::OCI_MANIFEST, soci);
        Self::serving(contents, image).await
    }

    async fn serving(mut contents: Contents, image: TestImage) -> Self {
        for (_, blob) in image.blobs() {
            contents.add_blob(blob);
        }
        contents.add_manifest(Some(("app", "v1")), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
        let server = TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap();
        Self { folder: tempfile::tempdir().unwrap(), server, image, stores: AtomicU64::default() }
    }

    fn request(&self) -> ImageRequest {
        let text = format!("{}/app:v1", self.server.host());
        ImageRequest {
            index: IndexChoice::Registry,
            ..ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap())
        }
    }

    /// A store of its own.
    fn images(&self) -> Images {
        Images::open(&self.folder.path().join(self.stores.fetch_add(1, Ordering::Relaxed).to_string())).unwrap()
    }

    /// Publishes an index of the image that `alter` modifies. Returns its digest.
    async fn publish(&self, alter: impl FnOnce(&mut [Indexed])) -> Digest {
        let request = self.request();
        let repository = access::open(&request.text, &request.access).await.unwrap();
        let image = admission::resolve(&repository, &request.access, &request.platform).await.unwrap();
        let part = self.images().for_image(&request.text, &request.access).unwrap();
        let layers = index_layers(&part, &repository, &image, &Silent).await.unwrap();
        let streamed = layers.into_iter().filter(|layer| layer.was_streamed() && layer.needs_index());
        let mut indexed: Vec<Indexed> = streamed
            .map(|layer| Indexed { blob: layer.blob, compression: layer.compression, index: layer.index })
            .collect();
        alter(&mut indexed);
        let blob = artifact::blob(&indexed).unwrap();
        let subject = Blob { digest: *image.manifest.digest(), size: image.manifest.bytes.len() as u64 };
        let subject = NewDescriptor::new(image.manifest.media_type.clone(), subject);
        let manifest = artifact::manifest(&blob, [], subject, None).unwrap();
        let index = *manifest.digest();
        let target = access::open_destination(&request.source, &request.access).unwrap();
        for bytes in [Bytes::from_static(EMPTY_CONFIG), blob] {
            target.push_bytes(bytes).await.unwrap();
        }
        target.push_manifest(OCI_MANIFEST, manifest.into_inner(), None).await.unwrap();
        index
    }

    fn layer(&self, number: usize) -> Digest {
        self.image.layers[number].descriptor().digest
    }

    fn requests(&self) -> u64 {
        self.server.stats().requests
    }
}

/// The parts of a server.
struct Host {
    images: Images,
    fetcher: Fetcher,
    loaded: Arc<LoadedImages>,
    backfills: Backfills,
}

impl Host {
    fn new(images: Images) -> Self {
        let store = images.store().clone();
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), tarpon_fetch::Config::default());
        let loaded = Arc::new(LoadedImages::new(store.clone(), fetcher.clone(), Arc::default(), Arc::new(InProcess)));
        let backfills = Backfills::new(store, fetcher.clone(), Handle::current(), loaded.clone());
        Self { images, fetcher, loaded, backfills }
    }

    fn mount(&self, prepared: &Prepared, how: Backfill) -> Arc<LoadedImage> {
        let request = MountRequest { backfill: how, ..MountRequest::for_image(prepared, POINT.into()) };
        let image = self.loaded.load(&request).unwrap();
        self.backfills.begin(&request, &image);
        image
    }

    /// Records the mount as the server does, so that the image is neither removed nor evicted.
    fn record_mount(&self, prepared: &Prepared) {
        self.images.store().record_mount(POINT.as_ref(), prepared.manifest(), "app", "{}").unwrap();
    }

    fn states(&self, prepared: &Prepared) -> Vec<String> {
        let record = self.images.store().image(prepared.manifest()).unwrap().unwrap();
        record.layers.into_iter().map(|layer| layer.verification.to_string()).collect()
    }

    async fn read(&self, content: &[u8]) -> Result<(), ReadError> {
        let bytes = self.fetcher.read(&Digest::of(content), 0, content.len() as u64).await?;
        assert!(bytes.into_bytes()[..] == *content);
        Ok(())
    }
}

#[tokio::test]
async fn an_image_that_is_mounted_by_a_true_index_is_completed_and_verified() {
    let fixture = BackfillFixture::new(image()).await;
    fixture.publish(|_| ()).await;
    for how in [Backfill::Idle, Backfill::Now] {
        let host = Host::new(fixture.images());
        let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
        assert_eq!(host.states(&prepared), ["index-trusted", "index-trusted", "toc-verified"]);
        host.mount(&prepared, how);
        let status = host.backfills.settled(prepared.manifest()).await;
        assert_eq!((status.state, status.layers_done, status.layers), (BackfillState::Complete, 3, 3), "{status:?}");
        assert_eq!((status.how, status.problem, status.alarms), (how, None, Vec::new()));
        assert_eq!(host.states(&prepared), ["diffID-verified"; 3]);
        let before = fixture.requests();
        for seed in [BASE, APP, LAZY] {
            host.read(&noise(seed, FILE)).await.unwrap();
        }
        // A second server finds nothing left to do.
        let again = Host::new(host.images.clone());
        again.mount(&prepared, how);
        assert_eq!(again.backfills.settled(prepared.manifest()).await.state, BackfillState::Complete);
        assert_eq!(fixture.requests(), before, "nobody was asked for anything");
    }
}

#[tokio::test]
async fn what_is_streamed_is_kept_for_a_server_that_comes_after_one_that_was_killed() {
    let fixture = BackfillFixture::new(image()).await;
    fixture.publish(|_| ()).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    let source = host.mount(&prepared, Backfill::Off).source();
    assert!(host.backfills.status(prepared.manifest()).is_none());
    let completion = Completion::open(host.images.store().clone(), prepared.manifest(), source.clone()).unwrap();
    Arc::new(completion).layer(0).await.unwrap();
    let before = fixture.requests();
    let next = Completion::open(host.images.store().clone(), prepared.manifest(), source).unwrap();
    Arc::new(next).layer(0).await.unwrap();
    assert_eq!(fixture.requests(), before, "it is here");
}

#[tokio::test]
async fn an_image_with_a_soci_index_is_seen_whole_and_goes_on_being_read_by_it() {
    let fixture = BackfillFixture::with_soci(|_| ()).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    assert_eq!(host.states(&prepared), ["soci-verified", "soci-verified", "toc-verified"]);
    host.record_mount(&prepared);
    host.mount(&prepared, Backfill::Now);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.layers_done), (BackfillState::Complete, 3), "{status:?}");
    assert_eq!((status.problem.as_deref(), status.alarms), (Some(BY_INDEX_STILL), Vec::new()));
    assert_eq!(host.states(&prepared), ["soci-verified", "soci-verified", "diffID-verified"]);
    host.images.store().forget_mount(POINT.as_ref()).unwrap();
    host.images.pull(&fixture.request(), &Silent).await.unwrap();
    assert_eq!(host.states(&prepared), ["diffID-verified"; 3], "as it says");
}

#[tokio::test]
async fn a_soci_index_that_changes_a_mode_raises_an_alarm() {
    let fixture = BackfillFixture::with_soci(|ztoc| ztoc.entries[0].mode = 0o4755).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    host.record_mount(&prepared);
    host.mount(&prepared, Backfill::Now);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.alarms.len()), (BackfillState::Alarm, 2), "{status:?}");
    assert_eq!(host.states(&prepared), ["soci-refuted", "soci-refuted", "toc-verified"]);
}

/// The result of completing an image whose index is wrong about the file `app`.
async fn alarm(alter: impl Fn(&mut LayerIndex)) -> (BackfillFixture, Host, Prepared, Digest) {
    let fixture = BackfillFixture::new(image()).await;
    let layer = fixture.layer(1);
    let index = fixture
        .publish(|layers| {
            let lied = layers.iter_mut().find(|indexed| indexed.blob.digest == layer).unwrap();
            alter(&mut lied.index);
        })
        .await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    let image = host.mount(&prepared, Backfill::Now);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.layers_done, status.layers), (BackfillState::Alarm, 2, 3), "{status:?}");
    assert_eq!(status.alarms, [format!("layer {layer}: the index {index} is wrong about /app")]);
    assert_eq!(host.states(&prepared), ["index-trusted", "index-refuted", "toc-verified"]);
    let counters = image.counters();
    assert_eq!(counters.distrusted_layers, 1);
    assert!(counters.last_error.is_some_and(|error| error.contains(&index.to_string())));
    for seed in [BASE, LAZY] {
        host.read(&noise(seed, FILE)).await.unwrap();
    }
    (fixture, host, prepared, index)
}

fn node<'a>(index: &'a mut LayerIndex, path: &[u8]) -> &'a mut tarpon_layer::Entry {
    index.entries.iter_mut().find(|entry| entry.path.as_bytes() == path).unwrap()
}

/// Cuts a file in two pieces with these digests. For a file in one piece, a wrong digest would show at once.
fn cut(index: &mut LayerIndex, path: &[u8], digest: impl Fn(Range<usize>) -> Digest) {
    let Node::File(content) = &node(index, path).node else { unreachable!() };
    let object = content.object;
    let places = |of: &Digest| if *of == object { &[1000][..] } else { &[] };
    let at = |number: u64| usize::try_from(number).unwrap();
    let digest = |_: &Digest, offset, size| Ok::<_, Infallible>(digest(at(offset)..at(offset + size)));
    let Ok(cut) = index.cut(places, digest);
    *index = cut;
}

/// A digest that no chunk has, different for each range: an index that gives two lengths for one digest is rejected when it is read.
fn wrong(range: Range<usize>) -> Digest {
    Digest::of(format!("evil {range:?}").as_bytes())
}

/// The chunks of the file `app` itself, under the name of a file that does not exist.
fn make_up(index: &mut LayerIndex, content: &[u8]) {
    let app = noise(APP, FILE);
    cut(index, b"app", |range| Digest::of(&app[range]));
    if let Node::File(file) = &mut node(index, b"app").node {
        file.object = Digest::of(content);
    }
}

#[tokio::test]
async fn an_index_that_makes_up_a_file_raises_an_alarm_and_what_it_made_up_is_not_served() {
    let made_up = b"what is not in the layer";
    let (fixture, host, prepared, index) = alarm(|index| make_up(index, made_up)).await;
    let before = fixture.requests();
    let error = host.fetcher.read(&Digest::of(made_up), 0, 1000).await.unwrap_err();
    assert!(matches!(&error, ReadError::Distrusted { layer, .. } if *layer == fixture.layer(1)), "{error}");
    assert!(error.to_string().contains(&index.to_string()), "{error}");
    assert_eq!(fixture.requests(), before, "nobody is asked any more");
    host.read(&noise(APP + 10, FILE)).await.expect("what is complete was hashed as a whole");

    // A second server reads it from the record.
    let again = Host::new(host.images.clone());
    again.mount(&prepared, Backfill::Idle);
    assert_eq!(again.backfills.settled(prepared.manifest()).await.alarms.len(), 1);
    assert_eq!(fixture.requests(), before, "what was streamed once tells");
    let again = Host::new(host.images.clone());
    again.mount(&prepared, Backfill::Off);
    let error = again.fetcher.read(&Digest::of(made_up), 0, 1000).await.unwrap_err();
    assert!(matches!(error, ReadError::Distrusted { .. }), "{error}");

    // Nothing is mounted here: the next preparation of the image gets another record.
    let anew = ImageRequest { index: IndexChoice::None, ..fixture.request() };
    let prepared = again.images.prepare(&anew, &Silent).await.unwrap();
    assert_eq!(again.states(&prepared), ["diffID-verified", "diffID-verified", "toc-verified"]);
    again.mount(&prepared, Backfill::Off);
    let error = again.fetcher.read(&Digest::of(made_up), 0, 1000).await.unwrap_err();
    assert!(matches!(error, ReadError::UnknownObject(_)), "the lie is forgotten: {error}");
}

/// The same through the kernel.
#[tokio::test(flavor = "multi_thread")]
async fn a_mount_of_what_an_index_made_up_gives_errors_and_the_rest_of_it_goes_on() {
    if !std::path::Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
        println!("skipped: needs root and /dev/fuse");
        return;
    }
    let fixture = BackfillFixture::new(image()).await;
    let layer = fixture.layer(1);
    let alter = |layers: &mut [Indexed]| {
        let lied = layers.iter_mut().find(|indexed| indexed.blob.digest == layer).unwrap();
        make_up(&mut lied.index, b"what is not in the layer");
    };
    let index = fixture.publish(alter).await;
    let images = fixture.images();
    let prepared = images.prepare(&fixture.request(), &Silent).await.unwrap();
    let point = fixture.folder.path().join("mnt");
    std::fs::create_dir(&point).unwrap();
    let server = crate::Server::start(ServerSetup::of(&images)).await.unwrap();
    let request = MountRequest { backfill: Backfill::Now, ..MountRequest::for_image(&prepared, point.clone()) };
    server.mount(request).await.unwrap();
    server.backfills().settled(prepared.manifest()).await;
    let read = async |name: &str| {
        let path = point.join(name);
        tokio::task::spawn_blocking(move || std::fs::read(path)).await.unwrap()
    };
    let error = read("app").await.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    for (name, seed) in [("base", BASE), ("app.other", APP + 10), ("lazy", LAZY)] {
        assert!(read(name).await.unwrap() == noise(seed, FILE), "{name}");
    }
    let status = server.status().remove(0);
    let alarms = status.backfill.unwrap().alarms;
    assert_eq!(alarms, [format!("layer {layer}: the index {index} is wrong about /app")]);
    assert_eq!(status.verification[1].state, tarpon_store::Verification::IndexRefuted);
    assert_eq!(status.counters["distrusted_layers"], 1);
    assert!(status.failed_reads > 0 && status.last_error.unwrap().contains(&index.to_string()));
    server.stop(true).await;
    assert!(std::fs::read_dir(&point).unwrap().next().is_none(), "nothing is mounted any more");
}

#[tokio::test]
async fn an_index_that_changes_a_mode_raises_an_alarm() {
    alarm(|index| node(index, b"app").attributes.mode = 0o4755).await;
}

#[tokio::test]
async fn an_index_that_lists_wrong_chunks_of_a_true_file_raises_an_alarm() {
    alarm(|index| cut(index, b"app", wrong)).await;
}

#[tokio::test]
async fn a_pull_refuses_an_index_that_lists_wrong_chunks_too() {
    let fixture = BackfillFixture::new(image()).await;
    fixture
        .publish(|layers| {
            let index = &mut layers[0].index;
            let path = index.entries[0].path.as_bytes().to_vec();
            cut(index, &path, wrong);
        })
        .await;
    let images = fixture.images();
    let prepared = images.prepare(&fixture.request(), &Silent).await.unwrap();
    let error = images.pull(&fixture.request(), &Silent).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused, "{error}");
    assert!(images.store().image(prepared.manifest()).unwrap().is_none(), "its record is removed");
}

#[tokio::test]
async fn two_layers_that_are_lied_about_are_two_alarms() {
    let fixture = BackfillFixture::new(image()).await;
    fixture
        .publish(|layers| {
            for indexed in layers {
                indexed.index.entries[0].attributes.uid += 1;
            }
        })
        .await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    host.mount(&prepared, Backfill::Now);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.alarms.len()), (BackfillState::Alarm, 2), "{status:?}");
    assert_eq!(host.states(&prepared), ["index-refuted", "index-refuted", "toc-verified"]);
}

/// Completes an image from a scripted source.
async fn scripted(replies: Vec<Then>) -> (BackfillStatus, Duration, Vec<String>) {
    let fixture = BackfillFixture::new(image()).await;
    fixture.publish(|_| ()).await;
    let images = fixture.images();
    let prepared = images.prepare(&fixture.request(), &Silent).await.unwrap();
    let source = Arc::new(MemorySource::new(fixture.image.layers.iter().map(|layer| layer.blob.clone().into())));
    source.script(replies.into_iter().map(Into::into));
    let completion = Completion::open(images.store().clone(), prepared.manifest(), source).unwrap();
    let (reported, mut status) = watch::channel(BackfillStatus::begun(Backfill::Idle));
    let problems = tokio::spawn(async move {
        let mut problems = Vec::new();
        while status.changed().await.is_ok() {
            problems.extend(status.borrow_and_update().problem.clone());
        }
        problems
    });
    // Only from here on: a socket does not respect paused time.
    tokio::time::pause();
    let (began, task) = (Instant::now(), Task { image: "app".into(), reported, distrust: Box::new(|_, _| ()) });
    task.run(&Arc::new(completion)).await;
    let (ended, status) = (began.elapsed(), task.reported.borrow().clone());
    tokio::time::resume();
    drop(task);
    (status, ended, problems.await.unwrap())
}

#[tokio::test]
async fn an_outage_is_waited_out_and_a_long_one_ends_it() {
    let refusal = Then::Refuse(Fault::Unavailable);
    let (status, took, problems) = scripted(vec![refusal, refusal]).await;
    assert_eq!((status.state, status.problem), (BackfillState::Complete, None));
    assert_eq!(took.as_secs(), 2 + 4);
    assert!(problems[0].starts_with("trying again after 2 s: ") && problems[1].starts_with("trying again after 4 s: "));

    let (status, took, _) = scripted(vec![refusal; TRIES as usize]).await;
    assert_eq!((status.state, status.layers_done), (BackfillState::Stopped, 0));
    assert!(status.problem.is_some() && took < Duration::from_secs(1800), "{took:?}");
}

#[tokio::test]
async fn bytes_that_were_wrong_once_raise_no_alarm_and_twice_one() {
    let (status, _, _) = scripted(vec![Then::Garbage]).await;
    assert_eq!((status.state, status.alarms), (BackfillState::Complete, Vec::new()));
    let (status, _, _) = scripted(vec![Then::Garbage, Then::Garbage]).await;
    assert_eq!((status.state, status.alarms.len(), status.layers_done), (BackfillState::Alarm, 1, 2), "{status:?}");
}

#[tokio::test]
async fn a_layer_that_is_not_what_the_config_names_is_not_served_any_more() {
    let mut lazy = estargz(&files(LAZY, "lazy"), EstargzOptions::default());
    lazy.diff_id = Digest::of(b"another tar");
    let good = Layer::plain(&tar(&files(BASE, "base"), Dialect::Pax), tarpon_oci::Compression::Gzip);
    let fixture = BackfillFixture::new(ImageBuilder::new().layer(good).layer(lazy).build()).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    host.mount(&prepared, Backfill::Idle);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.layers_done), (BackfillState::Alarm, 1), "{status:?}");
    assert!(
        status.alarms[0]
            .starts_with(&format!("layer {}: it is not what the manifest describes: diffID", fixture.layer(1)))
    );
    assert_eq!(host.states(&prepared), ["diffID-verified", "toc-refuted"]);
    host.read(&noise(BASE, FILE)).await.unwrap();
}

#[tokio::test]
async fn a_store_without_room_ends_it_with_a_word() {
    let fixture = BackfillFixture::new(image()).await;
    fixture.publish(|_| ()).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    host.images.store().set_budget(400_000).unwrap();
    host.record_mount(&prepared);
    host.mount(&prepared, Backfill::Idle);
    let status = host.backfills.settled(prepared.manifest()).await;
    assert_eq!((status.state, status.problem.as_deref()), (BackfillState::Stopped, Some(NO_ROOM)), "{status:?}");
    host.read(&noise(LAZY, FILE)).await.expect("reads go on, without being kept");
}

#[tokio::test]
async fn it_ends_with_the_last_mount_of_the_image() {
    let fixture = BackfillFixture::new(image()).await;
    let host = Host::new(fixture.images());
    let prepared = host.images.prepare(&fixture.request(), &Silent).await.unwrap();
    host.mount(&prepared, Backfill::Idle);
    host.backfills.end(prepared.manifest(), || true);
    assert!(host.backfills.status(prepared.manifest()).is_some(), "there is another mount");
    host.backfills.end(prepared.manifest(), || false);
    assert!(host.backfills.status(prepared.manifest()).is_none());
}
