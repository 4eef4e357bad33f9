//! What entries of a layer have in common is in its index once.

use tarpon_layer::{ChunkPlace, LayerIndex, Node, Shared};
use tarpon_testkit::layers::{Dialect, Item, RawHeader, Tar, tar};

mod common;

use common::{RANDOM, import_tar};

fn index(items: &[Item]) -> LayerIndex {
    import_tar(&tar(items, Dialect::Pax), RANDOM).expect("a layer").0
}

fn content<'a>(index: &'a LayerIndex, path: &str) -> &'a Shared<tarpon_layer::FileContent> {
    let entry = index.entries.iter().find(|entry| entry.path.as_bytes() == path.as_bytes());
    match entry.map(|entry| &entry.node) {
        Some(Node::File(content)) => content,
        other => panic!("no file at {path}: {other:?}"),
    }
}

#[test]
fn files_of_the_same_content_share_its_chunks() {
    let index = index(&[Item::file("a", b"same"), Item::file("b", b"other"), Item::file("c", b"same")]);
    assert_eq!(content(&index, "a"), content(&index, "c"));
    assert_ne!(content(&index, "a"), content(&index, "b"));
    assert_eq!(index.chunks.len(), 2);
}

#[test]
fn a_sparse_file_and_a_file_of_the_same_zeros_keep_their_own_chunks() {
    let zeros = vec![0; 300_000];
    let sparse = |tar: Tar, name: &str| {
        let records = [("GNU.sparse.map", &b"300000,0"[..]), ("GNU.sparse.size", b"300000")];
        tar.pax(&records).sized(RawHeader::new(name), b"")
    };
    let whole = |tar: Tar, name: &str| tar.sized(RawHeader::new(name), &zeros);
    let layer = sparse(whole(sparse(whole(Tar::new(), "a"), "b"), "c"), "d").finish();
    let index = import_tar(&layer, RANDOM).expect("a layer").0;
    let is_hole = |path| {
        let first = content(&index, path).first_chunk as usize;
        index.chunks[first].place == ChunkPlace::Zeros
    };
    assert_eq!(["a", "b", "c", "d"].map(is_hole), [false, true, false, true]);
}

#[test]
fn a_content_stays_as_long_as_one_of_its_files() {
    let both = [Item::file("a", b"same"), Item::file("b", b"first"), Item::file("c", b"same")];
    let replaced = |name| index(&[&both[..], &[Item::file(name, b"new")]].concat());
    for (name, chunks) in [("a", 3), ("b", 2), ("c", 3)] {
        let index = replaced(name);
        assert_eq!(index.chunks.len(), chunks, "{name}");
        for other in ["a", "b", "c"] {
            let content = content(&index, other);
            assert_eq!(index.chunks[content.first_chunk as usize].digest, content.object, "{name} {other}");
        }
    }
}

#[test]
fn a_changed_entry_leaves_those_alone_that_it_shared_something_with() {
    let mut index = index(&[Item::file("a", b"same"), Item::file("b", b"same")]);
    index.entries[0].attributes.uid = 7;
    assert_eq!((index.entries[0].attributes.uid, index.entries[1].attributes.uid), (7, 0));
}
