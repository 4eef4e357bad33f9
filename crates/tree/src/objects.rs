//! Selects the place from which each object of a tree is fetched.

use tarpon_layer::{ChunkPlace, Codec, LayerIndex, Node};

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
    // Few objects have the same first bytes: mostly these are all that is compared.
    let mut all: Vec<(u64, u32)> =
        (0..).zip(inodes).filter_map(|(number, inode)| Some((start_of(inode)?, number))).collect();
    let object = |number: u32| {
        let inode = &inodes[number as usize];
        object_of(inode).expect("only inodes with an object were taken")
    };
    let key = |number| {
        let object = object(number);
        (object.id, is_stream(layers, &object), object.layer, number)
    };
    all.sort_unstable_by(|(start, one), (other_start, other)| {
        start.cmp(other_start).then_with(|| key(*one).cmp(&key(*other)))
    });
    let mut representatives: Vec<usize> = Vec::new();
    let mut last: Option<Object> = None;
    for (_, number) in all {
        let next = object(number);
        match last.filter(|last| last.id == next.id) {
            Some(last) if last.size != next.size => {
                return Err(Disagreement { inode: number as usize, size: next.size, other_size: last.size });
            }
            Some(_) => {}
            None => {
                representatives.push(number as usize);
                last = Some(next);
            }
        }
    }
    Ok(representatives)
}

/// The first bytes of the object of an inode, in the order of objects.
fn start_of(inode: &Inode<'_>) -> Option<u64> {
    match inode.node() {
        Node::File(content) if content.size > 0 => {
            content.object.as_bytes().first_chunk().map(|start| u64::from_be_bytes(*start))
        }
        _ => None,
    }
}

/// Whether the object can only be read again by streaming its layer from the start.
fn is_stream(layers: &[LayerIndex], object: &Object) -> bool {
    let chunks = layers.get(object.layer).map_or(&[][..], |layer| &layer.chunks);
    let first = usize::try_from(object.first_chunk).ok().and_then(|first| chunks.get(first));
    first.is_some_and(|chunk| matches!(chunk.place, ChunkPlace::Blob { codec: Codec::Stream, .. }))
}
