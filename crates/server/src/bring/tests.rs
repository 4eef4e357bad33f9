use std::io::{Read as _, Seek as _};
use std::num::NonZeroU64;
use std::path::Path;

use tarpon_client::Client;
use tarpon_fetch::{BootPiece, BootWriter};
use tarpon_images::sources::InProcess;
use tarpon_images::{Access, ImageRequest, Images, PREDICTED_PROFILE, Silent};
use tarpon_registry::serve::Contents;
use tarpon_store::Part;
use tarpon_testkit::layers::{EstargzOptions, ImageBuilder, Item, estargz};
use tarpon_testkit::registry::{Auth, FakeRegistry};
use tarpon_testkit::server::TestServer;
use tarpon_trace::{Header, Touch};

use super::*;
use crate::mount_table::BRINGING;
use crate::setup::ServerSetup;

/// Time limit for work in the background, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that do not compress.
fn noise(seed: u8) -> Vec<u8> {
    let blocks = (0..3_000_u32).map(|block| Digest::of(&[&[seed], &block.to_le_bytes()[..]].concat()));
    blocks.flat_map(|block| *block.as_bytes()).collect()
}

/// The boot pack of a predicted start, which reads this.
fn predicted(content: &[u8]) -> (BootIndex, Vec<u8>) {
    let mut writer = BootWriter::new(tempfile::tempfile().unwrap()).unwrap();
    let length = u32::try_from(content.len()).unwrap();
    writer.add(BootPiece { object: Digest::of(content), offset: 0, length }, content).unwrap();
    let (index, mut frames) = writer.finish(PREDICTED_PROFILE.to_owned()).unwrap();
    let mut bytes = Vec::new();
    frames.rewind().unwrap();
    frames.read_to_end(&mut bytes).unwrap();
    (index, bytes)
}

/// Stores the prepared image again, with this boot pack.
fn add_pack(store: &Store, request: &StartRequest, pack: &BootIndex) {
    let LoadedImage { mut record, manifest, config, tree, chunks, .. } =
        store.load_image(&request.manifest).unwrap().unwrap();
    let files = [manifest.as_ref(), config.as_ref(), tree.as_ref(), chunks.as_ref(), &pack.write()].map(<[u8]>::to_vec);
    store.remove_image(&request.manifest).unwrap();
    record.parts.clear();
    let mut staging = store.stage_image(record).unwrap();
    for (part, bytes) in [Part::Manifest, Part::Config, Part::Tree, Part::Chunks, Part::Boot].into_iter().zip(&files) {
        staging.put(part, bytes).unwrap();
    }
    staging.put_objects([1, 2, 3].map(|seed| Digest::of(&noise(seed))).to_vec()).unwrap();
    staging.install().unwrap();
}

/// A registry with two images of equal files.
async fn registry() -> TestServer {
    let mut contents = Contents::new();
    contents.add_blob(predicted(&noise(2)).1);
    let marked = [Item::file("read", noise(1)), Item::file(".prefetch.landmark", b"\x0f")];
    let items = marked.into_iter().chain([Item::file("unread", noise(2)), Item::file("also", noise(3))]);
    let items: Vec<_> = items.collect();
    let image = ImageBuilder::new().layer(estargz(&items, EstargzOptions::default())).build();
    for (_, blob) in image.blobs() {
        contents.add_blob(blob);
    }
    for repository in ["app", "other"] {
        let manifest = image.manifest.clone();
        contents.add_manifest(Some((repository, "2")), tarpon_oci::media_type::OCI_MANIFEST, manifest);
    }
    TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap()
}

