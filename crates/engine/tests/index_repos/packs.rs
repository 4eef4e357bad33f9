//! Boot packs that are in an index repository: the server reads them there.

use std::path::PathBuf;

use tarpon_engine::{EndpointKind, ImageRequest, Mode, Prepared, Pull, Server};
use tarpon_testkit::kernel::can_mount;

use crate::fixture::{Repos, start, text};
use crate::support::mount_request;

/// Reads on a thread of its own: the server runs on ours.
async fn read(path: PathBuf) -> std::io::Result<Vec<u8>> {
    tokio::task::spawn_blocking(move || std::fs::read(path)).await.unwrap()
}

async fn prepared(repos: &Repos, store: &str, request: &ImageRequest) -> Prepared {
    repos.engine(store).prepare(request, &repos.notes).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_is_read_from_the_index_repository_by_a_server_that_knows_only_the_record() {
    if !can_mount() {
        return;
    }
    let mut repos = Repos::new().await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[start()]).await;
    prepared(&repos, "store", &request).await;
    // No layer can be read any more.
    repos.images.stop_registry();
    // Another process: a server that was restarted.
    let engine = repos.engine("store");
    let known = engine.prepare(&ImageRequest { pull: Pull::Never, ..request }, &repos.notes).await.unwrap();
    assert!(known.record.boot_source.as_deref().is_some_and(|place| place.starts_with(&repos.place())));
    let server = Server::start(&engine).await.unwrap();
    let point = repos.images.directory("mnt");
    server.mount(mount_request(&known, &point, Mode::Fuse)).await.unwrap();
    assert!(read(point.join("text")).await.unwrap() == text());
    let status = server.status().remove(0);
    assert!(
        status.fetched_bytes > 0 && status.failed_reads == 0,
        "what came from the index repository counts: {status:?}"
    );
    let counted = status.endpoints.iter().map(|endpoint| (endpoint.kind, endpoint.bytes > 0)).collect::<Vec<_>>();
    assert_eq!(counted, [(EndpointKind::Registry, false), (EndpointKind::Index, true)], "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_index_repository_the_layers_are_read() {
    if !can_mount() {
        return;
    }
    let mut repos = Repos::new().await;
    let request = repos.request("app:v1");
    repos.publish(&request, &[start()]).await;
    let engine = repos.engine("store");
    let known = engine.prepare(&request, &repos.notes).await.unwrap();
    repos.indexes.stop_registry();
    let server = Server::start(&engine).await.unwrap();
    let point = repos.images.directory("mnt");
    server.mount(mount_request(&known, &point, Mode::Fuse)).await.unwrap();
    assert!(read(point.join("text")).await.unwrap() == text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pack_can_be_in_a_layout() {
    if !can_mount() {
        return;
    }
    let mut repos = Repos::new().await;
    let request = ImageRequest { index_repos: vec![repos.layout_repo()], ..repos.request("app:v1") };
    repos.publish(&request, &[start()]).await;
    let engine = repos.engine("store");
    let known = engine.prepare(&request, &repos.notes).await.unwrap();
    repos.images.stop_registry();
    let server = Server::start(&engine).await.unwrap();
    let point = repos.images.directory("mnt");
    server.mount(mount_request(&known, &point, Mode::Fuse)).await.unwrap();
    assert!(read(point.join("text")).await.unwrap() == text());
}

#[tokio::test(flavor = "multi_thread")]
async fn packs_outlive_a_new_index_in_the_index_repository() {
    let repos = Repos::new().await;
    let request = repos.request("app:v1");
    let first = repos.publish(&request, &[start()]).await;
    let second = repos.publish(&request, &[]).await;
    assert_eq!(second.index_digest, first.index_digest, "there is nothing new in it");
    // They go where the next index goes.
    let moved = ImageRequest { index_repos: vec![repos.layout_repo(), repos.repo()], ..request };
    assert_eq!(repos.publish(&moved, &[]).await.boots.len(), 1);
    let layout = ImageRequest { index_repos: vec![repos.layout_repo()], ..moved };
    assert_eq!(repos.publish(&layout, &[]).await.index_digest, first.index_digest, "with the bytes of its pack");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuilt_image_takes_over_packs_of_the_index_repository() {
    let repos = Repos::new().await;
    repos.publish(&repos.request("app:v0"), &[start()]).await;
    let (engine, request) = (repos.engine("maker"), repos.request("app:v1"));
    let old = repos.images.name("app:v0");
    let made = engine.make_index_from(&request, &old, None, &repos.notes).await.unwrap();
    assert_eq!(made.boots.len(), 1);
    assert_eq!(made.manifest_digest, repos.v1.digest());
}
