//! The promises of every layer index, checked exhaustively.

use std::collections::HashMap;

use tarpon_layer::{ChunkPlace, LayerIndex, Node};
use tarpon_oci::{Digest, limits};

/// Panics if the index breaks one of its promises. Offsets refer to a blob of `blob_bytes`.
pub fn check_index(index: &LayerIndex, blob_bytes: u64) {
    let mut nodes = HashMap::new();
    for entry in &index.entries {
        if !matches!(entry.node, Node::Whiteout | Node::Opaque) {
            assert!(nodes.insert(&entry.path, &entry.node).is_none(), "{} occurs twice", entry.path);
        }
        assert!(entry.attributes.mode <= 0o7777 && entry.attributes.mtime.nanoseconds < 1_000_000_000);
        assert!(entry.attributes.xattrs.is_sorted_by(|one, other| one.name < other.name));
        for xattr in &entry.attributes.xattrs {
            assert!(xattr.name.starts_with(b"user.") || *xattr.name == *b"security.capability");
            assert!(!xattr.name.starts_with(b"user.overlay."));
        }
        if let Node::File(content) = &entry.node {
            let run = &index.chunks[content.first_chunk as usize..][..content.chunk_count as usize];
            let end = run.iter().fold(0, |place, chunk| {
                assert_eq!(chunk.object_offset, place, "{}", entry.path);
                assert_ne!(chunk.size, 0);
                place + chunk.size
            });
            assert_eq!(end, content.size);
            assert!(content.size <= limits::FILE_BYTES);
            assert_eq!(content.size == 0, content.object == Digest::of(b""));
        }
    }
    for entry in &index.entries {
        let mut above = entry.path.as_bytes();
        while let Some(slash) = above.iter().rposition(|byte| *byte == b'/') {
            above = &above[..slash];
            let parent = nodes.get(&tarpon_layer::LayerPath::from_normal(above).expect("a normal path"));
            let is_marker = matches!(entry.node, Node::Whiteout | Node::Opaque);
            assert!(is_marker || parent.is_none_or(|parent| **parent == Node::Directory), "{}", entry.path);
        }
        if let Node::HardLink(target) = &entry.node {
            let end = nodes.get(&**target);
            assert!(!end.is_some_and(|node| matches!(node, Node::Directory | Node::HardLink(_))), "{}", entry.path);
        }
    }
    for chunk in &index.chunks {
        if let ChunkPlace::Blob { offset, length, .. } = chunk.place {
            assert!(offset.checked_add(length).is_some_and(|end| end <= blob_bytes));
        }
    }
}
