//! The file tree that the kernel shows, in the format of [`tarpon_tree::Tree::dump`].

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{lgetxattr, llistxattr, major, minor};
use tarpon_layer::{Device, ObjectId, Timestamp};
use tarpon_tree::{Kind, Line};

/// All properties that the kernel shows below `root`, in the format of [`tarpon_tree::Tree::dump`].
pub(crate) fn dump(root: &Path) -> String {
    dump_where(root, |_| true)
}

/// As [`dump()`], only with the names for which `keep` returns `true`.
pub(crate) fn dump_where(root: &Path, keep: impl Fn(&Path) -> bool) -> String {
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
            waiting.extend(names.into_iter().map(|name| path.join(name)).filter(|path| keep(&root.join(path))));
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

pub(crate) fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
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
