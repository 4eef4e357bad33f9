//! Gzip (RFC 1952), one member or many, decoded front to back with detection of block boundaries.

use std::io::{self, BufRead, Read};

use flate2::Crc;
use miniz_oxide::inflate::core::BlockBoundaryState;
use tarpon_inflate::{Inflate, Progress, Stop};

use super::WINDOW_BYTES;
use super::counted::Counted;
use super::recorder::Recorder;

/// Decoded bytes at once, after the window: large enough that moving the window to the front costs nothing.
const ROOM_BYTES: usize = 512 << 10;

/// The decoder.
pub(super) struct Gzip<R> {
    reader: Counted<R>,
    inflate: Inflate,
    /// Decoded bytes of the member: a window of read bytes, then unread bytes.
    buffer: Box<[u8]>,
    read: usize,
    end: usize,
    /// Decoded bytes before the end of the buffer.
    decoded: u64,
    place: Position,
    checksum: Crc,
    /// The last consumed byte.
    last: u8,
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
            inflate: Inflate::new(),
            buffer: vec![0; WINDOW_BYTES + ROOM_BYTES].into_boxed_slice(),
            read: 0,
            end: 0,
            decoded: 0,
            place: Position::Header,
            checksum: Crc::new(),
            last: 0,
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
        self.inflate.reset();
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
        // It stops at every boundary, so that the recorded boundaries do not depend on the pieces in which the blob arrives.
        let progress = self.inflate.decode(input, &mut self.buffer[self.end..]);
        let Progress { taken, given, stop } = progress.map_err(|_| malformed("malformed deflate"))?;
        let (is_at_end, last) = (input.is_empty(), input[..taken].last().copied());
        self.checksum.update(&self.buffer[self.end..self.end + given]);
        self.end += given;
        self.decoded += given as u64;
        recorder.follow(&input[..taken], self.decoded);
        self.reader.consume(taken);
        self.last = last.unwrap_or(self.last);
        match stop {
            Stop::Pause if is_at_end && given == 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            Stop::Pause => Ok(()),
            Stop::Block { unused_bits } => {
                if recorder.is_due(self.decoded) {
                    let state = boundary(unused_bits, self.last);
                    recorder.block(self.decoded, self.reader.position(), state, &self.buffer[..self.end]);
                }
                Ok(())
            }
            Stop::End => {
                recorder.settle();
                self.place = Position::Trailer;
                Ok(())
            }
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

/// The state of a decoder at a block boundary, which begins with the highest `unused_bits` of the byte `last`.
fn boundary(unused_bits: u8, last: u8) -> BlockBoundaryState {
    let bit_buf = last.checked_shr(8 - u32::from(unused_bits)).unwrap_or(0);
    BlockBoundaryState { num_bits: unused_bits, bit_buf, z_header0: 0, z_header1: 0, check_adler32: 1 }
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
