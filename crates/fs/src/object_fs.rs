//! [`ObjectFs`]: all objects of this host as files `ab/cdef…`, where overlayfs finds the bytes that the local folder of
//! objects lacks.
//!
//! One instance serves all images. Node ids derive from digests: the root, one id for each of the 256 directories, and
//! for an object the first 62 bits of its digest. Of two objects whose 62 bits are equal, the second gets a counted id.
//! The digest of an id is kept as long as the kernel holds the inode, so the kernel's own table bounds this one. The
//! source of the bytes is notified which inodes are held: the kernel shows all images the same pages of them
//! ([`Objects::hold`]).
//!
//! A connection may outlive its server. The successor finds the digest of an id that it did not issue among the objects
//! of its images ([`ObjectFs::inherited`]). It does not know how many references the kernel holds, so it never forgets
//! such an inode. An id that does not determine one object (a counted one, or one of two equal ones) is stale.
//!
//! Directories list none of their content: overlayfs never reads them, and this file system is not visible elsewhere.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use tarpon_layer::Timestamp;
use tarpon_oci::Digest;

use crate::{Attr, Content, DirEntry, Errno, Kind, NodeId, Objects, Operations, Take, Totals};

/// Id of directory `00`; the last is `ff`.
const FIRST_DIRECTORY: u64 = 2;
const LAST_DIRECTORY: u64 = FIRST_DIRECTORY + 255;
/// Bit set in the id of every object, and in no other.
const OBJECT: u64 = 1 << 63;
/// Bit set in the id of an object whose own id was taken by another object.
const COUNTED: u64 = 1 << 62;
/// Bits of a digest in the id of its object.
const DIGEST_BITS: u32 = 62;
/// References of an inode that the kernel holds from an earlier server: more than it can ever return.
const UNKNOWN_REFERENCES: u64 = u64::MAX / 2;

/// The flat file system of objects.
pub struct ObjectFs {
    objects: Arc<dyn Objects>,
    known: Mutex<KnownObjects>,
    /// Whether the kernel may hold inodes that an earlier server issued.
    is_inherited: bool,
}

/// The objects whose inodes the kernel holds.
#[derive(Default)]
struct KnownObjects {
    by_node: HashMap<NodeId, ReferencedObject>,
    /// The ids of objects whose own id was taken.
    counted: HashMap<Digest, NodeId>,
    /// Starts at the time, so that no server issues the number of an earlier one.
    last_counted: u64,
}

struct ReferencedObject {
    object: Digest,
    size: u64,
    references: u64,
}

impl ObjectFs {
    /// Serves all objects that `objects` knows, including those added later.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        let known = KnownObjects { last_counted: nanoseconds(), ..KnownObjects::default() };
        Self { objects, known: Mutex::new(known), is_inherited: false }
    }

    /// As [`ObjectFs::new`], on a connection of an earlier server. `objects` must know the objects of all its mounts.
    pub fn inherited(objects: Arc<dyn Objects>) -> Self {
        let mut files = Self::new(objects);
        files.is_inherited = true;
        files
    }

    /// Number of inodes that the kernel holds.
    pub fn held(&self) -> usize {
        self.known.lock().by_node.len()
    }

    fn lookup_object(&self, object: Digest) -> Result<Attr, Errno> {
        let mut known = self.known.lock();
        let node = match known.counted.get(&object) {
            Some(node) => *node,
            None => preferred_id(&object),
        };
        let node = match known.by_node.get_mut(&node) {
            Some(here) if here.object == object => {
                here.references += 1;
                return Ok(file(node, here.size));
            }
            Some(_) => known.count(object),
            // Another object may have this id in the kernel, from an earlier server.
            None if self.is_inherited && self.object_of(node) != Some(object) => known.count(object),
            None => node,
        };
        let size = match self.objects.hold(&object) {
            Some(size) => size,
            None => {
                known.counted.remove(&object);
                return Err(Errno::NotFound);
            }
        };
        // The kernel may have held it since before this server.
        let references = if self.is_inherited { UNKNOWN_REFERENCES } else { 1 };
        known.by_node.insert(node, ReferencedObject { object, size, references });
        Ok(file(node, size))
    }

    fn with_object<T>(&self, node: NodeId, answer: impl FnOnce(&ReferencedObject) -> T) -> Result<T, Errno> {
        let mut known = self.known.lock();
        if let Some(here) = known.by_node.get(&node) {
            return Ok(answer(here));
        }
        let object = self.object_of(node).filter(|_| self.is_inherited).ok_or(Errno::Stale)?;
        let size = self.objects.hold(&object).ok_or(Errno::Stale)?;
        let here = ReferencedObject { object, size, references: UNKNOWN_REFERENCES };
        Ok(answer(known.by_node.entry(node).or_insert(here)))
    }

    /// The one object that an earlier server can have given this id.
    fn object_of(&self, node: NodeId) -> Option<Digest> {
        let is_own_id = node.0 & OBJECT != 0 && node.0 & COUNTED == 0;
        let start = (node.0 & !OBJECT) << (u64::BITS - DIGEST_BITS);
        let found = if is_own_id { self.objects.starting_with(start, DIGEST_BITS) } else { Vec::new() };
        match found[..] {
            [object] => Some(object),
            _ => None,
        }
    }
}

