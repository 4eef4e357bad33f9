//! The compressions of layers, as one or many pieces.

use std::io::Write;

use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};

/// One gzip member.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    gzip_with_header(bytes, GzBuilder::new())
}

/// One gzip member with optional header fields.
pub fn gzip_with_header(bytes: &[u8], header: GzBuilder) -> Vec<u8> {
    let mut encoder: GzEncoder<Vec<u8>> = header.write(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes all bytes")
}

/// A gzip member for each `length` bytes.
pub fn gzip_members(bytes: &[u8], length: usize) -> Vec<u8> {
    bytes.chunks(length).flat_map(gzip).collect()
}

/// One zstd frame.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory takes all bytes")
}

/// A zstd frame for each `length` bytes, with a skippable frame before each.
pub fn zstd_frames(bytes: &[u8], length: usize) -> Vec<u8> {
    bytes.chunks(length).flat_map(|piece| [skippable_frame(b"skip me"), zstd(piece)].concat()).collect()
}

/// A frame that decoders skip.
pub fn skippable_frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("test data is small");
    [&b"\x50\x2a\x4d\x18"[..], &length.to_le_bytes(), body].concat()
}
