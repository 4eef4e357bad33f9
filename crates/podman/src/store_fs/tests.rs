//! Single changes, and random trees across servers.

mod random;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_fs::{Attr, Errno, Kind, NodeId, Operations, Take};
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;
use tarpon_testkit::entries::{dir, file, layer};

use super::saved;
use super::{Directory, Item, LayerIdentity, StoreFs};
use crate::diff_fs::{DiffFs, NODE_BITS};
use crate::layer_numbers::Diff;
use crate::saved_state::{RestoreError, Save};

const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const LATER: Timestamp = Timestamp { seconds: 2, nanoseconds: 0 };

fn text(content: &str) -> Item {
    Item::File(Bytes::copy_from_slice(content.as_bytes()))
}

fn nowhere() -> Save {
    Box::new(|_| {})
}

fn store(root: Directory) -> StoreFs {
    StoreFs::new(root, NOW, nowhere())
}

fn shown(diff: &Diff) -> Item {
    Item::Layer { id: Digest::of(b"layer"), diff: diff.clone() }
}

fn a_layer() -> Diff {
    a_layer_of("abc")
}

fn a_layer_of(content: &str) -> Diff {
    let layers = [layer([dir("etc"), file("etc/f", content)])];
    let tree = tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap());
    Arc::new(DiffFs::merged(Bytes::from(tree), [Box::from(&b"old"[..])]).unwrap())
}

fn find(files: &StoreFs, path: &str) -> Result<Attr, Errno> {
    path.split('/').try_fold(files.attributes(NodeId::ROOT)?, |at, name| files.lookup(at.node, name.as_bytes()))
}

fn names(files: &StoreFs, node: NodeId) -> Vec<String> {
    let (mut names, mut position) = (Vec::new(), 0);
    loop {
        // One at a time, to resume at every position.
        let mut found = None;
        files
            .read_dir(node, position, &mut |entry| match found {
                Some(_) => Take::Enough,
                None => {
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    found = Some((name, entry.next));
                    Take::More
                }
            })
            .unwrap();
        match found {
            Some((name, next)) => {
                names.push(name);
                position = next;
            }
            None => return names,
        }
    }
}

#[test]
fn a_file_that_changed_is_another_file_and_the_old_one_stays_readable() {
    let files = store(Directory::of([("a", text("one")), ("b", text("same"))]));
    let (old, same) = (find(&files, "a").unwrap(), find(&files, "b").unwrap());
    files.set(Directory::of([("a", text("two")), ("b", text("same"))]), LATER);
    let new = find(&files, "a").unwrap();
    assert_ne!(new.node, old.node);
    assert_eq!((files.held(old.node).unwrap(), files.held(new.node).unwrap()), ("one".into(), "two".into()));
    assert_eq!((find(&files, "b").unwrap(), new.mtime), (same, LATER));
    for number in 0..64 {
        files.set(Directory::of([("a", text(&number.to_string()))]), LATER);
    }
    assert_eq!(files.attributes(old.node), Err(Errno::Stale), "not for ever");
}

#[test]
fn directories_keep_their_nodes_and_change_their_time_with_their_names() {
    let inner = |item| Directory::of([("d", Item::Directory(item))]);
    let files = store(inner(Directory { uid: 5, gid: 6, ..Directory::of([("x", text("1"))]) }));
    let before = find(&files, "d").unwrap();
    assert_eq!((before.uid, before.gid, before.mode), (5, 6, 0o755));
    files.set(inner(Directory::of([("x", text("1")), ("y", text("2"))])), LATER);
    let after = find(&files, "d").unwrap();
    assert_eq!((after.node, before.mtime, after.mtime), (before.node, NOW, LATER));
    assert_eq!(names(&files, after.node), [".", "..", "x", "y"]);
    assert!(!files.lasts(after.node) && !files.lasts(NodeId::ROOT));
}

