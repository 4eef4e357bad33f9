//! tar-split data: everything of a tar except its payloads, from which the identical tar can be reassembled.
//!
//! One JSON object per line: segments of raw bytes, and between them files by name, size and checksum. containers/storage stores it
//! beside the layer, so that an image that was pulled piece by piece can be pushed.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;
use tarpon_oci::Digest;

use super::crc64::Crc64;

/// Most compressed bytes in memory. No layer within the limits of [`tarpon_oci::limits`] comes near.
const COMPRESSED_BYTES: usize = 256 << 20;

#[derive(Serialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "is_zero")]
    size: u64,
    payload: Option<String>,
    position: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

const FILE: u8 = 1;
const SEGMENT: u8 = 2;

/// Finished tar-split data.
pub(super) struct Done {
    pub(super) compressed: Vec<u8>,
    /// Digest of the compressed bytes.
    pub(super) digest: Digest,
    pub(super) decoded: u64,
}

/// tar-split data under construction.
pub(super) struct TarSplit {
    encoder: zstd::stream::write::Encoder<'static, Vec<u8>>,
    decoded: u64,
    position: u64,
    line: Vec<u8>,
}

impl TarSplit {
    pub(super) fn new(level: i32) -> io::Result<Self> {
        let encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
        Ok(Self { encoder, decoded: 0, position: 0, line: Vec::new() })
    }

    /// Adds bytes that are no payload. There is one segment for all headers of an entry, with the padding before them.
    pub(super) fn segment(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.write(SEGMENT, None, 0, Some(BASE64.encode(bytes)))
    }

    /// Adds an entry, whose payload belongs here if it has any.
    pub(super) fn file(&mut self, name: &str, size: u64, checksum: Option<Crc64>) -> io::Result<()> {
        let checksum = checksum.map(|checksum| BASE64.encode(checksum.finish()));
        self.write(FILE, Some(name), size, checksum)
    }

    /// Returns the data, unless it became too large.
    pub(super) fn finish(self) -> io::Result<Option<Done>> {
        let compressed = self.encoder.finish()?;
        if compressed.len() > COMPRESSED_BYTES {
            return Ok(None);
        }
        let digest = Digest::of(&compressed);
        Ok(Some(Done { compressed, digest, decoded: self.decoded }))
    }

    fn write(&mut self, kind: u8, name: Option<&str>, size: u64, payload: Option<String>) -> io::Result<()> {
        // Data that is too large is discarded at the end. Until then it must not grow.
        if self.encoder.get_ref().len() > COMPRESSED_BYTES {
            return Ok(());
        }
        self.line.clear();
        serde_json::to_writer(&mut self.line, &Line { kind, name, size, payload, position: self.position })?;
        self.line.push(b'\n');
        self.position += 1;
        self.decoded += self.line.len() as u64;
        self.encoder.write_all(&self.line)
    }
}
