//! [`Column`]: a column that is encoded value by value, because the values of a large layer take several times the memory.

use std::io::{self, Write};

use serde::Serialize;
use tarpon_oci::Digest;

use crate::index::{Chunk, FileContent, LayerIndex, Node};

/// The encoded values of a column.
#[derive(Debug, Default)]
pub(super) struct Column {
    count: usize,
    bytes: Vec<u8>,
}

impl Column {
    pub(super) fn push(&mut self, value: impl Serialize) {
        self.count += 1;
        // Writing to memory does not fail, and postcard supports all types of the columns.
        let _ = postcard::to_io(&value, &mut self.bytes);
    }

    /// Adds values of one byte.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.count += bytes.len();
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes it as postcard writes a `Vec` of the values.
    pub(super) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        encode(&self.count, out)?;
        out.write_all(&self.bytes)
    }
}

/// Writes the column of digests from the index itself: they are most of a packed index.
pub(super) fn write_digests(index: &LayerIndex, out: &mut impl Write) -> io::Result<()> {
    let digests = || index.entries.iter().flat_map(|entry| digests_of(&entry.node, index));
    let bytes: usize = digests().map(|digest| digest.as_bytes().len()).sum();
    encode(&bytes, out)?;
    digests().try_for_each(|digest| out.write_all(digest.as_bytes()))
}

/// The object of a file that is not empty, then its chunks' digests where they have their own.
fn digests_of<'a>(node: &'a Node, index: &'a LayerIndex) -> impl Iterator<Item = &'a Digest> {
    let content = match node {
        Node::File(content) if content.size > 0 => Some(content),
        _ => None,
    };
    let own = content.map_or(&[][..], |content| chunks_of(content, index));
    let own = if content.is_some_and(|content| have_own_digests(content, own)) { own } else { &[] };
    content.map(|content| &content.object).into_iter().chain(own.iter().map(|chunk| &chunk.digest))
}

pub(super) fn chunks_of<'a>(content: &FileContent, index: &'a LayerIndex) -> &'a [Chunk] {
    &index.chunks[content.first_chunk as usize..][..content.chunk_count as usize]
}

/// Whether the digests of the chunks do not follow from that of the object.
pub(super) fn have_own_digests(content: &FileContent, chunks: &[Chunk]) -> bool {
    chunks.len() > 1 || chunks.iter().any(|chunk| chunk.digest != content.object)
}

/// Writes a value as part of a larger one.
pub(super) fn encode(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    // Not `postcard::to_io`, which flushes `out`.
    out.write_all(&postcard::to_stdvec(value).map_err(io::Error::other)?)
}
