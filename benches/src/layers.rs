//! Operations on a layer: reading its table of contents, walking its tar, decoding a span.

use std::io::{Read, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use tarpon_layer::Allowance;
use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::decode_span;
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanReader;
use tarpon_layer::toc::{Claim, TocClaim, TocPlace};
use tarpon_layer::write::{EstargzOptions, Written, ZstdChunkedOptions, estargz, zstd_chunked};
use tarpon_layer::{ChunkPlace, Codec, LayerIndex};
use tarpon_oci::{Blob, Digest};

use crate::inputs::{Forget, layer_tar};
use crate::{Run, Runs};

/// Few: making the layer takes longer than reading its table of contents, and it runs under Callgrind as well.
const FILES: u64 = 400;
/// Files of the layer whose spans are decoded. Decoding is slow when each instruction is counted.
const SPANNED_FILES: u64 = 400;
const SPAN_BYTES: u64 = 256 << 10;

pub(crate) fn estargz_toc() -> Runs {
    let mut blob = Vec::new();
    let options = EstargzOptions { level: 1, ..EstargzOptions::default() };
    let written = estargz(&layer_tar(0, FILES)[..], &mut blob, &options, &Allowance::unbounded()).unwrap();
    toc(&written, &blob)
}

pub(crate) fn zstd_chunked_toc() -> Runs {
    let mut blob = Vec::new();
    let options = ZstdChunkedOptions { level: 1, ..ZstdChunkedOptions::default() };
    let written = zstd_chunked(&layer_tar(0, FILES)[..], &mut blob, &options, &Allowance::unbounded()).unwrap();
    toc(&written, &blob)
}

/// Decodes a table of contents to the index of its layer.
fn toc(written: &Written, blob: &[u8]) -> Runs {
    let (claim, place) = claim(written, blob);
    let TocPlace::InBlob(range) = &place else { panic!("it is in the blob") };
    let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap());
    let shared = Arc::new((claim, place, blob[start..end].to_vec()));
    Box::new(move || {
        let shared = shared.clone();
        Box::new(move || {
            let (claim, place, encoded) = &*shared;
            entries(&claim.open(place, encoded, &Allowance::of(encoded.len())).unwrap().index().unwrap())
        })
    })
}

fn claim(written: &Written, blob: &[u8]) -> (TocClaim, TocPlace) {
    let media_type = tarpon_oci::MediaType::Layer(written.compression);
    let Ok(Claim::Toc(claim)) = Claim::of(&media_type, &written.annotations, written.blob.size) else {
        panic!("it has a table of contents")
    };
    let first = &blob[usize::try_from(claim.first_range().start).unwrap()..];
    let place = claim.locate(first).unwrap();
    (claim, place)
}

fn entries(index: &LayerIndex) -> u64 {
    index.entries.len() as u64
}

pub(crate) fn tar_import() -> Runs {
    let tar = Arc::new(layer_tar(0, SPANNED_FILES));
    Box::new(move || {
        let tar = tar.clone();
        Box::new(move || {
            let options = Options { access: Access::Random, hides_toc_files: false };
            entries(&import(&tar[..], options, &mut Forget).unwrap())
        })
    })
}

/// Decodes one chunk of a gzip layer from its first span with a window.
pub(crate) fn span_decode() -> Runs {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&layer_tar(0, SPANNED_FILES)).unwrap();
    let blob = encoder.finish().unwrap();
    let mut reader = SpanReader::with_spans_of(SPAN_BYTES, &blob[..]).unwrap();
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let mut index = import(&mut reader, Options { access, hides_toc_files: false }, &mut Forget).unwrap();
    reader.by_ref().read_to_end(&mut Vec::new()).unwrap();
    index.place_in_spans(&reader.finish(), compression);
    let mut builder = ChunkTableBuilder::new();
    let layer = builder.add_layer(Blob { digest: Digest::of(&blob), size: blob.len() as u64 }, compression).unwrap();
    builder.add_index(layer, &index).unwrap();
    let table = ChunkTable::open(builder.finish().unwrap()).unwrap();
    let (size, offset, length, skip) = (0..table.chunk_count())
        .find_map(|number| {
            let entry = table.chunk(number).unwrap();
            match entry.chunk.place {
                ChunkPlace::Blob { codec: Codec::Deflate, offset, length, skip } => {
                    Some((entry.chunk.size, offset, length, skip))
                }
                _ => None,
            }
        })
        .unwrap();
    let [start, length] = [offset, length].map(|at| usize::try_from(at).unwrap());
    let shared = Arc::new((table, blob[start..start + length].to_vec()));
    Box::new(move || -> Run {
        let shared = shared.clone();
        Box::new(move || {
            let (table, span) = &*shared;
            let checkpoint = table.checkpoint(layer, offset).unwrap();
            let mut out = Vec::new();
            decode_span(&checkpoint, span, skip, size, &mut out).unwrap();
            out.len() as u64
        })
    })
}
