//! Invariant: any bytes are refused as a tar or become layers that show the same as the tar, chunk by chunk, decode to
//! the very same tar (except for what eStargz adds), and do not depend on the number of threads.

use std::collections::BTreeMap;
use std::io::Read;

use tarpon_layer::decode::{LayerReader, decode_chunk};
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanStarts;
use tarpon_layer::write::{EstargzOptions, WriteError, Written, ZstdChunkedOptions, estargz, zstd_chunked};
use tarpon_layer::{Allowance, ChunkPlace, LayerIndex, Node};
use tarpon_oci::Digest;

use super::{Sink, toc_of};
use crate::layers::{Layer, check_index};

/// Small enough to split even small files.
const CHUNK_BYTES: u64 = 700;

/// Parses `data` as the tar of a layer.
pub fn write_layer(data: &[u8]) {
    for keep_diff_id in [false, true] {
        write(data, |blob, threads| {
            let options = EstargzOptions { chunk_bytes: CHUNK_BYTES, threads, keep_diff_id, level: 1 };
            estargz(data, blob, &options, &Allowance::unbounded())
        });
    }
    write(data, |blob, threads| {
        zstd_chunked(data, blob, &ZstdChunkedOptions { threads, level: 1 }, &Allowance::unbounded())
    });
}

fn write(data: &[u8], writer: impl Fn(&mut Vec<u8>, usize) -> Result<Written, WriteError>) {
    let (mut blob, mut again) = (Vec::new(), Vec::new());
    let (Ok(written), other) = (writer(&mut blob, 1), writer(&mut again, 3)) else { return };
    assert_eq!(other.expect("it was written before"), written);
    assert!(blob == again);
    assert_eq!((written.blob.digest, written.blob.size), (Digest::of(&blob), blob.len() as u64));
    let mut decoded = Vec::new();
    LayerReader::new(&blob[..], written.compression)
        .and_then(|mut reader| reader.read_to_end(&mut decoded))
        .expect("it decodes");
    assert_eq!(written.diff_id, Digest::of(&decoded));
    let (annotations, compression) = (written.annotations, written.compression);
    let is_same = decoded == data;
    assert!(is_same || !annotations.keys().any(|key| key.contains("zstd-chunked")));
    let Some(plain) = shown(data) else { panic!("what was written cannot be read") };
    assert_eq!(shown(&decoded).as_ref(), Some(&plain));
    if written.external_toc.is_some() {
        assert!(is_same);
        return;
    }
    let layer = Layer { compression, annotations, blob, diff_id: written.diff_id };
    let index = toc_of(&layer).index().expect("the TOC is sound");
    check_index(&index, layer.blob.len() as u64);
    check_chunks(&index, &layer.blob);
    assert_eq!(listing(&index), plain);
}

/// The view of a tar without format-specific entries.
fn shown(tar: &[u8]) -> Option<BTreeMap<String, String>> {
    let options = Options { access: Access::Spans(SpanStarts::default()), hides_toc_files: true };
    import(tar, options, &mut Sink).ok().map(|index| listing(&index))
}

fn listing(index: &LayerIndex) -> BTreeMap<String, String> {
    let line = |entry: &tarpon_layer::Entry| {
        let mut node = entry.node.clone();
        if let Node::File(content) = &mut node {
            (content.first_chunk, content.chunk_count) = (0, 0);
        }
        let mark = matches!(node, Node::Whiteout | Node::Opaque).then(|| format!(" {node:?}")).unwrap_or_default();
        (format!("{}{mark}", entry.path), format!("{node:?} {:?}", entry.attributes))
    };
    index.entries.iter().map(line).collect()
}

fn check_chunks(index: &LayerIndex, blob: &[u8]) {
    let mut bytes = Vec::new();
    for chunk in &index.chunks {
        if let ChunkPlace::Blob { codec, offset, length, skip } = chunk.place {
            let (start, length) = (usize::try_from(offset).expect("small"), usize::try_from(length).expect("small"));
            decode_chunk(codec, &blob[start..start + length], skip, chunk.size, &mut bytes).expect("it is there");
            assert_eq!(Digest::of(&bytes), chunk.digest);
        }
    }
}
