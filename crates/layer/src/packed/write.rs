//! Encodes an index to its columns.

use std::collections::HashMap;

use super::chunks::PlaceWriter;
use super::columns::{Columns, Owner, VERSION, kind};
use crate::index::{Attributes, Entry, FileContent, LayerIndex, Node};

/// Encodes the index for [`unpack`](super::unpack).
pub fn pack(index: &LayerIndex) -> Vec<u8> {
    let mut writer = Writer::new(index);
    index.entries.iter().for_each(|entry| writer.entry(entry));
    writer.columns.version = VERSION;
    writer.columns.checkpoints.clone_from(&index.checkpoints);
    writer.columns.dropped_xattrs = index.dropped_xattrs;
    // Writing to memory does not fail, and postcard supports all types of the columns.
    postcard::to_stdvec(&writer.columns).unwrap_or_default()
}

struct Writer<'a> {
    index: &'a LayerIndex,
    columns: Columns,
    owners: HashMap<Owner, u32>,
    places: PlaceWriter,
    path: &'a [u8],
    seconds: i64,
}

impl<'a> Writer<'a> {
    fn new(index: &'a LayerIndex) -> Self {
        Self {
            index,
            columns: Columns::default(),
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
        self.columns.paths.extend_from_slice(&path[shared.min(usize::from(u16::MAX))..]);
        self.columns.paths.push(0);
        self.path = path;
    }

    fn target(&mut self, target: &[u8], kind: u8) -> u8 {
        self.columns.targets.extend_from_slice(target);
        self.columns.targets.push(0);
        kind
    }

    fn attributes(&mut self, attributes: &Attributes) {
        let Attributes { mode, uid, gid, mtime, xattrs } = attributes;
        let owner = Owner { mode: *mode, uid: *uid, gid: *gid, xattrs: xattrs.clone() };
        let next = u32::try_from(self.owners.len()).unwrap_or(u32::MAX);
        let number = *self.owners.entry(owner.clone()).or_insert(next);
        if number == next {
            self.columns.owners.push(owner);
        }
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
        let chunks = &self.index.chunks[content.first_chunk as usize..][..content.chunk_count as usize];
        let own = chunks.len() > 1 || chunks.iter().any(|chunk| chunk.digest != content.object);
        self.columns.counts.push(content.chunk_count * 2 + u32::from(own));
        self.columns.digests.extend_from_slice(content.object.as_bytes());
        for chunk in chunks {
            if chunks.len() > 1 {
                self.columns.chunks.sizes.push(chunk.size);
            }
            if own {
                self.columns.digests.extend_from_slice(chunk.digest.as_bytes());
            }
            self.places.push(&chunk.place, chunk.size, &mut self.columns.chunks);
        }
    }
}
