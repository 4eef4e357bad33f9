//! Many root file systems of one image at once. Needs root and /dev/fuse, and is skipped without.

use std::collections::HashSet;
use std::path::Path;

use futures::future::try_join_all;
use tarpon_engine::{ErrorKind, MountRequest, Rootfs, RootfsRequest, Server, Silent, Writable};
use tarpon_testkit::kernel::can_mount;

use crate::support::EngineFixture;
use crate::{MANY, two_images};

/// Runs `work` on a thread of its own: the server runs on ours.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_is_its_own_and_goes_when_it_is_closed_or_dropped() {
    if !can_mount() {
        return;
    }
    let fixture = two_images().await;
    let engine = fixture.engine("store");
    let server = Server::start(&engine).await.unwrap();
    let prepared = engine.prepare(&fixture.request("app:v1"), &Silent).await.unwrap();
    let request = RootfsRequest::default();
    let all: Vec<Rootfs> = try_join_all((0..MANY).map(|_| server.rootfs(&prepared, &request))).await.unwrap();
    assert_eq!(all.iter().map(|rootfs| rootfs.path().to_owned()).collect::<HashSet<_>>().len(), MANY);
    assert_eq!(server.status().len(), MANY);
    let roots: Vec<_> = all.iter().map(|rootfs| rootfs.path().to_owned()).collect();
    let read = roots.clone();
    aside(move || {
        for (number, root) in read.iter().enumerate() {
            std::fs::write(root.join("mine"), number.to_string()).unwrap();
        }
        for (number, root) in read.iter().enumerate() {
            assert_eq!(std::fs::read_to_string(root.join("etc/lazy")).unwrap(), "app lazy\n");
            assert_eq!(std::fs::read_to_string(root.join("etc/streamed")).unwrap(), "app streamed\n");
            assert_eq!(std::fs::read_to_string(root.join("mine")).unwrap(), number.to_string());
        }
    })
    .await;
    let mut all = all.into_iter();
    for rootfs in all.by_ref().take(MANY / 2) {
        rootfs.close().await.unwrap();
    }
    assert_eq!(server.status().len(), MANY / 2);
    assert!(roots[..MANY / 2].iter().all(|root| !root.exists()));
    // Without a runtime, dropping blocks.
    let dropped = all.collect::<Vec<_>>();
    std::thread::spawn(move || drop(dropped)).join().unwrap();
    assert_eq!((server.status().len(), roots.iter().filter(|root| root.exists()).count()), (0, 0));
    server.stop(true).await;
    drop(engine);
    let run = fixture.path("store/run");
    assert!(names(&run).iter().all(|name| !name.starts_with("rootfs-")), "{:?}", names(&run));
    assert!(names(&run.join("mounts")).is_empty(), "no upper is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_named_stays_and_what_is_read_only_is_not_written() {
    if !can_mount() {
        return;
    }
    let fixture = two_images().await;
    let engine = fixture.engine("store");
    let server = Server::start(&engine).await.unwrap();
    let prepared = engine.prepare(&fixture.request("app:v1"), &Silent).await.unwrap();
    let (root, upper) = (fixture.path("root"), fixture.path("upper"));
    std::fs::create_dir(&root).unwrap();
    let at = |writable| RootfsRequest { directory: Some(root.clone()), writable, ..RootfsRequest::default() };
    let rootfs = server.rootfs(&prepared, &at(Writable::No)).await.unwrap();
    assert_eq!(rootfs.path(), root.canonicalize().unwrap());
    let twice = server.rootfs(&prepared, &at(Writable::No)).await.unwrap_err();
    assert_eq!(twice.kind, ErrorKind::CannotMount);
    let made = root.join("made");
    let refused = aside({
        let made = made.clone();
        move || std::fs::write(made, "x").unwrap_err()
    });
    assert_eq!(refused.await.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    rootfs.close().await.unwrap();

    let rootfs = server.rootfs(&prepared, &at(Writable::Upper(upper.clone()))).await.unwrap();
    aside(move || std::fs::write(made, "x").unwrap()).await;
    // An unmount by another caller is no error.
    server.unmount(rootfs.path().to_owned()).await.unwrap();
    rootfs.close().await.unwrap();
    assert!(root.is_dir() && upper.join("made").exists());
    let gone = RootfsRequest { directory: Some(root.join("none")), ..RootfsRequest::default() };
    assert_eq!(server.rootfs(&prepared, &gone).await.unwrap_err().kind, ErrorKind::NotFound);
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mounts_of_a_stopped_server_are_restored_unless_they_were_released_or_their_directory_is_gone() {
    if !can_mount() {
        return;
    }
    let fixture = two_images().await;
    let engine = fixture.engine("store");
    let server = Server::start(&engine).await.unwrap();
    let prepared = engine.prepare(&fixture.request("app:v1"), &Silent).await.unwrap();
    let [kept, removed, released] = ["kept", "removed", "released"].map(|name| fixture.directory(name));
    for place in [&kept, &removed, &released] {
        server.mount(MountRequest::for_image(&prepared, place.clone())).await.unwrap();
    }
    server.suspend().await;
    std::fs::remove_dir(&removed).unwrap();
    let client = engine.client();
    aside(move || client.release(&released)).await.unwrap();

    // Their records belong to a live process: this one.
    let server = Server::start(&engine).await.unwrap();
    let again: Vec<_> = server.status().into_iter().map(|mount| (mount.mountpoint, mount.alive)).collect();
    assert_eq!(again, [(kept.clone(), true)]);
    let (client, request) = (engine.client(), MountRequest::for_image(&prepared, kept.clone()));
    let there = aside(move || client.ensure_mounted(request)).await.unwrap();
    assert!(there.mountpoint == kept && there.alive);
    assert_eq!(server.status().len(), 1);
    server.stop(true).await;
    assert!(engine.store().mounts().unwrap().is_empty());
}
