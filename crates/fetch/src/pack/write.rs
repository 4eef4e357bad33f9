//! Writes boot packs.

use std::io::{self, Write};
use std::num::NonZero;
use std::thread;

use tarpon_layer::write::{Encoder, OrderedWriter, Piece};

use super::index::{BootFrame, BootIndex, BootPiece};

/// Decoded bytes at which a frame ends. A frame is the least that one request fetches and the unit of decoding: small enough that a
/// reader that overtakes the stream waits for little, large enough to compress well. Frames of 1 MiB make the pack of `import numpy`
/// 4 % smaller than these.
const FRAME_BYTES: usize = 256 << 10;
/// High, because a pack is written once and waited for at every start. Level 19 saves another 0.8 % and takes twice as long (10 MB of
/// libraries in frames of 256 KiB: 3.72 and 3.69 MB, 3.7 and 1.9 MB/s); level 9 needs 8 % more, at 27 MB/s.
const ZSTD_LEVEL: i32 = 15;
/// Most threads that compress. More gain nothing: a single thread reads the pieces and writes the frames.
const MAX_THREADS: usize = 16;
/// Decoded bytes per thread that wait: four usual frames, so that threads seldom wait for the slowest one.
const WAITING_BYTES: usize = 4 * FRAME_BYTES;

/// Writes the frames of a boot pack to `W`, in the order in which pieces are added. Frames are compressed on all processors; their
/// bytes do not depend on the number of threads.
pub struct BootWriter<W> {
    blob: OrderedWriter<W>,
    /// The decoded bytes of the frame that is being filled.
    decoded: Vec<u8>,
    /// Their pieces.
    pieces: Vec<BootPiece>,
    /// The ended frames. A length is 0 until the frame is written.
    frames: Vec<BootFrame>,
}

impl<W: Write> BootWriter<W> {
    /// An empty pack.
    ///
    /// # Errors
    /// When an encoder or a thread cannot be set up.
    pub fn new(out: W) -> io::Result<Self> {
        Self::with_threads(thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS), out)
    }

    fn with_threads(threads: usize, out: W) -> io::Result<Self> {
        let encoders = (0..threads).map(|_| Encoder::zstd(ZSTD_LEVEL)).collect::<io::Result<_>>()?;
        let blob = OrderedWriter::new(out, encoders, WAITING_BYTES)?;
        Ok(Self { blob, decoded: Vec::new(), pieces: Vec::new(), frames: Vec::new() })
    }

    /// Adds the bytes of a piece, at most [`tarpon_oci::limits::CHUNK_BYTES`] of them.
    ///
    /// # Errors
    /// As `W`.
    pub fn add(&mut self, piece: BootPiece, bytes: &[u8]) -> io::Result<()> {
        if !self.decoded.is_empty() && self.decoded.len() + bytes.len() > FRAME_BYTES {
            self.end_frame()?;
        }
        self.decoded.extend_from_slice(bytes);
        self.pieces.push(piece);
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let chunk = Some(self.frames.len());
        self.frames.push(BootFrame { length: 0, pieces: std::mem::take(&mut self.pieces) });
        self.blob.submit(Piece { bytes: std::mem::take(&mut self.decoded), payload: 0, chunk })?;
        self.set_lengths()
    }

    /// Sets the lengths of the frames that were written since the last call.
    fn set_lengths(&mut self) -> io::Result<()> {
        for landed in self.blob.landed() {
            self.frames[landed.chunk].length = u32::try_from(landed.end - landed.start).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Ends the last frame and returns the index of what was written.
    ///
    /// # Errors
    /// As `W`.
    pub fn finish(mut self, profile: String) -> io::Result<(BootIndex, W)> {
        if !self.pieces.is_empty() {
            self.end_frame()?;
        }
        self.blob.settle()?;
        self.set_lengths()?;
        let (blob, out) = self.blob.finish()?;
        Ok((BootIndex { profile, blob, frames: self.frames }, out))
    }
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;

    /// A pack of these pieces, and its index.
    fn write(threads: usize, pieces: &[Vec<u8>]) -> (BootIndex, Vec<u8>) {
        let mut writer = BootWriter::with_threads(threads, Vec::new()).unwrap();
        for (number, bytes) in pieces.iter().enumerate() {
            let length = u32::try_from(bytes.len()).unwrap();
            let piece = BootPiece { object: Digest::of(bytes), offset: number as u64, length };
            writer.add(piece, bytes).unwrap();
        }
        writer.finish("start".to_owned()).unwrap()
    }

    #[test]
    fn a_pack_is_the_same_with_any_number_of_threads() {
        let size = |number: u8| [1, 70_000, FRAME_BYTES - 1, FRAME_BYTES, 3 * FRAME_BYTES][usize::from(number % 5)];
        let pieces: Vec<Vec<u8>> = (0..60).map(|number| vec![number; size(number)]).collect();
        let (index, pack) = write(1, &pieces);
        let mut decoded = Vec::new();
        let mut rest = &pack[..];
        for frame in &index.frames {
            let (encoded, after) = rest.split_at(frame.length as usize);
            decoded.extend(zstd::decode_all(encoded).unwrap());
            rest = after;
        }
        assert!(rest.is_empty() && decoded == pieces.concat());
        for threads in [2, 7] {
            assert!(write(threads, &pieces) == (index.clone(), pack.clone()), "{threads} threads");
        }
    }

    #[test]
    fn a_pack_without_pieces_has_no_frames() {
        let (index, pack) = write(2, &[]);
        assert!(index.frames.is_empty() && pack.is_empty());
    }
}
