use std::time::Duration;

use bytes::Bytes;
use tarpon_client::protocol::MountRequest;
use tarpon_fetch::Fetcher;
use tarpon_images::sources::InProcess;
use tarpon_images::{ImageRequest, Images, Silent};
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;

use tarpon_fetch::{BootFrame, BootIndex, BootPiece, ReadObserver};
use tarpon_oci::{Blob, Digest};

use super::*;
use crate::images::LoadedImages;

/// Time limit for work in the background, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn profile(image: &str, command: &[&str]) -> Option<Digest> {
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    Profile::of(image, "linux/amd64", &command).map(|profile| profile.key)
}

#[test]
fn versions_of_an_image_share_a_profile_and_commands_do_not() {
    let one = profile("registry.example/app:1", &["serve"]).unwrap();
    assert_eq!(profile("registry.example/app:2", &["serve"]), Some(one));
    let digest = format!("registry.example/app@{}", Digest::of(b"manifest"));
    assert_eq!(profile(&digest, &["serve"]), Some(one));
    let others = [
        profile("registry.example/app:1", &["serve", ""]),
        profile("registry.example/app:1", &["ser", "ve"]),
        profile("registry.example/other:1", &["serve"]),
        profile("other.example/app:1", &["serve"]),
        profile("registry.example/app:1", &[]),
    ];
    assert!(others.iter().all(|other| other.is_some_and(|other| other != one)));
    assert_eq!(profile("oci:/layout:app", &["serve"]), None);
}

#[test]
fn a_start_begins_with_the_first_read_that_waits() {
    let start = Start::new(Profile::of("registry.example/app", "linux/amd64", &[]).unwrap(), false);
    let read = |name: &[u8], waited| start.was_read(&Digest::of(name), 10, 0..10, waited);
    assert!(!read(b"local before", Duration::ZERO));
    assert!(read(b"fetched", Duration::from_millis(3)), "it wants to see all reads now");
    assert!(read(b"local after", Duration::ZERO));
    let mut read: Vec<Digest> = start.trace(header()).touches.iter().map(|touch| touch.object).collect();
    read.sort();
    let mut expected = [Digest::of(b"fetched"), Digest::of(b"local after")];
    expected.sort();
    assert_eq!(read, expected);
}

fn header() -> Header {
    Header::new("", Digest::of(b""), "")
}

/// Bytes that do not compress.
fn noise(seed: u8) -> Vec<u8> {
    let blocks = (0..5_000_u32).map(|block| Digest::of(&[&[seed], &block.to_le_bytes()[..]].concat()));
    blocks.flat_map(|block| *block.as_bytes()).collect()
}

/// A registry with two versions of an image, of which the second has one file less and one more.
async fn versions() -> TestServer {
    let mut contents = Contents::new();
    let file = |name: &'static str, seed| Item::file(name, noise(seed));
    let first = [file("kept", 1), file("dropped", 2), file("unread", 3)];
    let second = [file("kept", 1), file("unread", 3), file("new", 4)];
    for (tag, items) in [("1", first), ("2", second)] {
        let image = ImageBuilder::new().layer(estargz(&items, EstargzOptions::default())).build();
        for (_, blob) in image.blobs() {
            contents.add_blob(blob);
        }
        contents.add_manifest(Some(("app", tag)), tarpon_oci::media_type::OCI_MANIFEST, image.manifest.clone());
    }
    TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap()
}

/// A new process with a store.
struct Process {
    images: Images,
    fetcher: Fetcher,
    loaded: LoadedImages,
}

impl Process {
    fn new(store: &std::path::Path) -> Self {
        let images = Images::open(store).unwrap();
        let store = images.store().clone();
        let fetcher = Fetcher::new(Arc::new(store.clone()), tokio::runtime::Handle::current(), Default::default());
        let loaded = LoadedImages::new(store, fetcher.clone(), Arc::default(), Arc::new(InProcess));
        Self { images, fetcher, loaded }
    }

    async fn load(&self, server: &TestServer, tag: &str) -> Arc<LoadedImage> {
        let text = format!("{}/app:{tag}", server.host());
        let request = ImageRequest::new(&text, text.parse().unwrap(), "linux/amd64".parse().unwrap());
        let prepared = self.images.prepare(&request, &Silent).await.unwrap();
        self.loaded.load(&MountRequest::for_image(&prepared, "/nowhere".into())).unwrap()
    }

    async fn read(&self, content: &[u8]) {
        let object = Digest::of(content);
        let length = 64 << 10;
        for offset in (0..content.len() as u64).step_by(64 << 10) {
            self.fetcher.read(&object, offset, length).await.unwrap();
        }
    }

    fn has(&self, content: &[u8]) -> bool {
        self.fetcher.read_local(&Digest::of(content), 0, 1).is_some_and(|read| read.is_ok())
    }
}

async fn followed(image: &LoadedImage) {
    let follow = async {
        while image.handle().is_replaying() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, follow).await.expect("the hints end");
}

#[tokio::test]
async fn the_next_version_is_fetched_by_what_the_start_of_the_first_read() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let first = Process::new(&folder.path().join("first"));
    let image = first.load(&server, "1").await;
    let command = ["serve".to_owned()];
    image.begin_start(&command, true)();
    for seed in [1, 2] {
        first.read(&noise(seed)).await;
    }
    image.end_start(false);
    assert!(first.images.store().traces().unwrap().is_empty(), "it is not over");
    image.end_start(true);
    let traces = first.images.store().traces().unwrap();
    let [(_, stored)] = &traces[..] else { panic!("{traces:?}") };

    // Another store, so that nothing is local.
    let second = Process::new(&folder.path().join("second"));
    let trace = first.images.store().trace(&stored.key).unwrap().unwrap();
    second.images.store().set_trace(&stored.key, &trace).unwrap();
    let image = second.load(&server, "2").await;
    image.begin_start(&command, true)();
    followed(&image).await;
    assert!(second.has(&noise(1)) && !second.has(&noise(3)) && !second.has(&noise(4)));
    second.read(&noise(4)).await;
    image.end_start(true);
    let trace = learned(second.images.store(), &stored.key).unwrap();
    let mut names: Vec<Digest> = trace.files().into_iter().map(|file| file.object).collect();
    names.sort();
    let mut expected = [1, 4].map(|seed| Digest::of(&noise(seed)));
    expected.sort();
    assert_eq!(names, expected, "what the image has of the first start, and what this one lacked");
}