#[test]
fn a_layer_is_a_directory_and_lives_on_when_its_name_is_gone() {
    let diff = a_layer();
    let files = store(Directory::of([("diff", shown(&diff)), ("f", text(""))]));
    let file = find(&files, "diff/etc/f").unwrap();
    assert_eq!((file.size, file.kind), (3, Kind::File));
    assert!(files.lasts(file.node) && files.held(file.node).is_none());
    assert!(files.content(file.node).unwrap().object.is_some());
    let etc = find(&files, "diff/etc").unwrap();
    assert_eq!(files.xattr(etc.node, b"trusted.overlay.opaque").unwrap(), b"y");
    let root = find(&files, "diff").unwrap().node;
    assert_eq!(names(&files, root), [".", "..", "etc", "old"]);
    assert_eq!(find(&files, "diff/old").unwrap().kind, Kind::CharDevice);
    files.set(Directory::default(), LATER);
    assert_eq!(find(&files, "diff"), Err(Errno::NotFound));
    assert_eq!(files.attributes(file.node), Ok(file));
    files.set(Directory::of([("again", shown(&diff))]), LATER);
    assert_eq!(find(&files, "again").unwrap().node, root, "one layer is one file system");
}

#[test]
fn links_lead_where_they_say_and_nothing_else_does() {
    let files = store(Directory::of([("l", Item::Link("../a/diff".to_owned())), ("f", text("x"))]));
    let link = find(&files, "l").unwrap();
    assert_eq!((link.kind, files.read_link(link.node).unwrap()), (Kind::Symlink, b"../a/diff".to_vec()));
    assert_eq!(files.read_link(NodeId::ROOT), Err(Errno::Invalid));
    assert_eq!(find(&files, "f/x"), Err(Errno::NotADirectory));
    assert_eq!(files.content(NodeId::ROOT), Err(Errno::IsADirectory));
    for stranger in [NodeId(99), NodeId(7 << NODE_BITS | 1)] {
        assert_eq!(files.attributes(stranger), Err(Errno::Stale));
    }
}

/// The file system of the next server, which finds these layers.
fn next(saved: &[u8], layers: &[Diff], root: Directory) -> Result<StoreFs, RestoreError> {
    let find = |identity: &LayerIdentity| layers.iter().find(|diff| diff.digest() == identity.content).cloned();
    StoreFs::restored(saved, find, root, LATER, nowhere())
}

#[test]
fn the_next_server_continues_with_the_same_nodes_and_times() {
    let diff = a_layer();
    let root = |file: &str| {
        let inner = Directory::of([("f", text(file)), ("same", text("same")), ("diff", shown(&diff))]);
        Directory::of([("d", Item::Directory(inner)), ("l", Item::Link("d".to_owned()))])
    };
    let before = store(root("one"));
    let after = next(&before.saved(), &[], root("two")).unwrap();
    for path in ["l", "d/same", "d/diff", "d/diff/etc/f"] {
        assert_eq!(find(&after, path), find(&before, path), "{path}");
    }
    let (old, new) = (find(&before, "d/f").unwrap(), find(&after, "d/f").unwrap());
    assert_eq!((after.held(new.node).unwrap(), new.mtime), ("two".into(), LATER));
    assert_eq!(after.attributes(old.node), Err(Errno::Stale), "its bytes are lost");
    assert_eq!(find(&after, "d").unwrap().node, find(&before, "d").unwrap().node);
    after.set(root("three"), LATER);
    let newest = find(&after, "d/f").unwrap().node;
    assert!(newest != new.node && newest != old.node, "no id is issued twice");
}

#[test]
fn a_layer_without_a_name_is_served_by_the_next_server_if_it_is_loaded_there() {
    let diff = a_layer();
    let files = store(Directory::of([("diff", shown(&diff))]));
    let file = find(&files, "diff/etc/f").unwrap();
    files.set(Directory::default(), LATER);
    let saved = files.saved();
    assert_eq!(next(&saved, &[diff], Directory::default()).unwrap().attributes(file.node), Ok(file));
    assert_eq!(
        next(&saved, &[a_layer()], Directory::default()).unwrap().attributes(file.node),
        Ok(file),
        "it is equal"
    );
}

