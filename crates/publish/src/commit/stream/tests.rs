//! The tar of an upper directory, compared with a naive reading of the same directory, and uppers that are no layers.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tarpon_layer::tar::{TarEntry, TarKind, TarReader};

use super::*;
use proptest::prelude::*;
use tarpon_containers::LeftOut;

/// Name of an overlayfs attribute for mounts of this process.
fn mark(name: &str) -> String {
    let whose = if tarpon_mount::sees_trusted() { "trusted" } else { "user" };
    format!("{whose}.overlay.{name}")
}

fn whiteout(path: &Path) {
    mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
}

fn opaque(path: &Path) {
    setxattr(path, mark("opaque"), b"y", XattrFlags::empty()).unwrap();
}

/// All entries of the layer with their content, or the error.
fn layer(upper: &Path, left_out: LeftOut) -> Result<Vec<(TarEntry, Vec<u8>)>, String> {
    let mut tar = LayerTar::new(Walk::new(upper, left_out, None).map_err(|error| error.to_string())?);
    let mut bytes = Vec::new();
    let read = tar.read_to_end(&mut bytes);
    if let Some(failure) = tar.failure() {
        return Err(failure.to_string());
    }
    read.unwrap();
    let mut reader = TarReader::new(&bytes[..]);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let mut content = Vec::new();
        reader.read_to_end(&mut content).unwrap();
        entries.push((entry, content));
    }
    assert_eq!(bytes.len() % 512, 0);
    Ok(entries)
}

fn names(upper: &Path) -> Vec<String> {
    let layer = layer(upper, LeftOut::default()).unwrap();
    layer.into_iter().map(|(entry, _)| entry.name.escape_ascii().to_string()).collect()
}

/// What is created at a name.
#[derive(Debug, Clone)]
enum Made {
    File(Vec<u8>),
    Directory {
        opaque: bool,
        below: BTreeMap<String, Made>,
    },
    Link(String),
    Fifo,
    Whiteout,
    /// Another name of an earlier file, if one exists.
    Another(prop::sample::Index),
}

fn made() -> impl Strategy<Value = BTreeMap<String, Made>> {
    let name = "[a-c\n =é]{1,3}";
    let leaf = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..1100).prop_map(Made::File),
        1 => "[a-z/.]{1,120}".prop_map(Made::Link),
        1 => Just(Made::Fifo),
        1 => Just(Made::Whiteout),
        2 => any::<prop::sample::Index>().prop_map(Made::Another),
    ];
    let some = leaf.prop_recursive(4, 40, 6, move |inner| {
        (any::<bool>(), prop::collection::btree_map(name, inner, 0..6))
            .prop_map(|(opaque, below)| Made::Directory { opaque, below })
    });
    prop::collection::btree_map(name, some, 0..8)
}

fn make(folder: &Path, names: &BTreeMap<String, Made>, files: &mut Vec<PathBuf>) {
    for (name, what) in names {
        let path = folder.join(name);
        match what {
            Made::File(content) => {
                std::fs::write(&path, content).unwrap();
                files.push(path);
            }
            Made::Directory { opaque: is_opaque, below } => {
                std::fs::create_dir(&path).unwrap();
                make(&path, below, files);
                if *is_opaque {
                    opaque(&path);
                }
            }
            Made::Link(target) => symlink(target, &path).unwrap(),
            Made::Fifo => mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap(),
            Made::Whiteout => whiteout(&path),
            Made::Another(_) if files.is_empty() => {}
            Made::Another(which) => std::fs::hard_link(which.get(files), &path).unwrap(),
        }
    }
}

/// A description of an entry: type, owner, time and content.
type Word = (char, u32, (i64, i64), Vec<u8>);
/// Descriptions by name.
type Words = BTreeMap<Vec<u8>, Word>;

/// The expected entries of a layer of `folder`, found independently of their encoding.
fn expected(folder: &Path, prefix: &[u8], first: &mut BTreeMap<u64, Vec<u8>>, words: &mut Words) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    entries.sort();
    for name in entries {
        let path = folder.join(&name);
        let found = std::fs::symlink_metadata(&path).unwrap();
        let full = [prefix, name.as_bytes()].concat();
        let of = |kind, content| (kind, found.mode() & 0o7777, (found.mtime(), found.mtime_nsec()), content);
        match found.mode() & 0o170_000 {
            0o020_000 => {
                let hidden = [prefix, b".wh.", name.as_bytes()].concat();
                words.insert(hidden, ('f', 0o600, (0, 0), Vec::new()));
            }
            0o040_000 => {
                let inside = [&full[..], b"/"].concat();
                words.insert(inside.clone(), of('d', Vec::new()));
                let mut value = [0; 1];
                if rustix::fs::getxattr(&path, mark("opaque"), &mut value) == Ok(1) {
                    words.insert([&inside[..], b".wh..wh..opq"].concat(), ('f', 0o600, (0, 0), Vec::new()));
                }
                expected(&path, &inside, first, words);
            }
            kind => {
                if let Some(other) = first.get(&found.ino()).filter(|_| found.nlink() > 1) {
                    words.insert(full, of('h', other.clone()));
                    continue;
                }
                first.insert(found.ino(), full.clone());
                let word = match kind {
                    0o120_000 => of('l', std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()),
                    0o010_000 => of('p', Vec::new()),
                    _ => of('f', std::fs::read(&path).unwrap()),
                };
                words.insert(full, word);
            }
        }
    }
}

