//! The contents of a tree, each once, with the best place to fetch it from.

use tarpon_layer::{ChunkPlace, Codec, FileContent, LayerIndex, Node, ObjectId};

use crate::tree::Inode;

/// The content of one or more files, and the place of its chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Size in bytes, never 0.
    pub size: u64,
    /// Position of the layer that serves it, 0 for the bottom one.
    pub layer: usize,
    /// First of its chunks in that layer's [`LayerIndex::chunks`].
    pub first_chunk: u32,
    /// Number of its chunks.
    pub chunk_count: u32,
}

/// The object of an inode. None if it is not a file, or an empty one.
pub(crate) fn object_of(inode: &Inode<'_>) -> Option<Object> {
    match inode.node() {
        Node::File(FileContent { size, object, first_chunk, chunk_count }) if *size > 0 => Some(Object {
            id: *object,
            size: *size,
            layer: inode.layer(),
            first_chunk: *first_chunk,
            chunk_count: *chunk_count,
        }),
        _ => None,
    }
}

/// Two inodes with one object and different sizes.
pub(crate) struct Disagreement {
    pub(crate) inode: usize,
    pub(crate) size: u64,
    pub(crate) other_size: u64,
}

/// For each object the number of the inode it is fetched through, ascending by object. If several inodes have it, a layer with
/// random access is preferred, then the lowest layer.
pub(crate) fn representatives(layers: &[LayerIndex], inodes: &[Inode<'_>]) -> Result<Vec<usize>, Disagreement> {
    let mut all: Vec<(Object, usize)> =
        inodes.iter().enumerate().filter_map(|(number, inode)| Some((object_of(inode)?, number))).collect();
    all.sort_unstable_by_key(|(object, number)| (object.id, is_stream(layers, object), object.layer, *number));
    let disagreement = all.windows(2).find(|pair| pair[0].0.id == pair[1].0.id && pair[0].0.size != pair[1].0.size);
    if let Some([(first, _), (second, number)]) = disagreement {
        return Err(Disagreement { inode: *number, size: second.size, other_size: first.size });
    }
    all.dedup_by_key(|(object, _)| object.id);
    Ok(all.into_iter().map(|(_, number)| number).collect())
}

/// Whether the object can only be read again by streaming its layer from the start.
fn is_stream(layers: &[LayerIndex], object: &Object) -> bool {
    let chunks = layers.get(object.layer).map_or(&[][..], |layer| &layer.chunks);
    let first = usize::try_from(object.first_chunk).ok().and_then(|first| chunks.get(first));
    first.is_some_and(|chunk| matches!(chunk.place, ChunkPlace::Blob { codec: Codec::Stream, .. }))
}
