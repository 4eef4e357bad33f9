//! Compares the walk with other readers and writers of tars: the `tar` crate, and GNU tar if it is installed.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests may")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use common::{RANDOM, import_tar, read_by_chunks};
use proptest::prelude::*;
use tarpon_layer::tar::{TarKind, TarReader};
use tarpon_layer::{LayerIndex, Node};
use tarpon_testkit::layers::{Dialect, Item, random, tar};

/// The properties of an entry that both readers return.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    name: Vec<u8>,
    kind: u8,
    link: Vec<u8>,
    numbers: (u32, u64, u64, u64),
    content: Vec<u8>,
}

fn by_us(bytes: &[u8]) -> Vec<Seen> {
    let mut reader = TarReader::new(bytes);
    let mut seen = Vec::new();
    while let Some(entry) = reader.next_entry().expect("a sound tar") {
        let kind = match entry.kind {
            TarKind::File => b'0',
            TarKind::HardLink => b'1',
            TarKind::Symlink => b'2',
            TarKind::CharDevice(_) => b'3',
            TarKind::BlockDevice(_) => b'4',
            TarKind::Directory => b'5',
            TarKind::Fifo => b'6',
        };
        let mut content = Vec::new();
        reader.read_to_end(&mut content).expect("its data");
        assert_eq!(content.len() as u64, entry.size);
        let attributes = entry.attributes;
        let mtime = u64::try_from(attributes.mtime.seconds).expect("after 1970");
        let numbers = (attributes.mode.into(), attributes.uid.into(), attributes.gid.into(), mtime);
        seen.push(Seen { name: entry.name, kind, link: entry.link, numbers, content });
    }
    seen
}

