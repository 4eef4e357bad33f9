//! Checks the statements of an index about files, as far as it alone shows whether they can be true.

use std::collections::{BTreeMap, HashMap};

use tarpon_oci::{Digest, Hasher, limits};

use super::{Chunk, ChunkPlace, Codec, Entry, FileContent, InvalidEntry, LayerPath, Node};

/// Zeros that are hashed at a time.
static BLOCK: [u8; 64 << 10] = [0; 64 << 10];

/// A file of one chunk has the digest of that chunk, and a file of zeros that of as many zeros. Zeros are never fetched, and so
/// never compared with anything later. The same bytes have one digest, and one digest names bytes of one length: zero if it is that
/// of no bytes.
pub(super) fn check(entries: &[Entry], chunks: &[Chunk]) -> Result<(), (LayerPath, InvalidEntry)> {
    let mut zeros: BTreeMap<u64, Vec<(&LayerPath, &Digest)>> = BTreeMap::new();
    let nothing = Digest::of(b"");
    let mut contents = Contents::default();
    for Entry { path, node, .. } in entries {
        let Node::File(content) = node else { continue };
        if (content.size == 0) != (content.object == nothing) {
            return Err((path.clone(), InvalidEntry::EmptyDigest));
        }
        let own = own(content, chunks);
        contents.file(content, own, &nothing).map_err(|problem| (path.clone(), problem))?;
        match own {
            [chunk] if chunk.content_digest().is_some_and(|digest| *digest != content.object) => {
                return Err((path.clone(), InvalidEntry::ChunkDigest));
            }
            [] => {}
            own if own.iter().all(|chunk| chunk.place == ChunkPlace::Zeros) => {
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

/// A part of the decoded bytes of one place: codec, offset, decoded bytes before it, its length.
type Stretch = (Codec, u64, u64, u64);

/// The statements of the files so far.
#[derive(Default)]
struct Contents<'a> {
    lengths: HashMap<&'a Digest, u64>,
    digests: HashMap<Stretch, &'a Digest>,
}

impl<'a> Contents<'a> {
    fn file(&mut self, content: &'a FileContent, own: &'a [Chunk], nothing: &Digest) -> Result<(), InvalidEntry> {
        self.named(&content.object, content.size)?;
        for chunk in own {
            let (Some(digest), ChunkPlace::Blob { codec, offset, skip, .. }) = (chunk.content_digest(), chunk.place)
            else {
                continue;
            };
            if digest == nothing {
                return Err(InvalidEntry::EmptyDigest);
            }
            // A file of one chunk has its digest, and was looked up above.
            if *digest != content.object {
                self.named(digest, chunk.size)?;
            } else if chunk.size != content.size {
                return Err(InvalidEntry::TwoLengths);
            }
            if *self.digests.entry((codec, offset, skip, chunk.size)).or_insert(digest) != digest {
                return Err(InvalidEntry::TwoDigests);
            }
        }
        Ok(())
    }

    fn named(&mut self, digest: &'a Digest, length: u64) -> Result<(), InvalidEntry> {
        let known = *self.lengths.entry(digest).or_insert(length);
        if known == length { Ok(()) } else { Err(InvalidEntry::TwoLengths) }
    }
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

    fn blob(codec: Codec, size: u64) -> ChunkPlace {
        ChunkPlace::Blob { codec, offset: 100, length: size, skip: 0 }
    }

    /// The error of one file with this object and these chunks.
    fn verdict(object: Digest, chunks: &[(u64, Digest, ChunkPlace)]) -> Option<InvalidEntry> {
        let mut size = 0;
        let chunk = |(length, digest, place): &(u64, Digest, ChunkPlace)| {
            let object_offset = size;
            size += length;
            Chunk { object_offset, size: *length, digest: *digest, place: *place }
        };
        let chunks: Vec<Chunk> = chunks.iter().map(chunk).collect();
        let chunk_count = u32::try_from(chunks.len()).unwrap();
        let node = Node::File(FileContent { size, object, first_chunk: 0, chunk_count }.into());
        let path = LayerPath::from_normal(b"file").unwrap();
        let found =
            check(&[Entry { path: path.clone(), node, attributes: Attributes::default().into() }], &chunks).err();
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
        assert_eq!(
            verdict(hello, &[half(other), half(other)]),
            None,
            "two chunk digests do not determine the file's digest"
        );
        assert_eq!(verdict(hello, &[(5, other, blob(Codec::CheckedSpan, 5))]), None, "that names no content");
    }

    #[test]
    fn only_an_empty_file_has_the_digest_of_nothing() {
        let (hello, nothing) = (Digest::of(HELLO), Digest::of(b""));
        assert_eq!(verdict(nothing, &[]), None);
        assert_eq!(verdict(hello, &[]), Some(InvalidEntry::EmptyDigest), "an empty file");
        assert_eq!(verdict(nothing, &[(5, nothing, blob(Codec::Gzip, 5))]), Some(InvalidEntry::EmptyDigest));
        let two = [(5, hello, blob(Codec::Gzip, 5)), (6, Digest::of(b"world!"), blob(Codec::Zstd, 5))];
        assert_eq!(verdict(nothing, &two), Some(InvalidEntry::EmptyDigest), "of several chunks");
        assert_eq!(verdict(nothing, &[(5, NO_DIGEST, ChunkPlace::Zeros)]), Some(InvalidEntry::EmptyDigest), "of zeros");
        let chunks = [(5, hello, blob(Codec::Gzip, 5)), (6, nothing, blob(Codec::Zstd, 5))];
        assert_eq!(verdict(Digest::of(b"whole"), &chunks), Some(InvalidEntry::EmptyDigest), "a chunk");
    }

    #[test]
    fn a_digest_names_bytes_of_one_length() {
        let (hello, whole) = (Digest::of(HELLO), Digest::of(b"whole"));
        let at = |offset| ChunkPlace::Blob { codec: Codec::Zstd, offset, length: 50, skip: 0 };
        assert_eq!(verdict(whole, &[(5, hello, at(1)), (5, hello, at(2))]), None);
        assert_eq!(verdict(whole, &[(5, hello, at(1)), (6, hello, at(2))]), Some(InvalidEntry::TwoLengths));
        assert_eq!(verdict(hello, &[(5, hello, at(1)), (5, whole, at(2))]), Some(InvalidEntry::TwoLengths), "a part");
    }

    #[test]
    fn the_same_bytes_of_a_layer_have_one_digest() {
        let (hello, other, whole) = (Digest::of(HELLO), Digest::of(b"other"), Digest::of(b"whole"));
        let at = |skip| ChunkPlace::Blob { codec: Codec::Zstd, offset: 9, length: 50, skip };
        assert_eq!(verdict(whole, &[(5, hello, at(0)), (5, other, at(5))]), None);
        assert_eq!(verdict(whole, &[(5, hello, at(0)), (5, hello, at(0))]), None, "said twice");
        assert_eq!(verdict(whole, &[(5, hello, at(0)), (5, other, at(0))]), Some(InvalidEntry::TwoDigests));
    }

    #[test]
    fn a_file_of_zeros_is_named_by_as_many_zeros() {
        let zeros = |size: u64| (size, NO_DIGEST, ChunkPlace::Zeros);
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
            entries.push(Entry { path, node: Node::File(content.into()), attributes: Attributes::default().into() });
            chunks.push(Chunk { object_offset: 0, size: size as u64, digest: NO_DIGEST, place: ChunkPlace::Zeros });
        }
        assert_eq!(check(&entries, &chunks), Ok(()));
        if let Node::File(content) = &mut entries[3].node {
            content.object = Digest::of(HELLO);
        }
        let (path, problem) = check(&entries, &chunks).unwrap_err();
        assert_eq!((path.to_string().as_str(), problem), ("/file3", InvalidEntry::ZerosDigest));
    }

    #[test]
    fn too_many_zeros_are_refused_before_they_are_hashed() {
        let size = limits::ZERO_FILE_BYTES + 1;
        assert_eq!(verdict(NO_DIGEST, &[(size, NO_DIGEST, ChunkPlace::Zeros)]), Some(InvalidEntry::TooManyZeros));
    }
}
