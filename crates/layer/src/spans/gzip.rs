//! Gzip (RFC 1952), one member or many, decoded front to back with detection of block boundaries.

use std::io::{self, BufRead, Read};

use flate2::Crc;
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::WINDOW_BYTES;
use super::counted::Counted;
use super::recorder::Recorder;

/// Decoded bytes at once, after the window: large enough that moving the window to the front costs nothing.
const ROOM_BYTES: usize = 512 << 10;

/// The decoder.
pub(super) struct Gzip<R> {
    reader: Counted<R>,
    inflate: Box<DecompressorOxide>,
    /// Decoded bytes of the member: a window of read bytes, then unread bytes.
    buffer: Box<[u8]>,
    read: usize,
    end: usize,
    /// Decoded bytes before the end of the buffer.
    decoded: u64,
    place: Position,
    checksum: Crc,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Header,
    Blocks,
    Trailer,
    End,
}

impl<R: BufRead> Gzip<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader: Counted::new(reader),
            inflate: Box::default(),
            buffer: vec![0; WINDOW_BYTES + ROOM_BYTES].into_boxed_slice(),
            read: 0,
            end: 0,
            decoded: 0,
            place: Position::Header,
            checksum: Crc::new(),
        }
    }

    /// Bytes of the blob that were consumed.
    pub(super) fn position(&self) -> u64 {
        self.reader.position()
    }

    pub(super) fn read(&mut self, out: &mut [u8], recorder: &mut Recorder) -> io::Result<usize> {
        while self.read == self.end {
            match self.place {
                Position::Header => self.begin_member(recorder)?,
                Position::Blocks => self.decode(recorder)?,
                Position::Trailer => self.end_member()?,
                Position::End => return Ok(0),
            }
        }
        let count = out.len().min(self.end - self.read);
        out[..count].copy_from_slice(&self.buffer[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }

    fn begin_member(&mut self, recorder: &mut Recorder) -> io::Result<()> {
        recorder.free(self.decoded, self.reader.position());
        skip_header(&mut self.reader)?;
        self.inflate.init();
        self.checksum.reset();
        // Bytes before a member are not part of its window.
        (self.read, self.end) = (0, 0);
        self.place = Position::Blocks;
        Ok(())
    }

    /// Decodes more bytes. All earlier ones must have been read.
    fn decode(&mut self, recorder: &mut Recorder) -> io::Result<()> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.end - WINDOW_BYTES.., 0);
            (self.read, self.end) = (WINDOW_BYTES, WINDOW_BYTES);
        }
        let input = self.reader.fill_buf()?;
        let more = if input.is_empty() { 0 } else { TINFL_FLAG_HAS_MORE_INPUT };
        // Stops at every boundary, so that the recorded boundaries do not depend on the pieces in which the blob arrives.
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY | more;
        let (status, taken, given) = decompress(&mut self.inflate, input, &mut self.buffer, self.end, flags);
        self.checksum.update(&self.buffer[self.end..self.end + given]);
        self.end += given;
        self.decoded += given as u64;
        recorder.follow(&input[..taken], self.decoded);
        self.reader.consume(taken);
        match status {
            TINFLStatus::NeedsMoreInput | TINFLStatus::HasMoreOutput => Ok(()),
            TINFLStatus::BlockBoundary => {
                if recorder.is_due(self.decoded)
                    && let Some(state) = self.inflate.block_boundary_state()
                {
                    recorder.block(self.decoded, self.reader.position(), state, &self.buffer[..self.end]);
                }
                Ok(())
            }
            TINFLStatus::Done => {
                recorder.settle();
                self.place = Position::Trailer;
                Ok(())
            }
            TINFLStatus::FailedCannotMakeProgress => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(malformed("malformed deflate")),
        }
    }

    fn end_member(&mut self) -> io::Result<()> {
        let mut trailer = [0; 8];
        self.reader.read_exact(&mut trailer)?;
        let [a, b, c, d, e, f, g, h] = trailer;
        if u32::from_le_bytes([a, b, c, d]) != self.checksum.sum() {
            return Err(malformed("the checksum of a gzip member does not match"));
        }
        if u32::from_le_bytes([e, f, g, h]) != self.checksum.amount() {
            return Err(malformed("the length of a gzip member does not match"));
        }
        self.place = if self.reader.is_at_end()? { Position::End } else { Position::Header };
        Ok(())
    }
}

/// Skips the header of a member.
pub(crate) fn skip_header(reader: &mut impl BufRead) -> io::Result<()> {
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    const HEADER_CHECKSUM: u8 = 2;
    let mut fixed = [0; 10];
    reader.read_exact(&mut fixed)?;
    let [0x1f, 0x8b, 8, flags, ..] = fixed else { return Err(malformed("no header of a gzip member")) };
    if flags & EXTRA != 0 {
        let mut length = [0; 2];
        reader.read_exact(&mut length)?;
        skip(reader, u64::from(u16::from_le_bytes(length)))?;
    }
    for flag in [NAME, COMMENT] {
        if flags & flag != 0 {
            reader.skip_until(0)?;
        }
    }
    if flags & HEADER_CHECKSUM != 0 {
        skip(reader, 2)?;
    }
    Ok(())
}

fn skip(reader: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut reader.take(count), &mut io::sink())?;
    if skipped == count { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn malformed(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
