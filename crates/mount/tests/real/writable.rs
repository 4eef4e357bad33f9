//! Mounts that can be written to.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use tarpon_mount::{Mode, Unmounted, Writable};
use tarpon_testkit::entries::{dir, file};

use crate::fixture::{MODES, MountFixture};
use crate::objects::Manner;

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_temporary_upper_takes_writes_and_goes_with_the_mount() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add("old", Manner::Remote);
        let mut spec = fixture.spec(mode, [dir("d"), file("d/f", "old"), file("gone", "old")]);
        spec.writable = Writable::Temporary;
        let mounted = fixture.mount_spec(&spec).unwrap();
        std::fs::write(fixture.at("d/new"), b"new").unwrap();
        std::fs::write(fixture.at("d/f"), b"changed").unwrap();
        std::fs::remove_file(fixture.at("gone")).unwrap();
        assert_eq!(entries(&fixture.at("d")), ["f", "new"]);
        assert_eq!(std::fs::read(fixture.at("d/f")).unwrap(), b"changed", "{mode}");
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean);
        assert_eq!(entries(&fixture.path("run")), [""; 0], "{mode}: nothing is left");
        assert_eq!(entries(&fixture.path("mnt")), [""; 0]);
    }
}

#[test]
fn changing_a_mode_under_a_temporary_upper_fetches_no_data() {
    let Some(fixture) = MountFixture::new() else { return };
    let content = vec![3_u8; 1 << 20];
    fixture.objects.add(content.clone(), Manner::Remote);
    let mut spec = fixture.spec(Mode::Native, [file("f", &content)]);
    spec.writable = Writable::Temporary;
    let _mounted = fixture.mount_spec(&spec).unwrap();
    std::fs::set_permissions(fixture.at("f"), PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(fixture.at("f"), Some(5), None).unwrap();
    let changed = fixture.at("f").metadata().unwrap();
    assert_eq!((changed.mode() & 0o7777, changed.uid()), (0o700, 5));
    assert_eq!(fixture.objects.asked(), 0);
    assert!(std::fs::read(fixture.at("f")).unwrap() == content, "and the content is there when it is read");
}

#[test]
fn an_own_upper_is_kept_and_holds_whole_files() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        fixture.objects.add("content", Manner::Remote);
        let mut spec = fixture.spec(mode, [file("f", "content"), file("gone", "content")]);
        let upper = fixture.path("upper");
        spec.writable = Writable::Upper(upper.clone());
        let mounted = fixture.mount_spec(&spec).unwrap();
        std::fs::set_permissions(fixture.at("f"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::remove_file(fixture.at("gone")).unwrap();
        mounted.unmount().unwrap();
        assert_eq!(std::fs::read(upper.join("f")).unwrap(), b"content", "{mode}: not a mark but the file");
        assert!(upper.join("gone").symlink_metadata().unwrap().file_type().is_char_device(), "{mode}: a whiteout");
        let again = fixture.mount_spec(&spec).unwrap();
        assert_eq!(fixture.at("f").metadata().unwrap().mode() & 0o7777, 0o700, "{mode}: still there");
        drop(again);
    }
}

#[test]
fn a_plain_umount_leaves_no_upper_and_no_work_directory() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mut spec = fixture.spec(mode, [file("f", "")]);
        for writable in [Writable::Temporary, Writable::Upper(fixture.path("upper"))] {
            spec.writable = writable;
            let mounted = fixture.mount_spec(&spec).unwrap();
            rustix::mount::unmount(fixture.path("mnt"), rustix::mount::UnmountFlags::empty()).unwrap();
            fixture.runtime.block_on(mounted.wait());
            fixture.runtime.block_on(fixture.host.drained());
            assert_eq!(entries(&fixture.path("run")), [""; 0], "{mode}");
        }
        assert!(!fixture.path(".upper.tarpon-work").exists(), "{mode}");
    }
}

#[test]
fn the_upper_of_a_lazily_unmounted_mount_lives_as_long_as_its_users() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mut spec = fixture.spec(mode, [file("f", "")]);
        spec.writable = Writable::Temporary;
        let mounted = fixture.mount_spec(&spec).unwrap();
        std::fs::write(fixture.at("new"), b"written").unwrap();
        let open = std::fs::File::open(fixture.path("mnt")).unwrap();
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Lazy);
        fixture.host.sweep();
        let new = rustix::fs::openat(&open, "new", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(new)).unwrap(), "written", "{mode}");
        drop(open);
        fixture.runtime.block_on(fixture.host.drained());
        assert_eq!(entries(&fixture.path("run")), [""; 0], "{mode}");
    }
}

#[test]
fn an_upper_in_use_survives_a_sweep_whatever_its_path_is_called() {
    for mode in MODES {
        let folder = tempfile::Builder::new().prefix("a b,c").tempdir().unwrap();
        let Some(fixture) = MountFixture::new_in(folder) else { return };
        let mut spec = fixture.spec(mode, [file("f", "")]);
        spec.writable = Writable::Temporary;
        let _mounted = fixture.mount_spec(&spec).unwrap();
        std::fs::write(fixture.at("new"), b"written").unwrap();
        let _another_server = fixture.second_host();
        assert_eq!(entries(&fixture.path("run")).len(), 1, "{mode}");
        std::fs::write(fixture.at("newer"), b"written").unwrap();
    }
}

#[test]
fn an_upper_that_another_mount_writes_to_is_refused() {
    for mode in MODES {
        let Some(fixture) = MountFixture::new() else { return };
        let mut spec = fixture.spec(mode, [file("f", "")]);
        spec.writable = Writable::Upper(fixture.path("upper"));
        let _first = fixture.mount_spec(&spec).unwrap();
        spec.mountpoint = fixture.path("other");
        std::fs::create_dir(&spec.mountpoint).unwrap();
        for host in [&fixture.host, &fixture.second_host()] {
            let error = host.mount(&spec).err().expect("refused").to_string();
            assert!(error.contains("writes to it already") && error.contains("/mnt"), "{mode}: {error}");
        }
    }
}