/// Keeps the trace of a start of `app:1` by this command, which read all of these.
fn learn(store: &Store, server: &TestServer, command: &[&str], read: &[Vec<u8>]) {
    let image = format!("{}/app:1", server.host());
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let profile = Profile::of(&image, "linux/amd64", &command).unwrap();
    let header = Header { command, ..Header::new(image, Digest::of(b"of version 1"), "") };
    let touch = |content: &Vec<u8>| Touch {
        object: Digest::of(content),
        size: content.len() as u64,
        range: 0..content.len() as u64,
        at: Duration::ZERO,
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    let trace = Trace { header, touches: read.iter().map(touch).collect() };
    store.set_trace(&profile.key, &trace.write()).unwrap();
}

/// The image, prepared and no more.
async fn prepared(images: &Images, server: &TestServer, repository: &str) -> StartRequest {
    let image = format!("{}/{repository}:2", server.host());
    let request = ImageRequest::new(&image, image.parse().unwrap(), "linux/amd64".parse().unwrap());
    let prepared = images.prepare(&request, &Silent).await.unwrap();
    StartRequest {
        image,
        manifest: *prepared.manifest(),
        access: Access::default(),
        index_places: Vec::new(),
        rate: None,
        landmarks: false,
    }
}

fn images(folder: &Path) -> Images {
    Images::open(&folder.join("store")).unwrap()
}

#[tokio::test]
async fn what_starts_of_another_version_read_is_brought_by_whatever_command_they_were() {
    let (server, folder) = (registry().await, tempfile::tempdir().unwrap());
    let images = images(folder.path());
    let store = images.store();
    learn(store, &server, &[], &[noise(1), noise(9)]);
    learn(store, &server, &["serve"], &[noise(3)]);
    let bringer = StartBringer::new(store.clone(), Arc::new(InProcess));
    let request = prepared(&images, &server, "app").await;
    let brought = bringer.bring(&request, &|_, _| ()).await.unwrap();
    assert_eq!((brought.kind, brought.missing), (StartKind::LearnedTrace, 0));
    assert!(brought.bytes >= brought.wanted && brought.wanted == brought.missing_before, "{brought:?}");
    let is_here = |seed| store.contains(&Digest::of(&noise(seed)));
    assert_eq!((is_here(1), is_here(2), is_here(3)), (true, false, true));
    let other = prepared(&images, &server, "other").await;
    assert_eq!(bringer.bring(&other, &|_, _| ()).await.unwrap(), BroughtStart::UNKNOWN, "another repository");
}

#[tokio::test]
async fn beside_a_predicted_pack_what_earlier_starts_read_is_brought_too() {
    let (server, folder) = (registry().await, tempfile::tempdir().unwrap());
    let images = images(folder.path());
    let store = images.store();
    let request = StartRequest { landmarks: true, ..prepared(&images, &server, "app").await };
    add_pack(store, &request, &predicted(&noise(2)).0);
    learn(store, &server, &[], &[noise(3)]);
    let bringer = StartBringer::new(store.clone(), Arc::new(InProcess));
    let seen = parking_lot::Mutex::new(Vec::new());
    let progress = |requested, missing| seen.lock().push((requested, missing));
    let brought = bringer.bring(&request, &progress).await.unwrap();
    assert_eq!((brought.kind, brought.missing, brought.problem), (StartKind::BootPack, 0, None));
    let is_here = |seed| store.contains(&Digest::of(&noise(seed)));
    assert_eq!((is_here(1), is_here(2), is_here(3)), (false, true, true));
    let seen = seen.into_inner();
    assert!(seen.is_sorted() && seen.last() == Some(&(brought.wanted, brought.wanted)), "{seen:?} {}", brought.wanted);
}

#[tokio::test]
async fn a_predicted_pack_is_more_precise_than_landmarks() {
    let (server, folder) = (registry().await, tempfile::tempdir().unwrap());
    let images = images(folder.path());
    let store = images.store();
    let request = StartRequest { landmarks: true, ..prepared(&images, &server, "app").await };
    add_pack(store, &request, &predicted(&noise(2)).0);
    let brought = StartBringer::new(store.clone(), Arc::new(InProcess)).bring(&request, &|_, _| ()).await.unwrap();
    assert_eq!((brought.kind, brought.missing), (StartKind::BootPack, 0));
    assert_eq!([1, 2, 3].map(|seed| store.contains(&Digest::of(&noise(seed)))), [false, true, false]);
}

#[tokio::test]
async fn a_trace_of_which_the_image_has_nothing_hides_no_landmarks() {
    let (server, folder) = (registry().await, tempfile::tempdir().unwrap());
    let images = images(folder.path());
    learn(images.store(), &server, &[], &[noise(8), noise(9)]);
    let bringer = StartBringer::new(images.store().clone(), Arc::new(InProcess));
    let request = prepared(&images, &server, "app").await;
    assert_eq!(bringer.bring(&request, &|_, _| ()).await.unwrap(), BroughtStart::UNKNOWN);
    let with_landmarks = StartRequest { landmarks: true, ..request };
    let brought = bringer.bring(&with_landmarks, &|_, _| ()).await.unwrap();
    assert_eq!((brought.kind, brought.missing), (StartKind::Landmarks, 0));
    assert!(images.store().contains(&Digest::of(&noise(1))));
}

#[tokio::test]
async fn a_running_server_brings_it_for_a_client_and_stops_when_the_client_is_gone() {
    let (server, folder) = (registry().await, tempfile::tempdir().unwrap());
    let images = images(folder.path());
    let client = Client::new(images.store().clone(), Vec::new());
    let request = prepared(&images, &server, "app").await;
    assert_eq!(client.bring_start(request.clone(), &|_, _| ()).await.unwrap(), None, "no server runs");
    let listener = wire::listen(&images.store().server_folder()).unwrap();
    let mounts = Arc::new(MountTable::alone(&ServerSetup::of(&images), Handle::current()).unwrap());
    let listening = crate::listen::listen(listener, mounts.clone()).unwrap();
    learn(images.store(), &server, &[], &[noise(1)]);
    let slow = StartRequest { rate: NonZeroU64::new(1), ..request.clone() };
    let told = tokio::sync::Notify::new();
    let seen = |_: u64, _: u64| told.notify_one();
    tokio::select! {
        brought = client.bring_start(slow, &seen) => panic!("not within a day: {brought:?}"),
        () = told.notified() => assert_eq!(mounts.bringing.turns.available_permits(), BRINGING - 1),
    }
    // The server notices that the client is gone.
    let all = mounts.bringing.turns.acquire_many(u32::try_from(BRINGING).unwrap());
    drop(tokio::time::timeout(PATIENCE, all).await.expect("in time").unwrap());
    let brought = client.bring_start(request, &|_, _| ()).await.unwrap().unwrap();
    assert_eq!((brought.kind, brought.missing), (StartKind::LearnedTrace, 0));
    assert!(images.store().contains(&Digest::of(&noise(1))));
    listening.abort();
}
