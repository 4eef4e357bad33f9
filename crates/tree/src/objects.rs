//! Selects the place from which each object of a tree is fetched.

use tarpon_layer::{ChunkPlace, Codec, LayerIndex};

use crate::tree::{Inode, Object, object_of};

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
