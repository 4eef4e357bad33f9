//! The EROFS image as the kernel, overlayfs and fsck show it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use tarpon_layer::{LayerIndex, ObjectId};
use tarpon_testkit::entries::{Made, char_device, dir, fifo, file, layer, link, sized_file, symlink};
use tarpon_tree::{Tree, erofs, merge};

use crate::detached::Detached;
use crate::dump::{dump, xattrs};
use crate::random_stack;

/// Mounts the image of a tree. Prints the reason and returns `None` if that is not possible.
pub(crate) fn mount(tree: &Tree<'_>, folder: &Path) -> Option<Detached> {
    let path = folder.join("tree.erofs");
    fs::write(&path, erofs::write(tree)).expect("the image can be kept");
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mounting needs root");
        return None;
    }
    match Detached::new("erofs", &[("source", &path)]) {
        Ok(mount) => Some(mount),
        Err(error) if matches!(error.raw_os_error(), Some(1 | 15 | 19 | 95)) || !has_erofs() => {
            println!("skipped: this kernel does not mount EROFS from a file: {error}");
            None
        }
        Err(error) => panic!("the kernel refuses the image: {error}"),
    }
}

fn has_erofs() -> bool {
    fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("erofs"))
}

/// Checks that the kernel shows a stack as the merge does.
fn check(layers: &[LayerIndex]) -> Option<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = merge(layers).expect("not refused");
    let mount = mount(&tree, folder.path())?;
    assert_eq!(dump(&mount.path()), tree.dump());
    Some(())
}

#[test]
fn the_kernel_shows_random_stacks_as_the_merge_does() {
    let accepted = (0..).map(random_stack).filter(|layers| merge(layers).is_ok());
    for layers in accepted.take(64) {
        if check(&layers).is_none() {
            return;
        }
    }
}

/// Cases that exceed the small inode or one block, or are at some edge of the format.
fn edges() -> Vec<Made> {
    let mut entries = vec![
        dir("").mode(0o1777).owner(u32::MAX - 1, 65_536).mtime(-1, 999_999_999),
        sized_file("largest", ObjectId::of(b"largest"), 1 << 43).mode(0o6755),
        sized_file("over_4g", ObjectId::of(b"4g"), (1 << 32) + 1),
        symlink("long", [b'x'; 4095]),
        symlink("fits_exactly", [b'y'; 4096 - 64]),
        symlink("one_too_many", [b'z'; 4096 - 63]),
        char_device("tty", 4095, 0xf_ffff),
        fifo("fifo").mtime(4_294_967_296 * 100, 1),
        file("large_value", "x").xattr("user.large", vec![b'v'; 65_535]),
        file(vec![b'n'; 255], "x").xattr([b"user.".as_slice(), &[b'n'; 250]].concat(), ""),
        dir("tree/of/many/levels"),
    ];
    let acl = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    entries.push(dir("acl").xattr("system.posix_acl_default", acl).xattr("system.posix_acl_access", acl));
    let many = (0..256).fold(file("many_xattrs", "x"), |made, n| made.xattr(format!("user.{n}"), vec![1; n * 3]));
    entries.push(many);
    entries.extend((0..70_000).map(|n| link(format!("links/{n}"), "over_4g")));
    entries.extend((0..300).map(|n| file(format!("labels/{n}"), "x").xattr("security.label", "the same for all")));
    // Directories of every length around that of a block.
    for length in 3900..4100 {
        let name = |n: usize| "n".repeat(if n < 14 { 255 } else { length - 3780 }) + &format!("{n:x}");
        entries.extend((0..15).map(|n| fifo(format!("d{length}/{}", &name(n)[name(n).len().saturating_sub(255)..]))));
    }
    entries
}

#[test]
fn the_kernel_shows_the_extreme_values_of_the_format() {
    check(&[layer(edges())]);
}

#[test]
fn the_kernel_finds_every_name_in_a_directory_of_a_hundred_thousand() {
    check(&[layer((0..100_000).map(|n| file(format!("d/{n:x}"), "x")))]);
}

#[test]
fn inode_numbers_are_those_of_the_image_and_blocks_follow_from_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [layer(edges())];
    let tree = merge(&layers).unwrap();
    let Some(mount) = mount(&tree, folder.path()) else { return };
    let image = erofs::Image::open(erofs::write(&tree)).unwrap();
    for path in ["", "largest", "links/7", "tree/of/many"] {
        let nid = image.resolve(path.as_bytes()).unwrap().unwrap();
        assert_eq!(fs::symlink_metadata(mount.path().join(path)).unwrap().ino(), nid.0, "{path}");
    }
    for (path, size) in [("largest", 1 << 43), ("over_4g", (1 << 32) + 1), ("large_value", 1), ("long", 4095)] {
        let blocks = fs::symlink_metadata(mount.path().join(path)).unwrap().blocks();
        assert_eq!(blocks, u64::div_ceil(size, 4096) * 8, "{path}");
    }
}

#[test]
fn overlayfs_finds_the_content_of_files_in_a_folder_of_objects() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [layer([file("a", "content of a"), file("d/b", "content of b").mode(0o600), file("empty", "")])];
    let tree = merge(&layers).unwrap();
    let Some(lower) = mount(&tree, folder.path()) else { return };
    let objects = folder.path().join("objects");
    for content in ["content of a", "content of b"] {
        let hex = ObjectId::of(content.as_bytes()).hex();
        fs::create_dir_all(objects.join(&hex[..2])).unwrap();
        fs::write(objects.join(&hex[..2]).join(&hex[2..]), content).unwrap();
    }
    let options = [
        ("lowerdir+", &*lower.path()),
        ("datadir+", &*objects),
        ("metacopy", Path::new("on")),
        ("redirect_dir", Path::new("on")),
    ];
    let overlay = match Detached::new("overlay", &options) {
        Ok(overlay) => overlay,
        Err(error) => {
            println!("skipped: this kernel stacks no overlay of data-only layers here: {error}");
            return;
        }
    };
    let read = |name: &str| fs::read_to_string(overlay.path().join(name)).unwrap();
    assert_eq!([read("a"), read("d/b"), read("empty")], ["content of a", "content of b", ""]);
    let stat = File::open(overlay.path().join("d/b")).unwrap().metadata().unwrap();
    assert_eq!((stat.mode() & 0o7777, stat.size(), stat.mtime()), (0o600, 12, 1_700_000_000));
    assert_eq!(xattrs(&overlay.path().join("a")), []);
}

#[test]
fn fsck_of_erofs_utils_finds_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [layer(edges())];
    let mut bytes = erofs::write(&merge(&layers).unwrap());
    // erofs-utils before 1.7 refuse the table of long prefixes: clear its flag, and that of the checksum.
    bytes[1024 + 80] &= !0x40;
    bytes[1024 + 91] = 0;
    bytes[1024 + 8] &= !1;
    let path = folder.path().join("tree.erofs");
    fs::write(&path, bytes).unwrap();
    match Command::new("fsck.erofs").arg(&path).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => println!("skipped: there is no fsck.erofs here"),
        result => {
            let output = result.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