impl KnownObjects {
    /// Issues an id for an object whose own id is taken.
    fn count(&mut self, object: Digest) -> NodeId {
        self.last_counted += 1;
        let node = NodeId(OBJECT | COUNTED | self.last_counted);
        self.counted.insert(object, node);
        node
    }
}

impl Drop for ObjectFs {
    /// The connection has ended, and with it all inodes.
    fn drop(&mut self) {
        self.known.get_mut().by_node.values().for_each(|known| self.objects.release(&known.object));
    }
}

impl Operations for ObjectFs {
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr, Errno> {
        match parent.0 {
            1 => directory_named(name).map(directory).ok_or(Errno::NotFound),
            FIRST_DIRECTORY..=LAST_DIRECTORY => self.lookup_object(object_named(parent, name).ok_or(Errno::NotFound)?),
            _ => Err(Errno::NotADirectory),
        }
    }

    fn attributes(&self, node: NodeId) -> Result<Attr, Errno> {
        match node.0 {
            1..=LAST_DIRECTORY => Ok(directory(node)),
            _ => self.with_object(node, |known| file(node, known.size)),
        }
    }

    fn read_link(&self, _: NodeId) -> Result<Vec<u8>, Errno> {
        Err(Errno::Invalid)
    }

    fn read_dir(&self, node: NodeId, position: u64, take: &mut dyn FnMut(DirEntry<'_>) -> Take) -> Result<(), Errno> {
        if !(1..=LAST_DIRECTORY).contains(&node.0) {
            return Err(Errno::NotADirectory);
        }
        for (index, name) in (0_u64..).zip([&b"."[..], b".."]).skip_while(|(index, _)| *index < position) {
            let node = if index == 0 { node } else { NodeId::ROOT };
            if take(DirEntry { name, node, kind: Kind::Directory, next: index + 1 }) == Take::Enough {
                break;
            }
        }
        Ok(())
    }

    fn xattr(&self, _: NodeId, _: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::NoAttribute)
    }

    fn xattr_names(&self, _: NodeId) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    fn has_xattrs(&self) -> bool {
        false
    }

    fn content(&self, node: NodeId) -> Result<Content, Errno> {
        match node.0 {
            1..=LAST_DIRECTORY => Err(Errno::IsADirectory),
            _ => self.with_object(node, |known| Content { object: Some(known.object), size: known.size }),
        }
    }

    fn forget(&self, node: NodeId, count: u64) {
        let mut known = self.known.lock();
        if let Some(here) = known.by_node.get_mut(&node) {
            here.references = here.references.saturating_sub(count);
            if here.references == 0 {
                let object = here.object;
                self.objects.release(&object);
                known.by_node.remove(&node);
                known.counted.remove(&object);
            }
        }
    }

    fn names_may_appear(&self) -> bool {
        true
    }

    fn nodes_of(&self, objects: &HashSet<Digest>) -> Vec<NodeId> {
        let known = self.known.lock();
        known.by_node.iter().filter(|(_, known)| objects.contains(&known.object)).map(|(node, _)| *node).collect()
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }
}

fn preferred_id(object: &Digest) -> NodeId {
    let bytes = object.as_bytes();
    let start = [bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]];
    NodeId(u64::from_be_bytes(start) >> (u64::BITS - DIGEST_BITS) | OBJECT)
}

