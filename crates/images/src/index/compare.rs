//! Compares an index's claims about a layer with the layer itself.
//!
//! Places are not compared: a wrong place leads to bytes that no digest matches, which are never served.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use tarpon_blob::{ObjectStore, StoreError};
use tarpon_layer::{Chunk, ChunkPlace, Entry, FileContent, LayerIndex, Node, ObjectId};
use tarpon_oci::{Digest, Hasher};

/// Bytes hashed at a time.
const BLOCK: usize = 64 << 10;

/// A piece of an object: its size, and its digest unless it is all zeros.
pub type Piece = (u64, Option<Digest>);

/// The claim of a chunk about the object's content.
pub fn piece(chunk: &Chunk) -> Piece {
    (chunk.size, (chunk.place != ChunkPlace::Zeros).then_some(chunk.digest))
}

/// The result of comparing an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything compared is correct.
    True,
    /// The file at this path is cut differently, and its object is not in the store to be hashed in these pieces. Everything else is
    /// correct.
    Unchecked(String),
    /// Its claim about this path is false.
    Lie(String),
}

/// Compares an index with its layer. `claimed` is its claim, `is` was found in the layer. The entries may be in any order. Files may be cut
/// differently, as long as the objects in the store match.
pub fn compare(store: &dyn ObjectStore, claimed: &LayerIndex, is: &LayerIndex) -> Result<Verdict, StoreError> {
    let mut unchecked = None;
    let (ours, theirs) = (sorted(is), sorted(claimed));
    let differing = ours.iter().zip(&theirs).find(|(one, other)| !is_same(one, claimed, other));
    if let Some((one, other)) = differing {
        // If only one of them has an entry, the lesser of the two paths is the one in question.
        return Ok(Verdict::Lie(one.path.clone().min(other.path.clone()).to_string()));
    }
    let surplus = ours.get(theirs.len()).or_else(|| theirs.get(ours.len()));
    if let Some(entry) = surplus {
        return Ok(Verdict::Lie(entry.path.to_string()));
    }
    for (one, other) in ours.iter().zip(&theirs) {
        let (Node::File(true_content), Node::File(content)) = (&one.node, &other.node) else { continue };
        if !names_content(claimed, content) {
            continue;
        }
        let list: Vec<Piece> = pieces(claimed, content).collect();
        if pieces(is, true_content).eq(list.iter().copied()) {
            continue;
        }
        match is_list(store, &content.object, &list)? {
            Some(true) => {}
            Some(false) => return Ok(Verdict::Lie(other.path.to_string())),
            None => unchecked = unchecked.or_else(|| Some(other.path.to_string())),
        }
    }
    Ok(unchecked.map_or(Verdict::True, Verdict::Unchecked))
}

/// By path; a whiteout may have the path of an entry.
fn sorted(index: &LayerIndex) -> Vec<&Entry> {
    let mut entries: Vec<&Entry> = index.entries.iter().collect();
    let rank = |entry: &Entry| (matches!(entry.node, Node::Whiteout), matches!(entry.node, Node::Opaque));
    entries.sort_by(|one, other| one.path.cmp(&other.path).then_with(|| rank(one).cmp(&rank(other))));
    entries
}

/// Whether the claim of the index `claimed` about an entry is correct. If it does not name a file's content, only the size can be compared.
fn is_same(one: &Entry, claimed: &LayerIndex, other: &Entry) -> bool {
    let is_same_node = match (&one.node, &other.node) {
        (Node::File(one), Node::File(other)) => {
            one.size == other.size && (one.object == other.object || !names_content(claimed, other))
        }
        (one, other) => one == other,
    };
    is_same_node && one.path == other.path && one.attributes == other.attributes
}

fn names_content(index: &LayerIndex, content: &FileContent) -> bool {
    index
        .chunks
        .get(content.first_chunk as usize)
        .is_none_or(|chunk| content.chunk_count == 0 || chunk.place.names_content())
}

fn pieces<'a>(index: &'a LayerIndex, content: &FileContent) -> impl Iterator<Item = Piece> + use<'a> {
    let own = index.chunks.iter().skip(content.first_chunk as usize).take(content.chunk_count as usize);
    own.map(piece)
}

/// Whether the object consists of these pieces; `None` if it is not local.
pub(crate) fn is_list(store: &dyn ObjectStore, object: &ObjectId, list: &[Piece]) -> Result<Option<bool>, StoreError> {
    let Some(file) = store.open(object)? else { return Ok(None) };
    match consists_of(&file, list) {
        Ok(is_so) => Ok(Some(is_so)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(false)),
        Err(error) => Err(StoreError::Io { doing: format!("reading object {object}"), error }),
    }
}

