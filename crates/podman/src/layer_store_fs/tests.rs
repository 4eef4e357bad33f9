//! A store with one layer, and random lookups across servers.

mod random;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tarpon_fs::{Attempt, Attr, DirEntry, Errno, Kind, NodeId, Operations, Take};
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;
use tarpon_testkit::entries::{file, layer};

use super::{LayerKey, LayerStoreFs, Layers, ShownLayer, Use};
use crate::diff_fs::DiffFs;
use crate::layer_numbers::Diff;
use crate::saved_state::{RestoreError, Save};

const NAME: &str = "localhost:5000/debian:multi";

/// Knows one layer, once it has been searched for.
struct One {
    known: Mutex<bool>,
    shown: ShownLayer,
    looked: AtomicUsize,
    uses: Mutex<Vec<(LayerKey, Use)>>,
}

fn key() -> LayerKey {
    LayerKey { image: NAME.parse().unwrap(), digest: Digest::of(b"layer") }
}

struct Shared(Arc<One>);

impl Layers for Shared {
    fn get(&self, asked: &LayerKey) -> Option<ShownLayer> {
        (*self.0.known.lock() && *asked == key()).then(|| self.0.shown.clone())
    }

    fn with_content(&self, asked: &LayerKey, content: &Digest) -> Option<Diff> {
        let diff = self.get(asked)?.diff;
        (diff.digest() == *content).then_some(diff)
    }

    fn find(&self, _: &LayerKey) -> BoxFuture<'static, ()> {
        let one = self.0.clone();
        async move {
            one.looked.fetch_add(1, Ordering::Relaxed);
            *one.known.lock() = true;
        }
        .boxed()
    }

    fn used(&self, key: &LayerKey, change: Use) -> BoxFuture<'static, ()> {
        self.0.uses.lock().push((key.clone(), change));
        futures::future::ready(()).boxed()
    }

    fn blob(&self, _: &LayerKey, offset: u64, length: u32) -> BoxFuture<'static, Result<Bytes, Errno>> {
        futures::future::ready(Ok(Bytes::from(format!("{offset}+{length}")))).boxed()
    }
}

fn nowhere() -> Save {
    Box::new(|_| {})
}

/// A layer with this content in its file `f`.
fn diff_of(content: &str) -> Diff {
    let layers = [layer([file("f", content)])];
    let tree = Bytes::from(tarpon_tree::erofs::write(&tarpon_tree::merge(&layers).unwrap()));
    Arc::new(DiffFs::alone(tree).unwrap())
}

fn one_of(content: &str) -> Arc<One> {
    let shown = ShownLayer { diff: diff_of(content), info: Bytes::from_static(b"{}"), blob_size: 1000 };
    let (known, looked, uses) = Default::default();
    Arc::new(One { known, shown, looked, uses })
}

fn store() -> (Arc<One>, LayerStoreFs) {
    let one = one_of("abc");
    (one.clone(), LayerStoreFs::new(Arc::new(Shared(one)), Timestamp::default(), nowhere()))
}

fn image_name() -> String {
    BASE64_STANDARD.encode(NAME)
}

/// Looks the path up like the kernel: waits first where required.
fn find(files: &LayerStoreFs, path: &[&str]) -> Result<Attr, Errno> {
    path.iter().try_fold(files.attributes(NodeId::ROOT)?, |at, name| {
        if let Some(wait) = files.before_lookup(at.node, name.as_bytes()) {
            wait.now_or_never().unwrap();
        }
        files.lookup(at.node, name.as_bytes())
    })
}

#[test]
fn directories_exist_on_lookup_and_a_layer_is_searched_with_its_names() {
    let (one, files) = store();
    let (image, digest) = (image_name(), key().digest.to_string());
    assert_eq!(image, "bG9jYWxob3N0OjUwMDAvZGViaWFuOm11bHRp");
    assert_eq!(find(&files, &[&image, &digest]).unwrap().kind, Kind::Directory);
    assert_eq!(one.looked.load(Ordering::Relaxed), 0, "nobody was asked for that");
    assert_eq!(find(&files, &[&image, &digest, "use"]), Err(Errno::NotFound));
    assert_eq!(one.looked.load(Ordering::Relaxed), 0);
    assert_eq!(find(&files, &[&image, &digest, "diff", "f"]).unwrap().size, 3);
    let info = find(&files, &[&image, &digest, "info"]).unwrap();
    assert_eq!((info.size, files.held(info.node).unwrap()), (2, Bytes::from_static(b"{}")));
    let blob = find(&files, &[&image, &digest, "blob"]).unwrap();
    assert_eq!((blob.size, files.content(blob.node).unwrap().size), (1000, 1000));
    let read = files.streamed(blob.node, 7, 9).unwrap().now_or_never().unwrap().unwrap();
    assert_eq!((read, files.held(blob.node)), (Bytes::from_static(b"7+9"), None));
    assert_eq!(one.looked.load(Ordering::Relaxed), 1);
}

