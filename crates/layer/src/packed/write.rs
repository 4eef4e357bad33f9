//! Encodes an index to its columns.

use std::collections::HashMap;
use std::io::{self, Write};

use tarpon_oci::{Digest, Hasher};

use super::chunks::{PlaceColumns, PlaceWriter};
use super::column::{Column, chunks_of, encode, have_own_digests, write_digests};
use super::columns::{Owner, VERSION, kind};
use crate::index::{Attributes, Entry, FileContent, LayerIndex, Node};

/// Encodes the index for [`unpack`](super::unpack).
pub fn pack(index: &LayerIndex) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail.
    let _ = Packed::new(index).write_to(&mut bytes);
    bytes
}

/// An index that is encoded, except for the parts that are written from the index itself.
pub struct Packed<'a> {
    index: &'a LayerIndex,
    columns: Encoded,
}

impl<'a> Packed<'a> {
    /// Encodes the index.
    pub fn new(index: &'a LayerIndex) -> Self {
        let mut writer = Writer::new(index);
        index.entries.iter().for_each(|entry| writer.entry(entry));
        Self { index, columns: writer.columns }
    }

    /// Number of the bytes that [`Packed::write_to`] writes, and their digest.
    pub fn measure(&self) -> (usize, Digest) {
        let mut measure = Measure { size: 0, hasher: Hasher::new() };
        // Counting and hashing do not fail.
        let _ = self.write_to(&mut measure);
        (measure.size, measure.hasher.finish())
    }

    /// Writes the output of [`pack`].
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { index, columns } = self;
        encode(&VERSION, out)?;
        columns.before_digests().into_iter().try_for_each(|column| column.write_to(out))?;
        write_digests(index, out)?;
        encode(&index.checkpoints, out)?;
        encode(&index.dropped_xattrs, out)
    }
}

/// Counts and hashes what is written.
struct Measure {
    size: usize,
    hasher: Hasher,
}

impl Write for Measure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.size += bytes.len();
        self.hasher.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The columns of [`Columns`](super::columns::Columns).
#[derive(Default)]
struct Encoded {
    kinds: Column,
    shared: Column,
    paths: Column,
    targets: Column,
    devices: Column,
    owner: Column,
    seconds: Column,
    nanoseconds: Column,
    owners: Column,
    sizes: Column,
    counts: Column,
    chunk_sizes: Column,
    places: PlaceColumns,
}

impl Encoded {
    /// In the order of the fields of [`Columns`](super::columns::Columns).
    fn before_digests(&self) -> [&Column; 15] {
        let Self { kinds, shared, paths, targets, devices, owner, seconds, nanoseconds, owners, sizes, counts, .. } =
            self;
        let PlaceColumns { place, skip, places } = &self.places;
        [
            kinds,
            shared,
            paths,
            targets,
            devices,
            owner,
            seconds,
            nanoseconds,
            owners,
            sizes,
            counts,
            &self.chunk_sizes,
            place,
            skip,
            places,
        ]
    }
}

struct Writer<'a> {
    index: &'a LayerIndex,
    columns: Encoded,
    owners: HashMap<Owner, u32>,
    places: PlaceWriter,
    path: &'a [u8],
    seconds: i64,
}

impl<'a> Writer<'a> {
    fn new(index: &'a LayerIndex) -> Self {
        Self {
            index,
            columns: Encoded::default(),
            owners: HashMap::new(),
            places: PlaceWriter::default(),
            path: &[],
            seconds: 0,
        }
    }

    fn entry(&mut self, entry: &'a Entry) {
        self.path(entry.path.as_bytes());
        let kind = match &entry.node {
            Node::Directory => kind::DIRECTORY,
            Node::File(content) => {
                self.file(content);
                kind::FILE
            }
            Node::Symlink(target) => self.target(target, kind::SYMLINK),
            Node::HardLink(target) => self.target(target.as_bytes(), kind::HARD_LINK),
            Node::CharDevice(device) => {
                self.columns.devices.push((device.major, device.minor));
                kind::CHAR_DEVICE
            }
            Node::BlockDevice(device) => {
                self.columns.devices.push((device.major, device.minor));
                kind::BLOCK_DEVICE
            }
            Node::Fifo => kind::FIFO,
            Node::Whiteout => kind::WHITEOUT,
            Node::Opaque => kind::OPAQUE,
        };
        self.columns.kinds.push(kind);
        if !matches!(entry.node, Node::HardLink(_) | Node::Whiteout | Node::Opaque) {
            self.attributes(&entry.attributes);
        }
    }

    fn path(&mut self, path: &'a [u8]) {
        let shared = path.iter().zip(self.path).take_while(|(one, other)| one == other).count();
        self.columns.shared.push(u16::try_from(shared).unwrap_or(u16::MAX));
        self.columns.paths.extend(&path[shared.min(usize::from(u16::MAX))..]);
        self.columns.paths.extend(&[0]);
        self.path = path;
    }

    fn target(&mut self, target: &[u8], kind: u8) -> u8 {
        self.columns.targets.extend(target);
        self.columns.targets.extend(&[0]);
        kind
    }

    fn attributes(&mut self, attributes: &Attributes) {
        let Attributes { mode, uid, gid, mtime, xattrs } = attributes;
        let owner = Owner { mode: *mode, uid: *uid, gid: *gid, xattrs: xattrs.clone() };
        let next = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
        if !self.owners.contains_key(&owner) {
            self.columns.owners.push(&owner);
        }
        let number = *self.owners.entry(owner).or_insert(next);
        self.columns.owner.push(number);
        self.columns.seconds.push(mtime.seconds.wrapping_sub(self.seconds));
        self.columns.nanoseconds.push(mtime.nanoseconds);
        self.seconds = mtime.seconds;
    }

    fn file(&mut self, content: &FileContent) {
        self.columns.sizes.push(content.size);
        if content.size == 0 {
            return;
        }
        let chunks = chunks_of(content, self.index);
        self.columns.counts.push(content.chunk_count * 2 + u32::from(have_own_digests(content, chunks)));
        for chunk in chunks {
            if chunks.len() > 1 {
                self.columns.chunk_sizes.push(chunk.size);
            }
            self.places.push(&chunk.place, chunk.size, &mut self.columns.places);
        }
    }
}