#[test]
fn a_layer_that_is_not_loaded_is_stale_and_keeps_its_number() {
    let (diff, other) = (a_layer(), a_layer_of("other"));
    let files = store(Directory::of([("diff", shown(&diff))]));
    let root = find(&files, "diff").unwrap().node;
    let files = next(&files.saved(), &[], Directory::of([("diff", shown(&other))])).unwrap();
    assert_eq!(files.attributes(root), Err(Errno::Stale));
    assert_ne!(find(&files, "diff").unwrap().node, root, "other content is another layer");
    let files = next(&files.saved(), &[other], Directory::of([("diff", shown(&diff))])).unwrap();
    assert_eq!(find(&files, "diff").unwrap().node, root);
}

#[test]
fn a_tree_is_saved_before_it_is_shown() {
    let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let save = {
        let seen = seen.clone();
        Box::new(move |saved: &[u8]| seen.lock().push(saved.to_vec()))
    };
    let files = StoreFs::new(Directory::default(), NOW, save);
    files.set(Directory::of([("a", text("1"))]), LATER);
    let seen = std::mem::take(&mut *seen.lock());
    assert_eq!((seen.len(), seen.last()), (2, Some(&files.saved())));
    let restored = next(&seen[0], &[], Directory::default()).unwrap();
    assert_eq!(find(&restored, "a"), Err(Errno::NotFound));
}

#[test]
fn what_no_server_saved_is_refused() {
    let files = store(Directory::of([("d", Item::Directory(Directory::default())), ("diff", shown(&a_layer()))]));
    let saved = files.saved();
    let refused = |bytes: &[u8]| next(bytes, &[], Directory::default()).err();
    assert_eq!(refused(&saved), None);
    assert_eq!(refused(b""), Some(RestoreError::Missing));
    assert_eq!(refused(b"tarpon x"), Some(RestoreError::Format));
    assert_eq!(refused(&vec![0; (64 << 20) + 1]), Some(RestoreError::TooLarge));
    for length in 1..saved.len() {
        assert_eq!(refused(&saved[..length]), Some(RestoreError::Format), "cut to {length} bytes");
    }
    assert_eq!(refused(&[&saved[..], b"x"].concat()), Some(RestoreError::Format));
}

#[test]
fn contradictions_in_what_is_saved_are_refused() {
    use super::nodes::{Nodes, What};
    type Damage<'d> = &'d dyn Fn(&mut Nodes);
    let made = || store(Directory::of([("a", Item::Directory(Directory::default())), ("b", text("x"))])).into_nodes();
    let check = |damage: Damage<'_>| {
        let mut nodes = made();
        damage(&mut nodes);
        next(&saved::encode(&nodes), &[], Directory::default()).err()
    };
    let rename = |nodes: &mut Nodes, name: &str, target: u64| match &mut nodes.nodes.get_mut(&1).unwrap().what {
        What::Directory { names, .. } => drop(names.insert(name.to_owned(), target)),
        _ => panic!("it is a directory"),
    };
    assert_eq!(check(&|_| {}), None);
    let damaged: [(&str, Damage<'_>); 8] = [
        ("a root without a node", &|nodes| drop(nodes.nodes.remove(&1))),
        ("a node without a name", &|nodes| drop(nodes.nodes.insert(4, nodes.nodes[&3].clone()))),
        ("a node beyond the last", &|nodes| nodes.last = 2),
        ("node ids in the range of a layer", &|nodes| nodes.last = 1 << NODE_BITS),
        ("a name of no node", &|nodes| rename(nodes, "c", 3 + 1)),
        ("two names of a node", &|nodes| rename(nodes, "a", 3)),
        ("a directory in itself", &|nodes| rename(nodes, "a", 1)),
        ("a layer without a number", &|nodes| rename(nodes, "c", 1 << NODE_BITS | 1)),
    ];
    for (what, damage) in damaged {
        assert!(matches!(check(damage), Some(RestoreError::Damaged(_))), "{what}: {:?}", check(damage));
    }
}
