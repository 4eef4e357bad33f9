//! What programs see when bytes are unavailable.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use tarpon_mount::Mode;
use tarpon_testkit::entries::file;

use crate::fixture::{MODES, MountFixture, errno};
use crate::objects::Manner;

/// Aborts the connection of a FUSE mount, as the kernel does when its server is killed.
fn kill_connection(fixture: &MountFixture) {
    use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
    let stat = rustix::fs::statx(
        rustix::fs::CWD,
        fixture.path("mnt"),
        rustix::fs::AtFlags::STATX_DONT_SYNC,
        rustix::fs::StatxFlags::INO,
    )
    .unwrap();
    let control = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    rustix::mount::fsconfig_create(&control).unwrap();
    let root = rustix::mount::fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
    let name = format!("{}/abort", stat.stx_dev_minor);
    let file = rustix::fs::openat(root, name, rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty()).unwrap();
    rustix::io::write(file, b"1").unwrap();
}

#[test]
fn a_source_that_fails_is_an_error_and_never_a_short_file() {
    let content = vec![7_u8; 300_000];
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add(content.clone(), Manner::Broken);
        let _mounted = fixture.mount(mode, [file("f", &content)]);
        let mut read = Vec::new();
        assert_eq!(errno(File::open(fixture.at("f")).unwrap().read_to_end(&mut read)), Errno::IO, "{mode}");
        assert!(read.is_empty(), "{mode}");
        fixture.objects.add(content.clone(), Manner::Remote);
        assert!(std::fs::read(fixture.at("f")).unwrap() == content, "{mode}: it recovers without a remount");
    }
}

#[test]
fn a_panic_is_an_error_for_its_reader_alone() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add("bad", Manner::Panics);
        fixture.objects.add("good", Manner::Local);
        let mounted = fixture.mount(mode, [file("bad", "bad"), file("good", "good")]);
        for _ in 0..8 {
            assert_eq!(errno(std::fs::read(fixture.at("bad"))), Errno::IO, "{mode}");
        }
        assert_eq!(std::fs::read(fixture.at("good")).unwrap(), b"good", "{mode}");
        assert!(mounted.counters().panics.load(std::sync::atomic::Ordering::Relaxed) > 0);
    }
}

#[test]
fn a_reader_that_waits_can_be_killed() {
    let content = vec![1_u8; 200_000];
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add(content.clone(), Manner::Silent);
        fixture.objects.add("good", Manner::Local);
        let _mounted = fixture.mount(mode, [file("f", &content), file("good", "good")]);
        let mut reader = Command::new("cat").arg(fixture.at("f")).stdout(Stdio::null()).spawn().unwrap();
        fixture.objects.wait_until_asked(&fixture.runtime);
        assert_eq!(std::fs::read(fixture.at("good")).unwrap(), b"good", "{mode}: others do not wait");
        reader.kill().unwrap();
        assert!(!reader.wait().unwrap().success(), "{mode}");
        fixture.objects.speak();
    }
}

#[test]
fn readers_of_a_dead_server_get_an_error_and_the_next_mount_clears_it_away() {
    let Some(fixture) = MountFixture::new() else { return };
    fixture.objects.add("content", Manner::Silent);
    let spec = fixture.spec(Mode::Fuse, [file("f", "content")]);
    let dead = fixture.mount_spec(&spec).unwrap();
    let reader = Command::new("cat").arg(fixture.at("f")).stderr(Stdio::null()).spawn().unwrap();
    fixture.objects.wait_until_asked(&fixture.runtime);
    kill_connection(&fixture);
    assert!(!reader.wait_with_output().unwrap().status.success());
    assert_eq!(errno(fixture.at("f").metadata()), Errno::NOTCONN);
    fixture.objects.speak();
    let again = fixture.mount_spec(&spec).unwrap();
    assert_eq!(std::fs::read(fixture.at("f")).unwrap(), b"content");
    fixture.runtime.block_on(dead.wait());
    assert!(again.is_attached());
}
