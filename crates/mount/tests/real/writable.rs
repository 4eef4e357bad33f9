//! Mounts that can be written to.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use tarpon_mount::{Mode, Unmounted, Writable};
use tarpon_testkit::entries::{dir, file};

use crate::bed::{Bed, MODES};
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
        let Some(bed) = Bed::new() else { return };
        bed.objects.add("old", Manner::Remote);
        let mut spec = bed.spec(mode, [dir("d"), file("d/f", "old"), file("gone", "old")]);
        spec.writable = Writable::Temporary;
        let mounted = bed.mount_spec(&spec).unwrap();
        std::fs::write(bed.at("d/new"), b"new").unwrap();
        std::fs::write(bed.at("d/f"), b"changed").unwrap();
        std::fs::remove_file(bed.at("gone")).unwrap();
        assert_eq!(entries(&bed.at("d")), ["f", "new"]);
        assert_eq!(std::fs::read(bed.at("d/f")).unwrap(), b"changed", "{mode}");
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Clean);
        assert_eq!(entries(&bed.path("run")), [""; 0], "{mode}: nothing is left");
        assert_eq!(entries(&bed.path("mnt")), [""; 0]);
    }
}

#[test]
fn changing_a_mode_under_a_temporary_upper_fetches_no_data() {
    let Some(bed) = Bed::new() else { return };
    let content = vec![3_u8; 1 << 20];
    bed.objects.add(content.clone(), Manner::Remote);
    let mut spec = bed.spec(Mode::Native, [file("f", &content)]);
    spec.writable = Writable::Temporary;
    let _mounted = bed.mount_spec(&spec).unwrap();
    std::fs::set_permissions(bed.at("f"), PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(bed.at("f"), Some(5), None).unwrap();
    let changed = bed.at("f").metadata().unwrap();
    assert_eq!((changed.mode() & 0o7777, changed.uid()), (0o700, 5));
    assert_eq!(bed.objects.asked(), 0);
    assert!(std::fs::read(bed.at("f")).unwrap() == content, "and the content is there when it is read");
}

#[test]
fn an_own_upper_is_kept_and_holds_whole_files() {
    for mode in MODES {
        let Some(bed) = Bed::new() else { return };
        bed.objects.add("content", Manner::Remote);
        let mut spec = bed.spec(mode, [file("f", "content"), file("gone", "content")]);
        let upper = bed.path("upper");
        spec.writable = Writable::Upper(upper.clone());
        let mounted = bed.mount_spec(&spec).unwrap();
        std::fs::set_permissions(bed.at("f"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::remove_file(bed.at("gone")).unwrap();
        mounted.unmount().unwrap();
        assert_eq!(std::fs::read(upper.join("f")).unwrap(), b"content", "{mode}: not a mark but the file");
        assert!(upper.join("gone").symlink_metadata().unwrap().file_type().is_char_device(), "{mode}: a whiteout");
        let again = bed.mount_spec(&spec).unwrap();
        assert_eq!(bed.at("f").metadata().unwrap().mode() & 0o7777, 0o700, "{mode}: still there");
        drop(again);
    }
}

#[test]
fn a_plain_umount_leaves_no_upper_and_no_work_directory() {
    for mode in MODES {
        let Some(bed) = Bed::new() else { return };
        let mut spec = bed.spec(mode, [file("f", "")]);
        for writable in [Writable::Temporary, Writable::Upper(bed.path("upper"))] {
            spec.writable = writable;
            let mounted = bed.mount_spec(&spec).unwrap();
            rustix::mount::unmount(bed.path("mnt"), rustix::mount::UnmountFlags::empty()).unwrap();
            bed.runtime.block_on(mounted.wait());
            bed.runtime.block_on(bed.host.drained());
            assert_eq!(entries(&bed.path("run")), [""; 0], "{mode}");
        }
        assert!(!bed.path(".upper.tarpon-work").exists(), "{mode}");
    }
}

#[test]
fn the_upper_of_a_lazily_unmounted_mount_lives_as_long_as_its_users() {
    for mode in MODES {
        let Some(bed) = Bed::new() else { return };
        let mut spec = bed.spec(mode, [file("f", "")]);
        spec.writable = Writable::Temporary;
        let mounted = bed.mount_spec(&spec).unwrap();
        std::fs::write(bed.at("new"), b"written").unwrap();
        let open = std::fs::File::open(bed.path("mnt")).unwrap();
        assert_eq!(mounted.unmount().unwrap(), Unmounted::Lazy);
        bed.host.sweep();
        let new = rustix::fs::openat(&open, "new", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(std::io::read_to_string(std::fs::File::from(new)).unwrap(), "written", "{mode}");
        drop(open);
        bed.runtime.block_on(bed.host.drained());
        assert_eq!(entries(&bed.path("run")), [""; 0], "{mode}");
    }
}

#[test]
fn an_upper_in_use_survives_a_sweep_whatever_its_path_is_called() {
    for mode in MODES {
        let folder = tempfile::Builder::new().prefix("a b,c").tempdir().unwrap();
        let Some(bed) = Bed::new_in(folder) else { return };
        let mut spec = bed.spec(mode, [file("f", "")]);
        spec.writable = Writable::Temporary;
        let _mounted = bed.mount_spec(&spec).unwrap();
        std::fs::write(bed.at("new"), b"written").unwrap();
        let _another_server = bed.second_host();
        assert_eq!(entries(&bed.path("run")).len(), 1, "{mode}");
        std::fs::write(bed.at("newer"), b"written").unwrap();
    }
}

#[test]
fn an_upper_that_another_mount_writes_to_is_refused() {
    for mode in MODES {
        let Some(bed) = Bed::new() else { return };
        let mut spec = bed.spec(mode, [file("f", "")]);
        spec.writable = Writable::Upper(bed.path("upper"));
        let _first = bed.mount_spec(&spec).unwrap();
        spec.mountpoint = bed.path("other");
        std::fs::create_dir(&spec.mountpoint).unwrap();
        for host in [&bed.host, &bed.second_host()] {
            let error = host.mount(&spec).err().expect("refused").to_string();
            assert!(error.contains("writes to it already") && error.contains("/mnt"), "{mode}: {error}");
        }
    }
}