#[test]
fn an_invalid_reference_or_digest_does_not_exist_and_causes_no_lookup() {
    let (one, files) = store();
    let encoded = |text: &str| BASE64_STANDARD.encode(text);
    for name in ["", ".", "pool", "x y", &encoded("lower/UPPER"), &encoded("-"), &key().digest.to_string()] {
        assert_eq!(find(&files, &[name]), Err(Errno::NotFound), "{name}");
    }
    for name in ["diff", "sha256:0", "sha512:00", &encoded(NAME)] {
        assert_eq!(find(&files, &[&image_name(), name]), Err(Errno::NotFound), "{name}");
    }
    let other = Digest::of(b"another").to_string();
    assert_eq!(find(&files, &[&image_name(), &other, "diff"]), Err(Errno::NotFound));
    assert_eq!(one.looked.load(Ordering::Relaxed), 1, "for the last one alone");
}

#[test]
fn making_use_and_removing_a_layer_count_and_are_answered_as_if_nothing_was_there() {
    let (one, files) = store();
    let image = find(&files, &[&image_name()]).unwrap().node;
    let digest = key().digest.to_string();
    let layer = find(&files, &[&image_name(), &digest]).unwrap().node;
    let attempt = |parent, name: &str, what| {
        files.attempted(parent, name.as_bytes(), what).map(|answer| answer.now_or_never().unwrap())
    };
    assert_eq!(attempt(layer, "use", Attempt::Create), Some(Errno::NotFound));
    assert_eq!(attempt(image, &digest, Attempt::RemoveDirectory), Some(Errno::NotFound));
    assert_eq!(*one.uses.lock(), [(key(), Use::More), (key(), Use::Less)]);
    for (parent, name, what) in [
        (layer, "other", Attempt::Create),
        (layer, "diff", Attempt::RemoveDirectory),
        (image, "use", Attempt::Create),
        (image, "diff", Attempt::RemoveDirectory),
        (NodeId::ROOT, "use", Attempt::Create),
    ] {
        assert_eq!(attempt(parent, name, what), None, "{name}: not allowed");
    }
    assert!(files.forwards_changes());
}

#[test]
fn nodes_live_as_long_as_the_kernel_knows_them_and_layers_longer() {
    let (_, files) = store();
    let (image, digest) = (image_name(), key().digest.to_string());
    let file = find(&files, &[&image, &digest, "diff", "f"]).unwrap().node;
    let info = find(&files, &[&image, &digest, "info"]).unwrap().node;
    let layer = find(&files, &[&image, &digest]).unwrap().node;
    files.forget(layer, 3);
    assert!(files.held(info).is_some(), "one of its files is known");
    files.forget(info, 1);
    assert_eq!(files.attributes(layer), Err(Errno::Stale));
    assert_eq!(files.attributes(file).unwrap().size, 3);
    assert!(files.lasts(file) && !files.lasts(layer));
    assert_ne!(find(&files, &[&image, &digest]).unwrap().node, layer, "it is another one");
    assert_eq!(find(&files, &[&image, &digest, "diff", "f"]).unwrap().node, file, "it is the same");
    let image = find(&files, &[&image]).unwrap().node;
    files.forget(image, 100);
    assert_eq!(files.nodes.lock().names.len(), 1);
}

#[test]
fn own_directories_list_nothing_and_layers_what_is_in_them() {
    let (_, files) = store();
    let (image, digest) = (image_name(), key().digest.to_string());
    let names = |path: &[&str]| {
        let mut names = Vec::new();
        let mut take = |entry: DirEntry<'_>| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            Take::More
        };
        files.read_dir(find(&files, path).unwrap().node, 0, &mut take).unwrap();
        names
    };
    for path in [&[][..], &[&*image], &[&*image, &*digest]] {
        assert_eq!(names(path), [".", ".."]);
    }
    assert_eq!(names(&[&image, &digest, "diff"]), [".", "..", "f"]);
}

/// The file system of the next server.
fn next(saved: &[u8], one: &Arc<One>) -> Result<LayerStoreFs, RestoreError> {
    LayerStoreFs::restored(saved, Arc::new(Shared(one.clone())), nowhere())
}

#[test]
fn the_next_server_continues_with_the_same_nodes_and_never_forgets_them() {
    let (one, files) = store();
    let (image, digest) = (image_name(), key().digest.to_string());
    let paths = [&[&*image][..], &[&*image, &*digest], &[&*image, &*digest, "info"], &[&*image, &*digest, "diff", "f"]];
    let before = paths.map(|path| find(&files, path).unwrap());
    let after = next(&files.saved(), &one).unwrap();
    for (path, attr) in paths.iter().zip(before) {
        assert_eq!(after.attributes(attr.node), Ok(attr), "{path:?}");
        assert_eq!(find(&after, path), Ok(attr));
        after.forget(attr.node, 1000);
        assert_eq!(after.attributes(attr.node), Ok(attr), "the kernel may have more references");
    }
    let other = Digest::of(b"another").to_string();
    let other = find(&after, &[&image, &other]).unwrap().node;
    assert!(before.iter().all(|attr| attr.node != other));
}

