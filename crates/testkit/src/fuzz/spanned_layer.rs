//! Invariant: a layer decodes to the same bytes with and without recording its spans; and every chunk is in the span, and
//! has the digest, that the index states.

use std::io::Read;

use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::{LayerReader, decode_chunk, decode_span};
use tarpon_layer::plain::{Access, Options, import};
use tarpon_layer::spans::SpanReader;
use tarpon_layer::{ChunkPlace, Codec};
use tarpon_oci::{Blob, Digest};

use super::tar_walk::Sink;

/// Layers that decode to more than this take too long.
const LARGEST: u64 = 4 << 20;

/// Uses the first byte of `data` as the length of spans, and the rest as the blob of a layer.
pub fn spanned_layer(data: &[u8]) {
    let Some((span, blob)) = data.split_first() else { return };
    let span = 64 * (u64::from(*span) + 1);
    let mut plain = Vec::new();
    let Ok(reader) = LayerReader::sniffed(blob) else { return };
    let is_sound = reader.take(LARGEST + 1).read_to_end(&mut plain).is_ok();
    if plain.len() as u64 > LARGEST {
        return;
    }
    let mut bytes = Vec::new();
    let read = SpanReader::with_spans_of(span, blob).and_then(|mut reader| reader.read_to_end(&mut bytes));
    if is_sound && read.is_ok() {
        assert_eq!(bytes, plain);
    }
    let Ok(mut reader) = SpanReader::with_spans_of(span, blob) else { return };
    let (compression, access) = (reader.compression(), Access::Spans(reader.starts()));
    let Ok(mut index) = import(&mut reader, Options { access, hides_toc_files: false }, &mut Sink) else { return };
    index.place_in_spans(&reader.finish(), compression);
    let mut builder = ChunkTableBuilder::new();
    let layer = Blob { digest: Digest::of(blob), size: blob.len() as u64 };
    let number = builder.add_layer(layer, compression).expect("one layer");
    builder.add_index(number, &index).expect("a sound index");
    let table = ChunkTable::open(builder.finish().expect("small")).expect("a sound table");
    let mut out = Vec::new();
    for number in 0..table.chunk_count() {
        let entry = table.chunk(number).expect("it is counted");
        let ChunkPlace::Blob { codec, offset, length, skip } = entry.chunk.place else { continue };
        let place = |number: u64| usize::try_from(number).expect("small");
        match codec {
            Codec::Stream => continue,
            Codec::Deflate => {
                let encoded = &blob[place(offset)..][..place(length)];
                let checkpoint = table.checkpoint(entry.layer, offset).expect("it has one");
                decode_span(&checkpoint, encoded, skip, entry.chunk.size, &mut out).expect("it is there");
            }
            _ => {
                let encoded = &blob[place(offset)..][..place(length)];
                decode_chunk(codec, encoded, skip, entry.chunk.size, &mut out).expect("it is there");
            }
        }
        assert_eq!(Digest::of(&out), entry.chunk.digest);
    }
}
