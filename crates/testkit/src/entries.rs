//! Short constructors for entries of layers, for tests of layer processing.
//!
//! Each file has one chunk and an object named by the digest of its content.

use tarpon_layer::{
    Attributes, Chunk, ChunkPlace, Codec, Device, Entry, FileContent, LayerIndex, LayerPath, Node, ObjectId, Timestamp,
    Xattr,
};

/// An entry and the content of its file.
#[derive(Debug, Clone)]
pub struct Made {
    /// The entry; a file's first chunk is 0 until [`layer`] places it.
    pub entry: Entry,
}

/// Creates a layer of these entries, in this order.
pub fn layer(made: impl IntoIterator<Item = Made>) -> LayerIndex {
    let mut index = LayerIndex::default();
    for Made { mut entry } in made {
        if let Node::File(content) = &mut entry.node {
            content.first_chunk = u32::try_from(index.chunks.len()).expect("tests have few chunks");
            content.chunk_count = u32::from(content.size > 0);
            let place = ChunkPlace::Blob { codec: Codec::Raw, offset: 0, length: content.size, skip: 0 };
            let chunk = Chunk { object_offset: 0, size: content.size, digest: content.object, place };
            index.chunks.extend((content.size > 0).then_some(chunk));
        }
        index.entries.push(entry);
    }
    index
}

/// A path that is already normalized. Panics otherwise, so that tests are explicit.
pub fn path(path: impl AsRef<[u8]>) -> LayerPath {
    LayerPath::from_normal(path.as_ref()).expect("a normal path")
}

fn made(at: impl AsRef<[u8]>, node: Node) -> Made {
    let mode = if matches!(node, Node::Directory) { 0o755 } else { 0o644 };
    let attributes =
        Attributes { mode, mtime: Timestamp { seconds: 1_700_000_000, nanoseconds: 0 }, ..Default::default() };
    Made { entry: Entry { path: path(at), node, attributes: attributes.into() } }
}

/// A directory.
pub fn dir(at: impl AsRef<[u8]>) -> Made {
    made(at, Node::Directory)
}

/// A file with this content.
pub fn file(at: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Made {
    let content = content.as_ref();
    sized_file(at, ObjectId::of(content), content.len() as u64)
}

/// A file with a named but missing content.
pub fn sized_file(at: impl AsRef<[u8]>, object: ObjectId, size: u64) -> Made {
    made(at, Node::File(FileContent { size, object, first_chunk: 0, chunk_count: 0 }.into()))
}

/// A symbolic link.
pub fn symlink(at: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Made {
    made(at, Node::Symlink(Box::new(target.as_ref().into())))
}

/// Another name of the file at `target`.
pub fn link(at: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Made {
    Made {
        entry: Entry {
            attributes: Attributes::default().into(),
            ..made(at, Node::HardLink(path(target).into())).entry
        },
    }
}

/// A named pipe.
pub fn fifo(at: impl AsRef<[u8]>) -> Made {
    made(at, Node::Fifo)
}

/// A character device.
pub fn char_device(at: impl AsRef<[u8]>, major: u32, minor: u32) -> Made {
    made(at, Node::CharDevice(Device { major, minor }))
}

/// A block device.
pub fn block_device(at: impl AsRef<[u8]>, major: u32, minor: u32) -> Made {
    made(at, Node::BlockDevice(Device { major, minor }))
}

/// `.wh.NAME` for the name at this path.
pub fn whiteout(at: impl AsRef<[u8]>) -> Made {
    Made { entry: Entry { attributes: Attributes::default().into(), ..made(at, Node::Whiteout).entry } }
}

/// `.wh..wh..opq` in the directory at this path.
pub fn opaque(at: impl AsRef<[u8]>) -> Made {
    Made { entry: Entry { attributes: Attributes::default().into(), ..made(at, Node::Opaque).entry } }
}

impl Made {
    /// Sets the permission bits.
    pub fn mode(mut self, mode: u16) -> Self {
        self.entry.attributes.mode = mode;
        self
    }

    /// Sets owner and group.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        (self.entry.attributes.uid, self.entry.attributes.gid) = (uid, gid);
        self
    }

    /// Sets the modification time.
    pub fn mtime(mut self, seconds: i64, nanoseconds: u32) -> Self {
        self.entry.attributes.mtime = Timestamp { seconds, nanoseconds };
        self
    }

    /// Adds an xattr, keeping them sorted.
    pub fn xattr(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        let xattrs = &mut self.entry.attributes.xattrs;
        xattrs.push(Xattr { name: name.as_ref().into(), value: value.as_ref().into() });
        xattrs.sort();
        self
    }
}