/// Nanoseconds since 1970, below 2^62 until the year 2116.
fn nanoseconds() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX) % COUNTED
}

/// The directory named by two lower-case hex digits.
fn directory_named(name: &[u8]) -> Option<NodeId> {
    let digits = std::str::from_utf8(name).ok().filter(|name| name.len() == 2)?;
    let first = u8::from_str_radix(digits, 16).ok()?;
    (digits == format!("{first:02x}")).then_some(NodeId(FIRST_DIRECTORY + u64::from(first)))
}

/// The object named by 62 lower-case hex digits in `directory`.
fn object_named(directory: NodeId, name: &[u8]) -> Option<Digest> {
    let rest = std::str::from_utf8(name).ok()?;
    Digest::from_hex(&format!("{:02x}{rest}", directory.0 - FIRST_DIRECTORY)).ok()
}

fn directory(node: NodeId) -> Attr {
    Attr { kind: Kind::Directory, mode: 0o555, links: 2, ..file(node, 0) }
}

fn file(node: NodeId, size: u64) -> Attr {
    Attr {
        node,
        kind: Kind::File,
        mode: 0o444,
        links: 1,
        uid: 0,
        gid: 0,
        size,
        mtime: Timestamp::default(),
        device: (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use bytes::Bytes;
    use futures::future::BoxFuture;

    use super::*;

    /// Objects with a size but no bytes.
    struct Sizes(Vec<(Digest, u64)>);

    impl Objects for Sizes {
        fn size(&self, object: &Digest) -> Option<u64> {
            self.0.iter().find(|(known, _)| known == object).map(|(_, size)| *size)
        }

        fn starting_with(&self, start: u64, bits: u32) -> Vec<Digest> {
            let first = |object: &Digest| u64::from_be_bytes(object.as_bytes()[..8].try_into().unwrap());
            let is_like = |object: &Digest| (first(object) ^ start) >> (64 - bits) == 0;
            self.0.iter().map(|(object, _)| *object).filter(is_like).take(2).collect()
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            Box::pin(std::future::ready(Err(Errno::Io)))
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    /// Objects that the kernel holds.
    #[derive(Default)]
    struct HeldObjects(Mutex<Vec<Digest>>);

    impl Objects for HeldObjects {
        fn size(&self, _: &Digest) -> Option<u64> {
            None
        }

        fn hold(&self, object: &Digest) -> Option<u64> {
            self.0.lock().push(*object);
            Some(1)
        }

        fn release(&self, object: &Digest) {
            self.0.lock().retain(|held| held != object);
        }

        fn read_local(&self, _: &Digest, _: u64, _: usize) -> Result<Option<Bytes>, Errno> {
            Ok(None)
        }

        fn read(&self, _: Digest, _: u64, _: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            Box::pin(std::future::ready(Err(Errno::Io)))
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    /// A digest that starts with `start` and ends with `end`.
    fn digest(start: u8, end: u8) -> Digest {
        let mut bytes = [0; 32];
        (bytes[0], bytes[31]) = (start, end);
        Digest::from_bytes(bytes)
    }

    fn find(files: &ObjectFs, object: &Digest) -> Result<Attr, Errno> {
        let hex = object.hex();
        let folder = files.lookup(NodeId::ROOT, &hex.as_bytes()[..2])?;
        files.lookup(folder.node, &hex.as_bytes()[2..])
    }

    #[test]
    fn an_object_is_found_under_its_digest_and_nowhere_else() {
        let object = Digest::of(b"tarpon");
        let files = ObjectFs::new(Arc::new(Sizes(vec![(object, 6)])));
        let found = find(&files, &object).unwrap();
        assert_eq!((found.kind, found.size, found.mode), (Kind::File, 6, 0o444));
        assert_eq!(files.attributes(found.node), Ok(found));
        assert_eq!(files.content(found.node), Ok(Content { object: Some(object), size: 6 }));
        assert_eq!(find(&files, &Digest::of(b"other")), Err(Errno::NotFound));
        for name in ["", "a", "abc", "AB", "g0", "..", "+1"] {
            assert_eq!(files.lookup(NodeId::ROOT, name.as_bytes()), Err(Errno::NotFound), "{name}");
        }
        let upper = object.hex().to_uppercase();
        let folder = files.lookup(NodeId::ROOT, &object.hex().as_bytes()[..2]).unwrap();
        for name in [&upper.as_bytes()[2..], &object.hex().as_bytes()[4..], b"x"] {
            assert_eq!(files.lookup(folder.node, name), Err(Errno::NotFound));
        }
        assert_eq!(files.lookup(found.node, b"00"), Err(Errno::NotADirectory));
    }

    #[test]
    fn inodes_are_found_by_what_they_hold() {
        let (one, other) = (digest(1, 1), digest(2, 1));
        let files = ObjectFs::new(Arc::new(Sizes(vec![(one, 1), (other, 2)])));
        let node = find(&files, &one).unwrap().node;
        find(&files, &other).unwrap();
        assert_eq!(files.nodes_of(&HashSet::from([one, digest(3, 1)])), [node]);
    }

    #[test]
    fn objects_that_start_alike_are_kept_apart() {
        let (first, second) = (digest(7, 1), digest(7, 2));
        let files = ObjectFs::new(Arc::new(Sizes(vec![(first, 1), (second, 2)])));
        let (a, b) = (find(&files, &first).unwrap(), find(&files, &second).unwrap());
        assert_ne!(a.node, b.node);
        assert_eq!(files.content(a.node).unwrap().object, Some(first));
        assert_eq!(files.content(b.node).unwrap().object, Some(second));
        assert_eq!(find(&files, &second).unwrap().node, b.node, "the same as before");
    }

    #[test]
    fn a_successor_finds_the_object_of_an_id_that_it_did_not_issue() {
        let objects = Arc::new(Sizes(vec![(digest(1, 1), 1), (digest(0xff, 1), 2)]));
        let (before, after) = (ObjectFs::new(objects.clone()), ObjectFs::inherited(objects.clone()));
        for (object, size) in &objects.0 {
            let node = find(&before, object).unwrap().node;
            assert_eq!(after.content(node), Ok(Content { object: Some(*object), size: *size }));
            assert_eq!(find(&after, object).unwrap().node, node);
            after.forget(node, 1_000_000);
            assert!(after.attributes(node).is_ok(), "the number of references of the kernel is not known");
        }
        let node = find(&before, &digest(1, 1)).unwrap().node;
        assert_eq!(ObjectFs::new(objects).attributes(node), Err(Errno::Stale), "on a connection of its own");
    }

    #[test]
    fn an_id_of_an_earlier_server_that_two_objects_may_have_is_stale() {
        let (one, other) = (digest(7, 1), digest(7, 2));
        let objects = Arc::new(Sizes(vec![(one, 1), (other, 2)]));
        let before = ObjectFs::new(objects.clone());
        let nodes = [find(&before, &other).unwrap().node, find(&before, &one).unwrap().node];
        let after = ObjectFs::inherited(objects);
        assert_eq!(nodes.map(|node| after.attributes(node)), [Err(Errno::Stale); 2]);
        for object in [one, other] {
            let node = find(&after, &object).unwrap().node;
            assert!(!nodes.contains(&node), "the kernel may hold pages of the other object");
            assert_eq!(after.content(node).unwrap().object, Some(object));
        }
    }

    #[test]
    fn the_source_of_bytes_learns_which_inodes_are_held() {
        let held = Arc::new(HeldObjects::default());
        let files = ObjectFs::new(held.clone());
        let (one, other) = (digest(1, 1), digest(2, 1));
        let node = find(&files, &one).unwrap().node;
        find(&files, &one).unwrap();
        find(&files, &other).unwrap();
        assert_eq!(*held.0.lock(), [one, other], "once each");
        files.forget(node, 1);
        assert_eq!(*held.0.lock(), [one, other]);
        files.forget(node, 1);
        assert_eq!(*held.0.lock(), [other]);
        drop(files);
        assert!(held.0.lock().is_empty(), "a connection that ends holds nothing");
    }

    #[test]
    fn inodes_are_forgotten_with_their_last_reference() {
        let object = digest(255, 1);
        let files = ObjectFs::new(Arc::new(Sizes(vec![(object, 1)])));
        let node = find(&files, &object).unwrap().node;
        find(&files, &object).unwrap();
        files.forget(node, 1);
        assert!(files.attributes(node).is_ok());
        files.forget(node, 1);
        assert_eq!(files.attributes(node), Err(Errno::Stale));
        assert_eq!(files.held(), 0);
        files.forget(node, 5);
    }
}
