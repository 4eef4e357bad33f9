//! Invariant: a chunk has exactly the requested length, and its content is what decoding the whole gives at that place.

use std::io::Read;

use tarpon_layer::Codec;
use tarpon_layer::decode::{Compression, LayerReader, decode_chunk as decode};

/// Takes a codec, a place and a length from the first bytes of `data`, and the rest as the encoded bytes.
pub fn decode_chunk(data: &[u8]) {
    let Some((&[codec, skip, skip_high, size, size_high], encoded)) = data.split_first_chunk() else { return };
    let (codec, compression) = match codec % 4 {
        0 => (Codec::Raw, Compression::None),
        1 => (Codec::Gzip, Compression::Gzip),
        2 => (Codec::Zstd, Compression::Zstd),
        _ => (Codec::Stream, Compression::None),
    };
    let (skip, size) = (u16::from_le_bytes([skip, skip_high]), u16::from_le_bytes([size, size_high]));
    let mut chunk = Vec::new();
    if decode(codec, encoded, skip.into(), size.into(), &mut chunk).is_err() {
        return;
    }
    assert_eq!(chunk.len(), usize::from(size));
    assert_ne!(codec, Codec::Stream);
    let mut whole = Vec::new();
    let reader = LayerReader::new(encoded, compression).expect("a decoder");
    // The stream checks more than a chunk does (checksums, trailing data), so it may end in an error: the digest of a
    // chunk is what authenticates it.
    if reader.take(u64::from(skip) + u64::from(size)).read_to_end(&mut whole).is_ok() {
        assert_eq!(whole.get(usize::from(skip)..), Some(&chunk[..]));
    }
}
