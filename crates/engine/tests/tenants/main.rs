//! Which users can read a private image through a store that has it: all users of a shared store; in an isolated one only those who prove
//! their access to the registry. Needs root.
#![allow(clippy::unwrap_used, reason = "tests")]

mod registries;
#[path = "../support/mod.rs"]
mod support;

use registries::{LAZY, OTHER, OWNER, STREAMED, TenantFixture, mount, prepare, read, read_all, request, secret_at};
use tarpon_engine::{
    DiffIds, Engine, ErrorKind, ImageRequest, Isolation, Mode, PodmanRequest, Pull, RootfsRequest, Server, Silent,
};
use tarpon_testkit::kernel::can_mount;

/// The owner mounts the private image and reads all of it.
async fn fill(fixture: &TenantFixture, engine: &Engine, server: &Server, mode: Mode) {
    let prepared = prepare(engine, &fixture.private("v1"), Some(OWNER)).await.unwrap();
    let directory = fixture.directory("owner");
    mount(server, &prepared, &directory, mode).await.unwrap();
    read_all(&directory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_user_of_a_shared_store_reads_every_image_in_it() {
    if !can_mount() {
        return;
    }
    let fixture = TenantFixture::new().await;
    let engine = fixture.engine(Isolation::Shared);
    let server = Server::start(&engine).await.unwrap();
    fill(&fixture, &engine, &server, Mode::Fuse).await;
    // A table of contents that names the digest of the file; a manifest that names the layer; the name of the image.
    for (image, file) in [
        (fixture.of_attacker("content"), LAZY),
        (fixture.of_attacker("layer"), STREAMED),
        (fixture.private("v1"), LAZY),
    ] {
        let prepared = prepare(&engine, &image, None).await.unwrap();
        let directory = fixture.directory("attacker");
        mount(&server, &prepared, &directory, Mode::Fuse).await.unwrap();
        assert!(read(&directory, file).await.unwrap() == secret_at(file), "{image}: this is what shared means");
        server.unmount(directory).await.unwrap();
    }
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_accepted_credentials_give_access_to_an_image_of_an_isolated_store() {
    if !can_mount() {
        return;
    }
    for mode in [Mode::Fuse, Mode::Native] {
        let fixture = TenantFixture::new().await;
        let engine = fixture.engine(Isolation::Tenant);
        let server = Server::start(&engine).await.unwrap();
        fill(&fixture, &engine, &server, mode).await;
        let private = prepare(&engine, &fixture.private("v1"), Some(OWNER)).await.unwrap();

        // A table of contents that names the digest of the file.
        let prepared = prepare(&engine, &fixture.of_attacker("content"), None).await.unwrap();
        let directory = fixture.directory("attacker");
        mount(&server, &prepared, &directory, mode).await.unwrap();
        assert!(read(&directory, LAZY).await.is_err(), "{mode}");
        let rootfs = server.rootfs(&prepared, &RootfsRequest::default()).await.unwrap();
        assert!(read(rootfs.path(), LAZY).await.is_err(), "{mode}: what a container sees");
        rootfs.close().await.unwrap();

        // A manifest that names the layer and its diffID.
        assert!(prepare(&engine, &fixture.of_attacker("layer"), None).await.is_err());
        assert!(engine.pull(&request(&fixture.of_attacker("layer"), None), &Silent).await.is_err());

        // Its own name and digest, without credentials and with those of another user.
        let by_digest = fixture.private("v1").replace(":v1", &format!("@{}", private.manifest()));
        for image in [fixture.private("v1"), by_digest] {
            for creds in [None, Some(OTHER)] {
                for pull in [Pull::Missing, Pull::Newer, Pull::Always] {
                    let request = ImageRequest { pull, ..request(&image, creds) };
                    let error = engine.prepare(&request, &Silent).await.unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Denied, "{pull:?} {error}");
                    assert_eq!(engine.inspect(&request).await.unwrap_err().kind, ErrorKind::Denied);
                    assert_eq!(engine.pull(&request, &Silent).await.unwrap_err().kind, ErrorKind::Denied);
                }
            }
        }

        // A server is sent the digest of the private image, as one of the attacker's repository.
        let mut forged = prepared.clone();
        forged.record = private.record.clone();
        let refused = mount(&server, &forged, &fixture.directory("forged"), mode).await.unwrap_err();
        assert!(refused.to_string().contains("not in the store"), "{refused}");
        assert!(engine.open_tree(&forged).is_err());
        server.stop(true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_one_repository_share_what_they_have_in_common_and_those_of_two_do_not() {
    if !can_mount() {
        return;
    }
    let fixture = TenantFixture::new().await;
    let engine = fixture.engine(Isolation::Tenant);
    let server = Server::start(&engine).await.unwrap();
    fill(&fixture, &engine, &server, Mode::Native).await;

    let before = fixture.bytes();
    let second = prepare(&engine, &fixture.private("v2"), Some(OWNER)).await.unwrap();
    let directory = fixture.directory("second");
    mount(&server, &second, &directory, Mode::Native).await.unwrap();
    read_all(&directory).await;
    assert!(
        fixture.bytes() - before < 50_000,
        "{} bytes for an image that was here but for one file",
        fixture.bytes() - before
    );

    let before = fixture.bytes();
    let mirrored = prepare(&engine, &fixture.mirror(), Some(OTHER)).await.unwrap();
    assert_eq!(prepare(&engine, &fixture.mirror(), Some(OWNER)).await.unwrap_err().kind, ErrorKind::Denied);
    let directory = fixture.directory("mirror");
    mount(&server, &mirrored, &directory, Mode::Native).await.unwrap();
    read_all(&directory).await;
    assert!(fixture.bytes() - before > 200_000, "{} bytes: somebody else's access counted", fixture.bytes() - before);
    assert_eq!(server.status().len(), 3);
    assert_eq!(engine.store().images().unwrap().len(), 3);
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_mounts_again_what_was_mounted_without_a_registry() {
    if !can_mount() {
        return;
    }
    let mut fixture = TenantFixture::new().await;
    let engine = fixture.engine(Isolation::Tenant);
    let server = Server::start(&engine).await.unwrap();
    fill(&fixture, &engine, &server, Mode::Native).await;
    let owner = fixture.directory("owner");
    server.suspend().await;

    let engine = fixture.engine(Isolation::Tenant);
    let dead = engine.mounts().unwrap();
    assert!(dead[0].image_bytes > 0 && dead[0].problem.is_some(), "{dead:?}");
    let server = Server::start(&engine).await.unwrap();
    let again = server.status();
    assert!(again.len() == 1 && again[0].mountpoint == owner && again[0].alive, "{again:?}");
    read_all(&owner).await;
    assert_eq!(engine.store().clear().unwrap().images, [], "it is mounted");

    fixture.stop_registry();
    let error = prepare(&engine, &fixture.private("v1"), Some(OWNER)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(error.hint.unwrap().contains("tenant"));
    read_all(&owner).await;
    server.unmount(owner).await.unwrap();
    assert_eq!(engine.store().clear().unwrap().images.len(), 1);
    server.stop(true).await;
}

#[tokio::test]
async fn what_would_show_images_to_others_is_refused_by_an_isolated_store() {
    let fixture = TenantFixture::new().await;
    let engine = fixture.engine(Isolation::Tenant);
    let prepared = prepare(&engine, &fixture.private("v1"), Some(OWNER)).await.unwrap();
    let request = request(&fixture.private("v1"), Some(OWNER));
    let wish = PodmanRequest { name: None, backfill: tarpon_engine::Backfill::Off };
    let conf = fixture.path("storage.conf");
    let errors = [
        engine.podman().add(&request, &prepared, &wish, &Silent).await.unwrap_err(),
        engine.podman().set_up(&conf, true, false).unwrap_err(),
        engine.podman().start_layers(request.access.clone(), DiffIds::Hashed).unwrap_err(),
        engine.may_serve_containerd().unwrap_err(),
        prepare(&engine, &format!("oci:{}", fixture.folder().display()), None).await.unwrap_err(),
        engine.prepare(&ImageRequest { pull: Pull::Never, ..request.clone() }, &Silent).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind, ErrorKind::Refused, "{error}");
        assert!(error.cause().to_string().contains("\"tenant\"") && error.hint.is_some(), "{error}");
    }
    assert!(!conf.exists());
    assert!(fixture.engine(Isolation::Shared).may_serve_containerd().is_ok());
}

#[tokio::test]
async fn credentials_of_a_caller_isolate_a_new_store_and_are_refused_by_one_that_is_shared_by_default() {
    let fixture = TenantFixture::new().await;
    let open = |name: &str| support::engine(&fixture.path(name));
    let new = open("new");
    new.admit_credentials().unwrap();
    assert_eq!(new.isolation().unwrap(), Isolation::Tenant);
    let used = open("used");
    prepare(&used, &fixture.private("v1"), Some(OWNER)).await.unwrap();
    let error = used.admit_credentials().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Conflict);
    assert!(error.hint.unwrap().contains("--isolation shared"));
    assert_eq!(used.isolation().unwrap(), Isolation::Shared);
    used.set_isolation(Isolation::Shared).unwrap();
    used.admit_credentials().unwrap();
}