fn consists_of(file: &File, list: &[Piece]) -> io::Result<bool> {
    let (mut block, mut at) = (vec![0; BLOCK], 0);
    for (size, digest) in list {
        let (mut hasher, mut left, mut is_zeros) = (Hasher::new(), *size, true);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK);
            file.read_exact_at(&mut block[..length], at)?;
            at += length as u64;
            hasher.update(&block[..length]);
            is_zeros &= block[..length].iter().all(|byte| *byte == 0);
            left -= length as u64;
        }
        if !digest.map_or(is_zeros, |digest| hasher.finish() == digest) {
            return Ok(false);
        }
    }
    Ok(file.read_at(&mut block[..1], at)? == 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tarpon_layer::{Attributes, Codec, LayerPath};
    use tarpon_oci::Verified;
    use tarpon_testkit::source::MemoryStore;

    use super::*;

    const BYTES: &[u8] = b"0123456789";

    /// An index of one file of these bytes, in chunks of this size.
    fn index(path: &str, bytes: &[u8], chunk: usize) -> LayerIndex {
        let chunks: Vec<Chunk> = bytes
            .chunks(chunk)
            .enumerate()
            .map(|(number, bytes)| Chunk {
                object_offset: (number * chunk) as u64,
                size: bytes.len() as u64,
                digest: Digest::of(bytes),
                place: ChunkPlace::Blob { codec: Codec::Raw, offset: 0, length: bytes.len() as u64, skip: 0 },
            })
            .collect();
        let count = u32::try_from(chunks.len()).unwrap();
        let content =
            FileContent { size: bytes.len() as u64, object: Digest::of(bytes), first_chunk: 0, chunk_count: count };
        let entry = Entry {
            path: LayerPath::from_normal(path.as_bytes()).unwrap(),
            node: Node::File(content.into()),
            attributes: Attributes::default().into(),
        };
        LayerIndex { entries: vec![entry], chunks, ..LayerIndex::default() }
    }

    fn store() -> MemoryStore {
        let store = MemoryStore::default();
        let mut writer = store.writer(BYTES.len() as u64).unwrap();
        writer.write_all(BYTES).unwrap();
        writer.publish(Verified::seal(BYTES).proof()).unwrap();
        store
    }

    fn lie_of(claimed: &LayerIndex, is: &LayerIndex) -> Option<String> {
        match compare(&store(), claimed, is).unwrap() {
            Verdict::Lie(path) => Some(path),
            Verdict::True => None,
            Verdict::Unchecked(path) => panic!("{path} is in the store"),
        }
    }

    #[test]
    fn another_cut_of_an_object_that_is_not_here_is_neither_right_nor_wrong() {
        let (is, other) = (index("file", BYTES, 4), index("file", BYTES, 3));
        let verdict = compare(&MemoryStore::default(), &other, &is).unwrap();
        assert_eq!(verdict, Verdict::Unchecked("/file".to_owned()));
        assert_eq!(compare(&MemoryStore::default(), &is, &is).unwrap(), Verdict::True, "the same cut needs no object");
    }

    #[test]
    fn names_attributes_and_contents_are_compared() {
        let is = index("file", BYTES, 4);
        assert_eq!(lie_of(&is, &is), None);
        assert_eq!(lie_of(&index("other", BYTES, 4), &is).as_deref(), Some("/file"));
        assert_eq!(lie_of(&LayerIndex::default(), &is).as_deref(), Some("/file"), "an entry is missing");
        assert_eq!(lie_of(&is, &LayerIndex::default()).as_deref(), Some("/file"), "an entry is made up");
        assert_eq!(lie_of(&index("file", b"something else", 4), &is).as_deref(), Some("/file"));
        let mut setuid = is.clone();
        setuid.entries[0].attributes.mode = 0o4755;
        assert_eq!(lie_of(&setuid, &is).as_deref(), Some("/file"));
    }

    #[test]
    fn another_chunking_of_the_same_bytes_matches_and_other_chunks_do_not() {
        let is = index("file", BYTES, 4);
        assert_eq!(lie_of(&index("file", BYTES, 3), &is), None);
        let mut other = is.clone();
        other.chunks[1].digest = Digest::of(b"evil");
        assert_eq!(lie_of(&other, &is).as_deref(), Some("/file"));
        let mut zeros = is.clone();
        zeros.chunks[1].place = ChunkPlace::Zeros;
        assert_eq!(lie_of(&zeros, &is).as_deref(), Some("/file"), "zeros have no digest to be wrong");
    }

    #[test]
    fn the_order_of_entries_means_nothing() {
        let mut one = index("a", BYTES, 4);
        let whiteout = Entry { node: Node::Whiteout, ..one.entries[0].clone() };
        one.entries.push(whiteout);
        let mut other = one.clone();
        other.entries.reverse();
        assert_eq!(lie_of(&one, &other), None);
    }
}
