//! The EROFS image as the kernel shows it. Needs root and a kernel that mounts EROFS from a plain file (6.12).
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{lgetxattr, llistxattr, major, minor};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use tarpon_layer::{Device, LayerIndex, ObjectId, Timestamp};
use tarpon_testkit::entries::{Made, char_device, dir, fifo, file, layer, link, sized_file, symlink};
use tarpon_testkit::stacks;
use tarpon_tree::{Kind, Line, Tree, erofs, merge};

/// A mount that no path leads to, so that nothing stays behind however the test ends.
struct Detached(OwnedFd);

impl Detached {
    fn new(kind: &str, options: &[(&str, &Path)]) -> io::Result<Self> {
        let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, value) in options {
            fsconfig_set_string(&context, *key, *value)?;
        }
        fsconfig_create(&context)?;
        Ok(Self(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?))
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/.", self.0.as_raw_fd()).into()
    }
}

/// Mounts the image of a tree; none, with a line that says why, where that cannot be.
fn mount(tree: &Tree<'_>, folder: &Path) -> Option<Detached> {
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

/// Everything that the kernel shows below `root`, in the words of [`Tree::dump`].
fn dump(root: &Path) -> String {
    let mut text = String::new();
    let mut first_names = HashMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let full = root.join(&path);
        write_line(&full, path.as_os_str().as_bytes(), &mut first_names, &mut text);
        if fs::symlink_metadata(&full).expect("stat").is_dir() {
            let mut names: Vec<_> =
                fs::read_dir(&full).expect("readdir").map(|entry| entry.expect("readdir").file_name()).collect();
            names.sort_by_key(|name| std::cmp::Reverse(name.clone().into_vec()));
            waiting.extend(names.into_iter().map(|name| path.join(name)));
        }
    }
    text
}

fn write_line(full: &Path, path: &[u8], first_names: &mut HashMap<u64, Vec<u8>>, text: &mut String) {
    let stat = fs::symlink_metadata(full).expect("stat");
    let kind = match stat.file_type() {
        kind if kind.is_dir() => Kind::Directory,
        kind if kind.is_file() => Kind::File,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_char_device() => Kind::CharDevice,
        kind if kind.is_block_device() => Kind::BlockDevice,
        _ => Kind::Fifo,
    };
    let target = stat.is_symlink().then(|| fs::read_link(full).expect("readlink").into_os_string().into_vec());
    let all = xattrs(full);
    let (ours, xattrs): (Vec<_>, Vec<_>) = all.iter().partition(|(name, _)| name.starts_with(b"trusted.overlay."));
    let value = |wanted: &[u8]| ours.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
    assert_eq!(value(b"trusted.overlay.metacopy").map(Vec::len), (ours.len() == 2).then_some(0));
    let object = value(b"trusted.overlay.redirect").map(|redirect| {
        let hex: String = redirect.iter().filter(|byte| **byte != b'/').map(|byte| char::from(*byte)).collect();
        ObjectId::from_hex(&hex).expect("a redirect to an object")
    });
    let device = Device { major: major(stat.rdev()), minor: minor(stat.rdev()) };
    assert_eq!(stat.blocks(), if stat.is_dir() { stat.blocks() } else { stat.size().div_ceil(4096) * 8 });
    let line = Line {
        path,
        kind,
        mode: u16::try_from(stat.mode() & 0o7777).expect("twelve bits"),
        uid: stat.uid(),
        gid: stat.gid(),
        size: stat.size(),
        mtime: Timestamp {
            seconds: stat.mtime(),
            nanoseconds: u32::try_from(stat.mtime_nsec()).expect("below a second"),
        },
        links: u32::try_from(stat.nlink()).expect("few names"),
        target: target.as_deref(),
        device: matches!(kind, Kind::CharDevice | Kind::BlockDevice).then_some(device),
        object,
        xattrs: xattrs.iter().map(|(name, value)| (name.clone(), &**value)).collect(),
        same_as: first_names.get(&stat.ino()).map(|first| &**first),
    };
    writeln!(text, "{line}").expect("a String takes everything");
    first_names.entry(stat.ino()).or_insert_with(|| path.to_vec());
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    let length = llistxattr(path, &mut names).expect("listxattr");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut all: Vec<_> = names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = lgetxattr(path, CString::new(name).expect("no NUL"), &mut value);
            let length = length.unwrap_or_else(|error| panic!("xattr {}: {error}", name.escape_ascii()));
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect();
    all.sort();
    all
}

/// Checks that the kernel shows a stack as the merge does.
fn check(layers: &[LayerIndex]) -> Option<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = merge(layers).expect("not refused");
    let mount = mount(&tree, folder.path())?;
    assert_eq!(dump(&mount.path()), tree.dump());
    Some(())
}

fn random_stack(seed: u64) -> Vec<LayerIndex> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(state >> 56).expect("eight bits")
    };
    stacks::from_bytes(&(0..600).map(|_| next()).collect::<Vec<_>>())
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

/// What does not fit the small inode, or one block, or lies at some edge of the format.
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
fn the_kernel_shows_what_lies_at_the_edges_of_the_format() {
    check(&[layer(edges())]);
}

#[test]
fn the_kernel_finds_every_name_in_a_directory_of_a_hundred_thousand() {
    check(&[layer((0..100_000).map(|n| file(format!("d/{n:x}"), "x")))]);
}

#[test]
fn inode_numbers_are_those_of_the_image() {
    let folder = tempfile::tempdir().unwrap();
    let layers = [layer(edges())];
    let tree = merge(&layers).unwrap();
    let Some(mount) = mount(&tree, folder.path()) else { return };
    let image = erofs::Image::open(erofs::write(&tree)).unwrap();
    for path in ["", "largest", "links/7", "tree/of/many"] {
        let nid = image.resolve(path.as_bytes()).unwrap().unwrap();
        assert_eq!(fs::symlink_metadata(mount.path().join(path)).unwrap().ino(), nid.0, "{path}");
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
    // erofs-utils before 1.7 refuse the table of long prefixes: take its mark off, and that of the checksum.
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
