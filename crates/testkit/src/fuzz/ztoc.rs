//! Invariant: a ztoc is refused or gives an index that keeps its promises, stays inside the blob, and reads no byte
//! outside of the span that it names; reading it never takes more than its bytes allow.

use tarpon_layer::chunks::{ChunkTable, ChunkTableBuilder};
use tarpon_layer::decode::{Compression, decode_span};
use tarpon_layer::soci::{Options, index};
use tarpon_layer::{ChunkPlace, Codec};
use tarpon_oci::{Blob, Digest, Verified};

use crate::layers::check_index;

/// Size of the blob, as stated in most seeds.
const BLOB: u64 = 1 << 12;

/// Parses `data` as a ztoc: of a blob of the size in its first bytes, and of one of a customary size.
pub fn ztoc(data: &[u8]) {
    let blob = vec![0x5a; usize::try_from(BLOB).expect("small")];
    for (size, ztoc) in [
        (BLOB, data),
        (data.first_chunk().map_or(0, |size| u16::from_le_bytes(*size).into()), data.get(2..).unwrap_or_default()),
    ] {
        let layer = Blob { digest: Digest::of(&blob), size };
        let Ok(index) = index(&Verified::seal(ztoc), layer, Options::default()) else { continue };
        check_index(&index, size);
        let mut builder = ChunkTableBuilder::new();
        let number = builder.add_layer(layer, Compression::Gzip).expect("one layer");
        builder.add_index(number, &index).expect("a sound index");
        let table = ChunkTable::open(builder.finish().expect("small")).expect("a sound table");
        let mut out = Vec::new();
        for chunk in 0..table.chunk_count().min(64) {
            let entry = table.chunk(chunk).expect("it is counted");
            let ChunkPlace::Blob { codec: Codec::CheckedSpan, offset, length, skip } = entry.chunk.place else {
                panic!("all chunks are in spans");
            };
            let checkpoint = table.checkpoint(entry.layer, offset).expect("each span has one");
            let range = [offset, offset + length].map(|place| usize::try_from(place).expect("small"));
            let Some(encoded) = blob.get(range[0]..range[1]) else { continue };
            let size = entry.chunk.size.min(1 << 16);
            if skip <= 1 << 16 && decode_span(&checkpoint, encoded, skip, size, &mut out).is_ok() {
                assert_eq!(out.len() as u64, size);
            }
        }
    }
}
