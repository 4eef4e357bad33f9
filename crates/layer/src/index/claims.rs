//! What an index that somebody wrote says of files, as far as it alone tells whether that can be so.

use std::collections::BTreeMap;

use tarpon_oci::{Digest, Hasher, limits};

use super::{Chunk, Entry, FileContent, InvalidEntry, LayerPath, Node, Place};

/// Zeros that are hashed at a time.
static BLOCK: [u8; 64 << 10] = [0; 64 << 10];

/// A file of one chunk is that chunk, and a file of zeros is as many zeros: its object has no other name. Zeros are never fetched, and so
/// never compared with anything later.
pub(super) fn check(entries: &[Entry], chunks: &[Chunk]) -> Result<(), (LayerPath, InvalidEntry)> {
    let mut zeros: BTreeMap<u64, Vec<(&LayerPath, &Digest)>> = BTreeMap::new();
    for Entry { path, node, .. } in entries {
        let Node::File(content) = node else { continue };
        match own(content, chunks) {
            [chunk] if chunk.content_digest().is_some_and(|digest| *digest != content.object) => {
                return Err((path.clone(), InvalidEntry::ChunkDigest));
            }
            [] => {}
            own if own.iter().all(|chunk| chunk.place == Place::Zeros) => {
                if content.size > limits::ZERO_FILE_BYTES {
                    return Err((path.clone(), InvalidEntry::TooManyZeros));
                }
                zeros.entry(content.size).or_default().push((path, &content.object));
            }
            _ => {}
        }
    }
    check_zeros(&zeros)
}

/// In the order of their sizes: the zeros of one file begin with those of all smaller ones, and are hashed once for all of them.
fn check_zeros(files: &BTreeMap<u64, Vec<(&LayerPath, &Digest)>>) -> Result<(), (LayerPath, InvalidEntry)> {
    let (mut hasher, mut hashed) = (Hasher::new(), 0);
    for (size, files) in files {
        while hashed < *size {
            let length = usize::try_from(size - hashed).unwrap_or(BLOCK.len()).min(BLOCK.len());
            hasher.update(&BLOCK[..length]);
            hashed += length as u64;
        }
        let digest = hasher.clone().finish();
        if let Some((path, _)) = files.iter().find(|(_, object)| **object != digest) {
            return Err(((*path).clone(), InvalidEntry::ZerosDigest));
        }
    }
    Ok(())
}

fn own<'a>(content: &FileContent, chunks: &'a [Chunk]) -> &'a [Chunk] {
    let first = content.first_chunk as usize;
    chunks.get(first..first + content.chunk_count as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Attributes, Codec, NO_DIGEST};

    const HELLO: &[u8] = b"hello";

    fn blob(codec: Codec, size: u64) -> Place {
        Place::Blob { codec, offset: 100, length: size, skip: 0 }
    }

    /// The verdict on one file with this object and these chunks.
    fn verdict(object: Digest, chunks: &[(u64, Digest, Place)]) -> Option<InvalidEntry> {
        let mut size = 0;
        let chunk = |(length, digest, place): &(u64, Digest, Place)| {
            let object_offset = size;
            size += length;
            Chunk { object_offset, size: *length, digest: *digest, place: *place }
        };
        let chunks: Vec<Chunk> = chunks.iter().map(chunk).collect();
        let chunk_count = u32::try_from(chunks.len()).unwrap();
        let node = Node::File(FileContent { size, object, first_chunk: 0, chunk_count });
        let path = LayerPath::from_normal(b"file").unwrap();
        let found = check(&[Entry { path: path.clone(), node, attributes: Attributes::default() }], &chunks).err();
        found.map(|(named, problem)| {
            assert_eq!(named, path);
            problem
        })
    }

    #[test]
    fn the_only_chunk_of_a_file_is_the_file() {
        let (hello, other) = (Digest::of(HELLO), Digest::of(b"other"));
        assert_eq!(verdict(hello, &[(5, hello, blob(Codec::Gzip, 5))]), None);
        assert_eq!(verdict(hello, &[(5, other, blob(Codec::Gzip, 5))]), Some(InvalidEntry::ChunkDigest));
        let half = |digest| (5, digest, blob(Codec::Gzip, 5));
        assert_eq!(verdict(hello, &[half(other), half(other)]), None, "of two chunks nobody can tell");
        assert_eq!(verdict(hello, &[(5, other, blob(Codec::CheckedSpan, 5))]), None, "that names no content");
    }

    #[test]
    fn a_file_of_zeros_is_named_by_as_many_zeros() {
        let zeros = |size: u64| (size, NO_DIGEST, Place::Zeros);
        let named = |size: usize| Digest::of(&vec![0; size]);
        assert_eq!(verdict(named(5), &[zeros(5)]), None);
        assert_eq!(verdict(named(200_000), &[zeros(150_000), zeros(50_000)]), None);
        assert_eq!(verdict(Digest::of(HELLO), &[zeros(5)]), Some(InvalidEntry::ZerosDigest));
        assert_eq!(verdict(named(4), &[zeros(3), zeros(2)]), Some(InvalidEntry::ZerosDigest));
        let hello = (5, Digest::of(HELLO), blob(Codec::Zstd, 5));
        assert_eq!(verdict(named(9), &[zeros(5), hello]), None, "what is fetched is hashed then");
    }

    #[test]
    fn zeros_of_several_sizes_are_hashed_in_one_go_and_each_compared() {
        let zeros = [70_000, 3, 200_000, 3];
        let mut entries = Vec::new();
        let mut chunks = Vec::new();
        for (number, size) in (0..).zip(zeros) {
            let object = Digest::of(&vec![0; size]);
            let content = FileContent { size: size as u64, object, first_chunk: number, chunk_count: 1 };
            let path = LayerPath::from_normal(format!("file{number}").as_bytes()).unwrap();
            entries.push(Entry { path, node: Node::File(content), attributes: Attributes::default() });
            chunks.push(Chunk { object_offset: 0, size: size as u64, digest: NO_DIGEST, place: Place::Zeros });
        }
        assert_eq!(check(&entries, &chunks), Ok(()));
        if let Node::File(content) = &mut entries[3].node {
            content.object = Digest::of(HELLO);
        }
        let (path, problem) = check(&entries, &chunks).unwrap_err();
        assert_eq!((path.to_string().as_str(), problem), ("/file3", InvalidEntry::ZerosDigest));
    }

    #[test]
    fn more_zeros_than_anybody_means_are_refused_before_they_are_hashed() {
        let size = limits::ZERO_FILE_BYTES + 1;
        assert_eq!(verdict(NO_DIGEST, &[(size, NO_DIGEST, Place::Zeros)]), Some(InvalidEntry::TooManyZeros));
    }
}
