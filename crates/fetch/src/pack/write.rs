//! Writes boot packs.

use std::io::{self, Write};

use tarpon_oci::{Blob, Hasher};

use super::index::{BootFrame, BootIndex, BootPiece};

/// Decoded bytes at which a frame ends. A frame is the least that one request fetches and the unit of decoding: small enough that a
/// reader that overtakes the stream waits for little, large enough to compress well. Frames of 1 MiB make the pack of `import numpy`
/// 4 % smaller than these.
const FRAME_BYTES: usize = 256 << 10;
/// High, because a pack is written once and waited for at every start. Level 19 saves another 0.8 % and takes twice as long (10 MB of
/// libraries in frames of 256 KiB: 3.72 and 3.69 MB, 3.7 and 1.9 MB/s); level 9 needs 8 % more, at 27 MB/s.
const ZSTD_LEVEL: i32 = 15;

/// Writes the frames of a boot pack to `W`, in the order in which pieces are added.
pub struct BootWriter<W> {
    out: W,
    hasher: Hasher,
    size: u64,
    compressor: zstd::bulk::Compressor<'static>,
    pending: Vec<u8>,
    pieces: Vec<BootPiece>,
    frames: Vec<BootFrame>,
}

impl<W: Write> BootWriter<W> {
    /// An empty pack.
    ///
    /// # Errors
    /// When no encoder can be set up.
    pub fn new(out: W) -> io::Result<Self> {
        let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        let (pending, pieces, frames) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { out, hasher: Hasher::new(), size: 0, compressor, pending, pieces, frames })
    }

    /// Adds the bytes of a piece, at most [`tarpon_oci::limits::CHUNK_BYTES`] of them.
    ///
    /// # Errors
    /// As `W`.
    pub fn add(&mut self, piece: BootPiece, bytes: &[u8]) -> io::Result<()> {
        if !self.pending.is_empty() && self.pending.len() + bytes.len() > FRAME_BYTES {
            self.end_frame()?;
        }
        self.pieces.push(piece);
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        let encoded = self.compressor.compress(&self.pending)?;
        self.out.write_all(&encoded)?;
        self.hasher.update(&encoded);
        self.size += encoded.len() as u64;
        let length = u32::try_from(encoded.len()).map_err(io::Error::other)?;
        self.frames.push(BootFrame { length, pieces: std::mem::take(&mut self.pieces) });
        self.pending.clear();
        Ok(())
    }

    /// Ends the last frame and returns the index of what was written.
    ///
    /// # Errors
    /// As `W`.
    pub fn finish(mut self, profile: String) -> io::Result<(BootIndex, W)> {
        self.end_frame()?;
        self.out.flush()?;
        let blob = Blob { digest: self.hasher.finish(), size: self.size };
        Ok((BootIndex { profile, blob, frames: self.frames }, self.out))
    }
}