fn described((entry, content): (TarEntry, Vec<u8>)) -> (Vec<u8>, Word) {
    let (kind, content) = match entry.kind {
        TarKind::File => ('f', content),
        TarKind::HardLink => ('h', entry.link),
        TarKind::Symlink => ('l', entry.link),
        TarKind::Directory => ('d', content),
        TarKind::Fifo => ('p', content),
        TarKind::CharDevice(_) | TarKind::BlockDevice(_) => ('?', content),
    };
    let mtime = (entry.attributes.mtime.seconds, entry.attributes.mtime.nanoseconds.into());
    (entry.name, (kind, entry.attributes.mode.into(), mtime, content))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_layer_describes_what_a_naive_reading_finds(tree in made()) {
        let upper = tempfile::tempdir().unwrap();
        make(upper.path(), &tree, &mut Vec::new());
        std::fs::set_permissions(upper.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut words = Words::new();
        expected(upper.path(), b"", &mut BTreeMap::new(), &mut words);
        let layer = layer(upper.path(), LeftOut::default()).unwrap();
        prop_assert_eq!(layer.len(), words.len(), "no name is there twice");
        let found: Words = layer.into_iter().map(described).filter(|(name, _)| name != b"./").collect();
        prop_assert_eq!(found, words);
    }
}

/// An empty upper directory as a container runtime creates it.
fn upper() -> tempfile::TempDir {
    let upper = tempfile::tempdir().unwrap();
    std::fs::set_permissions(upper.path(), PermissionsExt::from_mode(0o755)).unwrap();
    upper
}

fn refused(upper: &Path) -> String {
    layer(upper, LeftOut::default()).unwrap_err()
}

#[test]
fn a_directory_comes_before_what_is_in_it_and_what_it_hides_first() {
    let upper = upper();
    let at = |name: &str| upper.path().join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    std::fs::write(at("a/.z"), "").unwrap();
    std::fs::write(at("a-"), "").unwrap();
    whiteout(&at("a/gone"));
    opaque(&at("a/b"));
    assert_eq!(names(upper.path()), ["a/", "a/.z", "a/b/", "a/b/.wh..wh..opq", "a/.wh.gone", "a-"]);
}

#[test]
fn whiteouts_by_an_attribute_are_whiteouts_if_there_is_nothing_else_to_them() {
    let upper = upper();
    for (name, content) in [("gone", ""), ("full", "x")] {
        std::fs::write(upper.path().join(name), content).unwrap();
        setxattr(upper.path().join(name), mark("whiteout"), b"y", XattrFlags::empty()).unwrap();
    }
    assert_eq!(names(upper.path()), ["full", ".wh.gone"]);
}

#[test]
fn the_root_is_an_entry_only_if_it_was_changed() {
    let upper = upper();
    assert!(names(upper.path()).is_empty());
    std::fs::set_permissions(upper.path(), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(names(upper.path()), ["./"]);
}

#[test]
fn places_of_mounts_and_volumes_are_left_out() {
    let upper = upper();
    let at = |name: &str| upper.path().join(name);
    for folder in ["etc", "proc", "dev/pts", "data/in", "kept"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    for (file, content) in [("etc/hosts", ""), ("etc/hostname", "mine\n"), ("data/in/file", "x"), ("kept/file", "")] {
        std::fs::write(at(file), content).unwrap();
    }
    let set = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect();
    let left_out = LeftOut {
        mount_points: set(&["etc/hosts", "etc/hostname", "proc", "dev", "dev/pts", "kept"]),
        volumes: set(&["data"]),
    };
    let layer = layer(upper.path(), left_out).unwrap();
    let names: Vec<&[u8]> = layer.iter().map(|(entry, _)| &entry.name[..]).collect();
    let expected: [&[u8]; 5] = [b"dev/", b"etc/", b"etc/hostname", b"kept/", b"kept/file"];
    assert_eq!(names, expected);
}

#[test]
fn each_name_of_a_file_has_its_attributes() {
    let upper = upper();
    let (one, other) = (upper.path().join("one"), upper.path().join("two"));
    std::fs::write(&one, "x").unwrap();
    setxattr(&one, "user.note", b"kept", XattrFlags::empty()).unwrap();
    std::fs::hard_link(&one, &other).unwrap();
    let layer = layer(upper.path(), LeftOut::default()).unwrap();
    let kinds: Vec<TarKind> = layer.iter().map(|(entry, _)| entry.kind).collect();
    assert_eq!(kinds, [TarKind::File, TarKind::HardLink]);
    for (entry, _) in layer {
        assert_eq!(
            (&*entry.attributes.xattrs[0].name, &*entry.attributes.xattrs[0].value),
            (&b"user.note"[..], &b"kept"[..])
        );
    }
}

#[test]
fn sockets_are_left_out_and_counted() {
    let upper = upper();
    let _socket = std::os::unix::net::UnixListener::bind(upper.path().join("socket")).unwrap();
    let mut tar = LayerTar::new(Walk::new(upper.path(), LeftOut::default(), None).unwrap());
    std::io::copy(&mut tar, &mut std::io::sink()).unwrap();
    assert_eq!((tar.entries(), tar.tally().sockets), (0, 1));
}

#[test]
fn no_time_is_newer_than_the_given_one() {
    let upper = upper();
    std::fs::write(upper.path().join("new"), "x").unwrap();
    let mut tar = LayerTar::new(Walk::new(upper.path(), LeftOut::default(), Some(1_000_000_000)).unwrap());
    let mut bytes = Vec::new();
    tar.read_to_end(&mut bytes).unwrap();
    let entry = TarReader::new(&bytes[..]).next_entry().unwrap().unwrap();
    assert_eq!((entry.attributes.mtime.seconds, entry.attributes.mtime.nanoseconds), (1_000_000_000, 0));
}

#[test]
fn names_that_would_mean_something_else_are_refused() {
    for name in [".wh.file", ".wh..wh..opq", ".wh."] {
        let upper = upper();
        std::fs::create_dir(upper.path().join("dir")).unwrap();
        std::fs::write(upper.path().join("dir").join(name), "").unwrap();
        let error = refused(upper.path());
        assert!(error.starts_with(&format!("/dir/{name}: a name that begins with .wh.")), "{error}");
    }
}

#[test]
fn any_other_name_is_taken_as_it_is() {
    let upper = upper();
    let odd: [&[u8]; 4] = [b"new\nline", b"back\\slash", b"\xff\xfe", b" PaxHeaders.0"];
    for name in odd {
        std::fs::write(upper.path().join(OsStr::from_bytes(name)), name).unwrap();
    }
    for (entry, content) in layer(upper.path(), LeftOut::default()).unwrap() {
        assert_eq!(entry.name, content);
    }
}

#[test]
fn marks_that_say_that_a_file_is_not_all_are_refused() {
    for (name, why) in [("metacopy", "without data"), ("redirect", "without its content")] {
        let upper = upper();
        let path = upper.path().join("file");
        std::fs::write(&path, "").unwrap();
        setxattr(&path, mark(name), b"/elsewhere", XattrFlags::empty()).unwrap();
        let error = refused(upper.path());
        assert!(error.starts_with("/file: ") && error.contains(why), "{error}");
    }
}

#[test]
fn deep_trees_take_no_stack_and_end_where_images_do() {
    let upper = upper();
    let deep = |levels: usize| vec!["d"; levels].join("/");
    std::fs::create_dir_all(upper.path().join(deep(256))).unwrap();
    assert_eq!(names(upper.path()).len(), 256);
    std::fs::create_dir_all(upper.path().join(deep(1500))).unwrap();
    assert!(refused(upper.path()).contains("more deeply"));
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_one_that_grows_is_cut() {
    let upper = upper();
    let path = upper.path().join("log");
    let read = |change: &dyn Fn()| {
        std::fs::write(&path, vec![b'x'; 100_000]).unwrap();
        let mut tar = LayerTar::new(Walk::new(upper.path(), LeftOut::default(), None).unwrap());
        let mut bytes = vec![0; 2000];
        tar.read_exact(&mut bytes).unwrap();
        change();
        let read = tar.read_to_end(&mut bytes).map(|_| bytes);
        read.map_err(|_| tar.failure().unwrap().to_string())
    };
    let grows = || {
        use std::io::Write;
        std::fs::File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    };
    let bytes = read(&grows).unwrap();
    assert_eq!(TarReader::new(&bytes[..]).next_entry().unwrap().unwrap().size, 100_000);
    let error = read(&|| std::fs::write(&path, "short").unwrap()).unwrap_err();
    assert_eq!(error, "/log: it became shorter while it was read");
}

#[test]
fn an_upper_that_is_removed_while_it_is_read_is_an_error() {
    let upper = upper();
    let (path, gone) = (upper.path().join("upper"), upper.path().join("gone"));
    std::fs::create_dir_all(path.join("dir")).unwrap();
    std::fs::write(path.join("file"), "x").unwrap();
    let mut tar = LayerTar::new(Walk::new(&path, LeftOut::default(), None).unwrap());
    tar.read_exact(&mut [0; 512]).unwrap();
    std::fs::rename(&path, &gone).unwrap();
    std::fs::remove_dir_all(&gone).unwrap();
    // A replacement in its place does not help.
    for again in [false, true] {
        if again {
            std::fs::create_dir(&path).unwrap();
        }
        tar.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(tar.failure().unwrap().to_string(), "/: it was removed while it was read");
    }
}

#[test]
fn an_upper_that_is_none_is_an_error() {
    let upper = upper();
    std::fs::write(upper.path().join("file"), "").unwrap();
    for path in [upper.path().join("file"), upper.path().join("missing")] {
        assert!(Walk::new(&path, LeftOut::default(), None).is_err());
    }
}
