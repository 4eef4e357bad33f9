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
        spec.writable = Writable::Directory(upper.clone());
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