#[test]
fn a_layer_that_is_not_loaded_is_stale_until_it_is_and_other_content_has_another_number() {
    let (one, files) = store();
    let (image, digest) = (image_name(), key().digest.to_string());
    let file = find(&files, &[&image, &digest, "diff", "f"]).unwrap();
    *one.known.lock() = false;
    let files = next(&files.saved(), &one).unwrap();
    assert_eq!(files.attributes(file.node), Err(Errno::Stale));
    let other = next(&files.saved(), &one_of("other")).unwrap();
    let node = find(&other, &[&image, &digest, "diff", "f"]).unwrap().node;
    assert_ne!(node, file.node);
    assert_eq!(other.attributes(file.node), Err(Errno::Stale));
    *one.known.lock() = true;
    let files = next(&other.saved(), &one).unwrap();
    assert_eq!(files.attributes(file.node), Ok(file));
}

#[test]
fn directories_and_numbers_are_saved_at_once_and_nothing_else_is() {
    let saves: Arc<Mutex<usize>> = Arc::default();
    let save = {
        let saves = saves.clone();
        Box::new(move |_: &[u8]| *saves.lock() += 1)
    };
    let (one, _) = store();
    let files = LayerStoreFs::new(Arc::new(Shared(one)), Timestamp::default(), save);
    let (image, digest) = (image_name(), key().digest.to_string());
    let steps = [(&[&*image][..], 2), (&[&*image, &*digest], 3), (&[&*image, &*digest, "diff"], 4)];
    for (path, expected) in steps {
        for again in [false, true] {
            let node = find(&files, path).unwrap().node;
            assert_eq!(*saves.lock(), expected, "{path:?}, again: {again}");
            files.attributes(node).unwrap();
        }
    }
    let info = find(&files, &[&image, &digest, "info"]).unwrap().node;
    files.forget(info, 1);
    assert_eq!(*saves.lock(), 4);
}

#[test]
fn the_records_of_forgotten_directories_are_dropped_in_time() {
    let (one, files) = store();
    let image = image_name();
    let number = find(&files, &[&image, &key().digest.to_string(), "diff"]).unwrap().node;
    let (mut most, mut last) = (0, None);
    for count in 0..1000_u32 {
        let digest = Digest::of(&count.to_le_bytes()).to_string();
        let node = find(&files, &[&image, &digest]).unwrap().node;
        files.forget(node, 1);
        most = most.max(files.saved().len());
        last = Some(node);
    }
    assert!(most < 100 * 200, "{most} bytes");
    let after = next(&files.saved(), &one).unwrap();
    assert_eq!(find(&after, &[&image, &key().digest.to_string(), "diff"]).unwrap().node, number);
    let new = find(&after, &[&image, &Digest::of(b"new").to_string()]).unwrap().node;
    assert!(Some(new) > last, "ids of forgotten directories are not issued again");
}

#[test]
fn what_no_server_saved_is_refused() {
    use super::journal::{Journal, Record};
    let (one, files) = store();
    find(&files, &[&image_name(), &key().digest.to_string(), "diff"]).unwrap();
    let saved = files.saved();
    let refused = |bytes: &[u8]| next(bytes, &one).err();
    assert_eq!(refused(&saved), None);
    assert_eq!(refused(b""), Some(RestoreError::Missing));
    assert_eq!(refused(&[b"x", &saved[1..]].concat()), Some(RestoreError::Format));
    assert_eq!(refused(&saved[..saved.len() - 1]), Some(RestoreError::Format));
    assert_eq!(refused(&saved[..20]), Some(RestoreError::Format));
    assert_eq!(refused(&vec![0; (64 << 20) + 1]), Some(RestoreError::TooLarge));

    let directory = |directory, parent, image: &str| Record::Directory {
        directory,
        parent,
        name: b"n".to_vec(),
        image: image.to_owned(),
        layer: None,
    };
    let number = || Record::layer(&key(), Digest::of(b"content"));
    let damaged = |last: u64, records: &[Record]| {
        let mut journal = Journal::new(last, Timestamp::default());
        for record in records {
            match record {
                Record::Directory { .. } => journal.add_directory(last, record),
                Record::Layer { .. } => assert!(journal.add_layer(record)),
            }
        }
        matches!(refused(journal.bytes()), Some(RestoreError::Damaged(_)))
    };
    assert!(!damaged(2, &[directory(1, 0, NAME), directory(2, 1, NAME), number()]));
    for (last, records) in [
        (1, vec![directory(0, 0, NAME)]),
        (1, vec![directory(2, 0, NAME)]),
        (1, vec![directory(1, 1, NAME)]),
        (1, vec![directory(1, 0, NAME), directory(1, 0, NAME)]),
        (1, vec![directory(1, 0, "UPPER")]),
        (1, vec![number(), number()]),
        (u64::MAX, vec![]),
    ] {
        assert!(damaged(last, &records), "{last} {records:?}");
    }
}