#[tokio::test]
async fn without_a_command_a_trace_is_followed_from_the_first_read_that_it_names() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    let profile = Profile::of(image.handle().name(), "linux/amd64", &[]).unwrap();
    let touches = [1, 2].map(|seed| tarpon_trace::Touch {
        object: Digest::of(&noise(seed)),
        size: noise(seed).len() as u64,
        range: 0..noise(seed).len() as u64,
        at: Duration::from_millis(seed.into()),
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    });
    let trace = Trace { header: header(), touches: touches.into() };
    process.images.store().set_trace(&profile.key, &trace.write()).unwrap();
    image.begin_start(&[], true)();
    process.read(&noise(3)).await;
    assert!(!image.handle().is_replaying() && !process.has(&noise(2)), "it is not in the trace");
    process.read(&noise(1)).await;
    followed(&image).await;
    assert!(process.has(&noise(2)));
}

/// A predicted pack with this content, whose frames are in no blob.
fn predicted(content: &[u8]) -> BootIndex {
    let blob = Blob { digest: Digest::of(b"frames"), size: 100 };
    let length = u32::try_from(content.len()).unwrap();
    let pieces = vec![BootPiece { object: Digest::of(content), offset: 0, length }];
    BootIndex { profile: "predicted".to_owned(), blob, frames: vec![BootFrame { length: 100, pieces }] }
}

#[tokio::test]
async fn a_predicted_pack_waits_for_a_command_or_for_a_read_of_something_in_it() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    *image.waiting_pack.lock() = Some(predicted(&noise(1)));
    image.begin_start(&[], true)();
    process.read(&noise(3)).await;
    assert!(!image.predicted().is_empty(), "that is not in it");
    process.read(&noise(1)).await;
    assert!(image.predicted().is_empty());

    *image.waiting_pack.lock() = Some(predicted(&noise(1)));
    image.end_start(false);
    assert!(!image.predicted().is_empty(), "the start is not over");

    let other = process.load(&server, "2").await;
    *other.waiting_pack.lock() = Some(predicted(&noise(1)));
    other.begin_start(&["serve".to_owned()], true)();
    assert!(other.predicted().is_empty(), "a command is certain to start");
}

#[tokio::test]
async fn a_start_leaves_no_trace_if_it_must_not_or_reads_nothing_new() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    image.begin_start(&[], false)();
    process.read(&noise(1)).await;
    image.end_start(true);
    // Everything that this start reads is local.
    image.begin_start(&[], true)();
    process.read(&noise(1)).await;
    image.end_start(true);
    assert!(process.images.store().traces().unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_trace_is_replaced_by_the_next_start() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    let key = Profile::of(image.handle().name(), "linux/amd64", &[]).unwrap().key;
    process.images.store().set_trace(&key, &Bytes::from_static(b"{half a li")).unwrap();
    image.begin_start(&[], true)();
    process.read(&noise(1)).await;
    image.end_start(true);
    let trace = learned(process.images.store(), &key).unwrap();
    assert_eq!(trace.files()[0].object, Digest::of(&noise(1)));
}

/// The count of the trace of starts by this command, and its number of contents.
fn count(process: &Process, image: &LoadedImage, command: &[String]) -> (u32, usize) {
    let key = Profile::of(image.handle().name(), "linux/amd64", command).unwrap().key;
    let trace = learned(process.images.store(), &key).unwrap();
    (trace.header.starts, trace.files().len())
}

#[tokio::test]
async fn equal_starts_are_counted_also_if_no_read_waits() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    let command = ["serve".to_owned()];
    let start = async |files: &[u8]| {
        image.begin_start(&command, true)();
        for seed in files {
            process.read(&noise(*seed)).await;
        }
        image.end_start(true);
    };
    start(&[1, 2]).await;
    assert_eq!(count(&process, &image, &command), (1, 2));
    start(&[1, 2]).await;
    start(&[]).await;
    assert_eq!(count(&process, &image, &command), (3, 2), "all that they read was local");
    image.continue_start(&command, true)();
    image.end_start(true);
    assert_eq!(count(&process, &image, &command).0, 3, "the start of another server's mount was before");
    start(&[3]).await;
    assert_eq!(count(&process, &image, &command), (1, 3), "a third of the contents is new");
    start(&[]).await;
    assert_eq!(count(&process, &image, &command).0, 2);

    let other = process.load(&server, "2").await;
    other.begin_start(&command, true)();
    other.end_start(true);
    assert_eq!(count(&process, &image, &command).0, 2, "of another manifest nothing was seen");
}

#[tokio::test]
async fn a_start_without_a_command_counts_only_if_a_read_waits() {
    let (server, folder) = (versions().await, tempfile::tempdir().unwrap());
    let process = Process::new(&folder.path().join("store"));
    let image = process.load(&server, "1").await;
    for _ in 0..3 {
        image.begin_start(&[], true)();
        process.read(&noise(1)).await;
        image.end_start(true);
    }
    assert_eq!(count(&process, &image, &[]), (1, 1));
}
