//! Damage of the store, by mode and moment: no wrong byte is served, and every mount heals. Needs root and /dev/fuse, and is skipped
//! without.
#![allow(clippy::unwrap_used, reason = "tests")]

mod store;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::num::NonZeroU64;
use std::time::Duration;

use store::{Damage, DamageFixture, FILES, damage_file, damages};
use tarpon_engine::{ErrorKind, Mode, Pull, Server};
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::matrix;

/// When the damage happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Between two mounts of one server.
    Unmounted,
    /// Between two servers.
    NoServer,
    /// Between two boots of the machine.
    Reboot,
}

async fn attack(mode: Mode, moment: Moment) {
    for &damage in damages(mode) {
        let fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        fixture.make_local(&engine, &server, mode).await;
        let (engine, server) = if moment == Moment::Unmounted {
            fixture.damage(damage);
            (engine, server)
        } else {
            server.stop(true).await;
            drop(engine);
            fixture.damage(damage);
            if moment == Moment::Reboot {
                fixture.reboot();
            }
            let engine = fixture.engine();
            let server = Server::start(&engine).await.unwrap();
            (engine, server)
        };
        fixture.mount(&engine, &server, mode).await.unwrap();
        assert_eq!(fixture.wrong().await, (0, 0), "{damage:?}: wrong and unreadable files");
        server.stop(true).await;
    }
}

macro_rules! attacks {
    ($($name:ident: $mode:expr, $moment:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            if can_mount() {
                attack($mode, $moment).await;
            }
        })*
    };
}

attacks! {
    damage_between_two_native_mounts_is_not_served: Mode::Native, Moment::Unmounted;
    damage_between_two_servers_of_native_mounts_is_not_served: Mode::Native, Moment::NoServer;
    damage_between_two_boots_is_not_served_by_a_native_mount: Mode::Native, Moment::Reboot;
    damage_between_two_fuse_mounts_is_not_served: Mode::Fuse, Moment::Unmounted;
    damage_between_two_servers_of_fuse_mounts_is_not_served: Mode::Fuse, Moment::NoServer;
    damage_between_two_boots_is_not_served_by_a_fuse_mount: Mode::Fuse, Moment::Reboot;
}

/// How a program uses the files of a mount while they are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It read them before, and does nothing now.
    Read,
    /// It has them open.
    Open,
}

/// Damages the mounted content, and has it verified.
async fn attack_live(mode: Mode, how: Use) {
    for &damage in damages(mode) {
        let fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        fixture.make_local(&engine, &server, mode).await;
        fixture.mount(&engine, &server, mode).await.unwrap();
        assert_eq!(fixture.wrong().await, (0, 0));
        let open = if how == Use::Open { fixture.open().await } else { Vec::new() };
        fixture.damage(damage);
        let verified = fixture.verify().await;
        // Removed objects are not found by the check, and are fetched again on lookup.
        assert_eq!(verified, if damage == Damage::Remove { 0 } else { FILES }, "{damage:?}");
        let mended = server.mend().await.unwrap();
        assert_eq!(mended.unmended, [], "{damage:?}");
        assert_eq!(usize::try_from(mended.files).unwrap(), verified, "{damage:?}");
        assert_eq!(fixture.wrong().await, (0, 0), "{damage:?}: wrong and unreadable files");
        assert_eq!(fixture.wrong_open(open).await, 0, "{damage:?}: wrong files that were open");
        assert_eq!(server.status().remove(0).damage, None);
        server.stop(true).await;
    }
}

macro_rules! live_attacks {
    ($($name:ident: $mode:expr, $how:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            if can_mount() {
                attack_live($mode, $how).await;
            }
        })*
    };
}

live_attacks! {
    damage_under_a_native_mount_is_not_served_once_it_was_verified: Mode::Native, Use::Read;
    damage_of_open_files_of_a_native_mount_is_mended_when_it_was_verified: Mode::Native, Use::Open;
    damage_under_a_fuse_mount_is_not_served_once_it_was_verified: Mode::Fuse, Use::Read;
    damage_of_open_files_of_a_fuse_mount_is_mended_when_it_was_verified: Mode::Fuse, Use::Open;
}