fn by_the_tar_crate(bytes: &[u8]) -> Vec<Seen> {
    let mut archive = tar::Archive::new(bytes);
    let mut seen = Vec::new();
    for entry in archive.entries().expect("a tar") {
        let mut entry = entry.expect("a sound tar");
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("its data");
        let mut numbers = {
            let header = entry.header();
            let number = |number: std::io::Result<u64>| number.expect("a number");
            let mode = header.mode().expect("a number") & 0o7777;
            (mode, number(header.uid()), number(header.gid()), number(header.mtime()))
        };
        for extension in entry.pax_extensions().expect("records").into_iter().flatten() {
            let extension = extension.expect("a record");
            let number = || extension.value().expect("text").split('.').next().unwrap().parse().expect("a number");
            match extension.key().expect("text") {
                "uid" => numbers.1 = number(),
                "gid" => numbers.2 = number(),
                "mtime" => numbers.3 = number(),
                _ => {}
            }
        }
        seen.push(Seen {
            name: entry.path_bytes().into_owned(),
            kind: entry.header().entry_type().as_byte(),
            link: entry.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default(),
            numbers,
            content,
        });
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn the_tar_crate_reads_the_same_entries(
        mut items in random::layer(),
        dialect in prop_oneof![Just(Dialect::Pax), Just(Dialect::Gnu)],
        long in 90..300_usize,
    ) {
        items.push(Item::file(format!("long/{}", "n".repeat(long.min(255))), "x"));
        items.push(Item::symlink("s", "t".repeat(long)));
        for item in &mut items {
            item.mtime.0 = item.mtime.0.abs();
            item.xattrs.clear();
        }
        let bytes = tar(&items, dialect);
        prop_assert_eq!(by_us(&bytes), by_the_tar_crate(&bytes));
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        tarpon_testkit::fuzz::tar_walk(&bytes);
        tarpon_testkit::fuzz::pax(&bytes);
        tarpon_testkit::fuzz::estargz_footer_toc(&bytes);
        tarpon_testkit::fuzz::zstd_chunked_toc(&bytes);
        tarpon_testkit::fuzz::decode_chunk(&bytes);
        tarpon_testkit::fuzz::chunk_table(&bytes);
    }

    #[test]
    fn damaged_tars_are_refused_or_read(
        items in random::layer(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = tar(&items, Dialect::Pax);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        tarpon_testkit::fuzz::tar_walk(&bytes);
        tarpon_testkit::fuzz::write_layer(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        tarpon_testkit::fuzz::tar_walk(&bytes);
        tarpon_testkit::fuzz::write_layer(&bytes);
    }
}

/// A folder with special cases of GNU tar: long names, links, sparse files of several shapes.
fn build_folder(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut contents = BTreeMap::new();
    let deep = format!("d/{}/{}", "e".repeat(90), "f".repeat(90));
    fs::create_dir_all(root.join(&deep)).unwrap();
    let mut write = |name: &str, size: u64, pieces: &[(u64, &[u8])]| {
        let mut file = File::create(root.join(name)).unwrap();
        file.set_len(size).unwrap();
        let mut content = vec![0; usize::try_from(size).unwrap()];
        for (offset, piece) in pieces {
            file.seek(SeekFrom::Start(*offset)).unwrap();
            file.write_all(piece).unwrap();
            content[usize::try_from(*offset).unwrap()..][..piece.len()].copy_from_slice(piece);
        }
        contents.insert(name.to_owned(), content);
    };
    write("d/plain", 5, &[(0, b"plain")]);
    write("d/empty", 0, &[]);
    write(&format!("{deep}/leaf"), 4, &[(0, b"leaf")]);
    write("d/hole", 1 << 20, &[]);
    write("d/ends", 1 << 20, &[(0, b"head"), ((1 << 20) - 4, b"tail")]);
    let comb: Vec<(u64, &[u8])> = (0..40).map(|tooth| (tooth << 16, &b"tooth"[..])).collect();
    write("d/comb", 40 << 16, &comb);
    fs::hard_link(root.join("d/plain"), root.join("d/second")).unwrap();
    symlink("t".repeat(200), root.join("d/symlink")).unwrap();
    fs::set_permissions(root.join("d/plain"), fs::Permissions::from_mode(0o4751)).unwrap();
    contents
}

fn check_folder(index: &LayerIndex, root: &Path, contents: &BTreeMap<String, Vec<u8>>, bytes: &[u8], format: &str) {
    assert!(index.entries.len() >= contents.len() + 4, "{format}");
    for entry in &index.entries {
        let name = String::from_utf8(entry.path.as_bytes().to_vec()).unwrap();
        let path = root.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        match &entry.node {
            Node::File(_) => {
                let content = contents.get(&name).unwrap_or_else(|| &contents["d/plain"]);
                assert!(read_by_chunks(index, entry, bytes) == *content, "{format}: {name}");
            }
            Node::Symlink(target) => {
                assert_eq!(&***target, fs::read_link(&path).unwrap().as_os_str().as_encoded_bytes())
            }
            Node::HardLink(_) => continue,
            Node::Directory => assert!(metadata.is_dir()),
            other => panic!("{format}: {name} is {other:?}"),
        }
        assert_eq!(u32::from(entry.attributes.mode), metadata.mode() & 0o7777, "{format}: {name}");
        assert_eq!(entry.attributes.mtime.seconds, metadata.mtime(), "{format}: {name}");
        assert_eq!((entry.attributes.uid, entry.attributes.gid), (metadata.uid(), metadata.gid()));
        if format.contains("posix") {
            assert_eq!(i64::from(entry.attributes.mtime.nanoseconds), metadata.mtime_nsec(), "{format}: {name}");
        }
    }
}

#[test]
fn archives_of_gnu_tar_are_read_back_unchanged() {
    let is_gnu =
        Command::new("tar").arg("--version").output().is_ok_and(|output| output.stdout.starts_with(b"tar (GNU"));
    if !is_gnu {
        eprintln!("skipped: there is no GNU tar");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let contents = build_folder(folder.path());
    let formats: [&[&str]; 8] = [
        &["--format=gnu"],
        &["--format=oldgnu"],
        &["--format=posix"],
        &["--format=gnu", "--sparse"],
        &["--format=oldgnu", "--sparse"],
        &["--format=posix", "--sparse", "--sparse-version=0.0"],
        &["--format=posix", "--sparse", "--sparse-version=0.1"],
        &["--format=posix", "--sparse", "--sparse-version=1.0"],
    ];
    for arguments in formats {
        let mut command = Command::new("tar");
        command.args(arguments).arg("-C").arg(folder.path()).args(["-cf", "-", "./d"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (index, _) = import_tar(&output.stdout, RANDOM).unwrap();
        check_folder(&index, folder.path(), &contents, &output.stdout, &arguments.join(" "));
    }
}