/// The metrics of a scrape.
fn metrics(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.metrics().unwrap()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: tarpon\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

async fn heal_by_scrub(mode: Mode) {
    for damage in [Damage::Flip, Damage::Cut, Damage::Swap] {
        let fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        server.serve_metrics(([127, 0, 0, 1], 0).into()).unwrap();
        fixture.make_local(&engine, &server, mode).await;
        fixture.mount(&engine, &server, mode).await.unwrap();
        assert_eq!(fixture.wrong().await, (0, 0));
        let open = fixture.open().await;
        fixture.damage(damage);
        assert_eq!(server.status().remove(0).scrub, None);
        server.begin_scrub(NonZeroU64::MAX).unwrap();
        let mut status = server.scrub();
        let ended = status.wait_for(|status| status.last.is_some());
        let status = *tokio::time::timeout(Duration::from_secs(120), ended).await.unwrap().unwrap();
        assert_eq!(fixture.wrong().await, (0, 0), "{damage:?}: wrong and unreadable files");
        assert_eq!(fixture.wrong_open(open).await, 0, "{damage:?}: wrong files that were open");
        let last = status.last.unwrap();
        assert_eq!((status.running, usize::try_from(last.damaged).unwrap(), last.skipped), (false, FILES, 0));
        let shown = server.status().remove(0);
        assert_eq!((shown.scrub, shown.damage), (Some(status), None), "{damage:?}");
        let json = serde_json::to_value(shown.scrub).unwrap();
        assert_eq!((&json["running"], &json["last"]["damaged"]), (&false.into(), &FILES.into()));
        let told = tokio::task::spawn_blocking(move || (metrics(&server), server)).await.unwrap();
        assert!(told.0.contains(&format!("\ntarpon_scrub_last_damaged_objects {FILES}\n")), "{}", told.0);
        told.1.stop(true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_under_a_native_mount_heals_by_a_scrub_alone_which_status_and_metrics_show() {
    if can_mount() {
        heal_by_scrub(Mode::Native).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_under_a_fuse_mount_heals_by_a_scrub_alone_which_status_and_metrics_show() {
    if can_mount() {
        heal_by_scrub(Mode::Fuse).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_open_files_is_mended_also_after_an_eviction_between_verify_and_mend() {
    if !can_mount() {
        return;
    }
    let fixture = DamageFixture::new().await;
    let engine = fixture.engine();
    let server = Server::start(&engine).await.unwrap();
    fixture.make_local(&engine, &server, Mode::Native).await;
    fixture.mount(&engine, &server, Mode::Native).await.unwrap();
    let open = fixture.open().await;
    fixture.damage(Damage::Flip);
    assert_eq!(fixture.verify().await, FILES);
    let store = engine.store().clone();
    tokio::task::spawn_blocking(move || store.gc().unwrap()).await.unwrap();
    assert_eq!(usize::try_from(server.mend().await.unwrap().files).unwrap(), FILES);
    assert_eq!(fixture.wrong_open(open).await, 0, "wrong files that were open");
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_mount_that_shows_exchanged_files_to_programs_is_named_until_these_have_closed_them() {
    if !can_mount() {
        return;
    }
    let fixture = DamageFixture::new().await;
    let engine = fixture.engine();
    let server = Server::start(&engine).await.unwrap();
    fixture.make_local(&engine, &server, Mode::Native).await;
    fixture.mount(&engine, &server, Mode::Native).await.unwrap();
    // No file of this mount was looked up before.
    fixture.damage(Damage::Swap);
    let open = fixture.open().await;
    assert_eq!(fixture.verify().await, FILES);
    for _ in 0..2 {
        let mended = server.mend().await.unwrap();
        assert_eq!((mended.files, mended.unmended.len()), (0, 1), "{mended:?}");
        assert_eq!(mended.unmended[0].mountpoint, fixture.point());
        let damage = server.status().remove(0).damage.unwrap();
        assert!(damage.starts_with("programs that have a file open read what another file holds"), "{damage}");
    }
    assert_eq!(fixture.wrong_open(open).await, FILES, "nothing else can be done for these");
    let mended = server.mend().await.unwrap();
    assert_eq!((usize::try_from(mended.files).unwrap(), mended.unmended), (FILES, Vec::new()));
    assert_eq!(fixture.wrong().await, (0, 0));
    assert_eq!(server.status().remove(0).damage, None);
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_mounts_of_an_image_those_are_named_that_were_made_before_its_record_was_damaged() {
    if !can_mount() {
        return;
    }
    for mode in [Mode::Native, Mode::Fuse] {
        let fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        let new = fixture.directory("new");
        fixture.mount(&engine, &server, mode).await.unwrap();
        damage_file(&fixture.record_file("manifest"), Damage::Flip, 3);
        fixture.mount_at(&engine, &server, mode, &new).await.unwrap();
        let unmended = server.mend().await.unwrap().unmended;
        let places: Vec<_> = unmended.iter().map(|mount| mount.mountpoint.clone()).collect();
        assert_eq!(places, [fixture.point()], "{mode}");
        server.unmount(fixture.point()).await.unwrap();
        fixture.mount(&engine, &server, mode).await.unwrap();
        assert!(server.status().iter().all(|mount| mount.damage.is_none()), "{mode}: at once");
        assert_eq!(server.mend().await.unwrap().unmended, [], "{mode}");
        server.stop(true).await;
    }
}

async fn mend_without_a_registry(mode: Mode) {
    let mut fixture = DamageFixture::new().await;
    let engine = fixture.engine();
    let server = Server::start(&engine).await.unwrap();
    fixture.make_local(&engine, &server, mode).await;
    fixture.mount(&engine, &server, mode).await.unwrap();
    assert_eq!(fixture.wrong().await, (0, 0));
    let open = fixture.open().await;
    fixture.damage(Damage::Flip);
    fixture.stop_registry();
    assert_eq!(fixture.verify().await, FILES);
    let mended = server.mend().await.unwrap();
    assert_eq!((mended.files, mended.unmended.len()), (0, 1));
    assert_eq!(mended.unmended[0].mountpoint, fixture.point());
    let damage = server.status().remove(0).damage.unwrap();
    assert!(damage.starts_with("files that were open when they were found damaged"), "{damage}");
    drop(open);
    server.mend().await.unwrap();
    let (wrong, failed) = fixture.wrong().await;
    assert_eq!(wrong, 0, "what is opened now is an error, and not wrong ({failed} failed)");
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_mount_that_cannot_be_mended_is_named_and_files_opened_then_are_errors_and_not_wrong() {
    if can_mount() {
        mend_without_a_registry(Mode::Native).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fuse_mount_that_cannot_be_mended_is_named_and_files_opened_then_are_errors_and_not_wrong() {
    if can_mount() {
        mend_without_a_registry(Mode::Fuse).await;
    }
}

const RECORD: [&str; 6] = ["manifest", "config", "tree.erofs", "chunks", "objects", "record.json"];

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_any_damaged_file_of_its_record_is_prepared_again_with_a_message() {
    if !can_mount() {
        return;
    }
    for mode in [Mode::Native, Mode::Fuse] {
        let fixture = DamageFixture::new().await;
        for same_server in [true, false] {
            let mut engine = fixture.engine();
            let mut server = Server::start(&engine).await.unwrap();
            for (number, name) in RECORD.into_iter().enumerate() {
                let damages = [Damage::Flip, Damage::Cut, Damage::Zero, Damage::Remove];
                // Otherwise two of them, which differ from file to file.
                let tested = if matrix::is_full() { &damages[..] } else { &damages[number % 2 * 2..][..2] };
                for &damage in tested {
                    fixture.mount(&engine, &server, mode).await.unwrap();
                    server.unmount(fixture.point()).await.unwrap();
                    let hurt = || damage_file(&fixture.record_file(name), damage, number);
                    if same_server {
                        hurt();
                    } else {
                        server.stop(true).await;
                        hurt();
                        engine = fixture.engine();
                        server = Server::start(&engine).await.unwrap();
                    }
                    fixture.notes.take();
                    let what = format!("{mode} {name} {damage:?}");
                    fixture.mount(&engine, &server, mode).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(fixture.wrong().await, (0, 0), "{what}");
                    let line = format!("the image is damaged in the store ({name}): it is prepared again");
                    assert_eq!(fixture.notes.take(), [line], "{what}");
                    server.unmount(fixture.point()).await.unwrap();
                }
            }
            server.stop(true).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_registry_an_image_with_a_damaged_record_is_an_error_that_names_the_file() {
    for name in RECORD {
        let mut fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        fixture.prepare(&engine, Pull::Missing).await.unwrap();
        fixture.stop_registry();
        fixture.prepare(&engine, Pull::Missing).await.unwrap();
        damage_file(&fixture.record_file(name), Damage::Cut, 3);
        for pull in [Pull::Missing, Pull::Newer] {
            let error = fixture.prepare(&engine, pull).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            let damage = format!("; the image is damaged in the store: {name}");
            assert!(error.cause().to_string().ends_with(&damage), "{error}");
        }
        let error = fixture.prepare(&engine, Pull::Never).await.unwrap_err();
        let cause = format!("the image is damaged there: {name}");
        assert_eq!((error.kind, error.cause().to_string()), (ErrorKind::Store, cause));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_restore_a_damaged_mount_reports_why_and_mounts_it_once_it_is_prepared() {
    if !can_mount() {
        return;
    }
    for name in RECORD {
        let fixture = DamageFixture::new().await;
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        fixture.mount(&engine, &server, Mode::Native).await.unwrap();
        server.suspend().await;
        damage_file(&fixture.record_file(name), Damage::Flip, 5);
        let engine = fixture.engine();
        let server = Server::start(&engine).await.unwrap();
        let status = server.status().remove(0);
        let problem = status.problem.unwrap();
        assert!(problem.contains(name) && problem.contains("damaged"), "{problem}");
        fixture.mount(&engine, &server, Mode::Native).await.unwrap();
        assert_eq!(fixture.wrong().await, (0, 0));
        assert_eq!(server.status().remove(0).problem, None);
        server.stop(true).await;
    }
}
