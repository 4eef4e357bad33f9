//! [`Source`]: a tar read entry by entry, including the bytes outside of payloads, so that none is lost.

use std::cell::RefCell;
use std::io::{self, Read};
use std::rc::Rc;

use super::error::WriteError;
use crate::tar::{BLOCK, Piece, TarEntry, TarReader};

/// Most bytes between two payloads. The reader limits the extension headers of one entry. This limits global headers, of which any
/// number may precede an entry.
const BETWEEN_PAYLOADS_BYTES: usize = 64 << 20;
/// Bytes that are read at once behind the archive's end.
const REST_BYTES: usize = 64 << 10;

/// The bytes before the payload of an entry.
pub(super) struct Before {
    /// Padding of the entry before it. May be too short at the end of an archive that lacks its trailer.
    pub(super) padding: Vec<u8>,
    /// Bytes of padding that the entry before it lacks.
    pub(super) lacks_padding: u64,
    /// Global headers, which belong to no entry.
    pub(super) global: Vec<u8>,
    /// The headers of the entry. At the end of the archive, its final blocks.
    pub(super) headers: Vec<u8>,
}

pub(super) struct Source<R> {
    tar: TarReader<Tee<R>>,
    seen: Rc<RefCell<Seen>>,
    /// Position up to which [`Seen`] was emptied.
    place: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(reader: R) -> Self {
        let seen = Rc::new(RefCell::new(Seen::default()));
        Self { tar: TarReader::new(Tee { reader, seen: Rc::clone(&seen) }), seen, place: 0 }
    }

    /// Bytes of the tar that were returned so far.
    pub(super) fn position(&self) -> u64 {
        self.place
    }

    /// The next entry and the bytes before it. At the end of the archive only the latter.
    pub(super) fn next(&mut self) -> Result<(Option<TarEntry>, Before), WriteError> {
        let entry = self.tar.next_entry()?;
        let end = self.tar.position();
        let start = entry.as_ref().map_or(end, |entry| entry.offset);
        let needed = self.place.wrapping_neg() % BLOCK as u64;
        let padding = self.take(needed.min(end - self.place));
        let lacks_padding = needed - padding.len() as u64;
        let global = match entry {
            Some(_) => self.take(start - self.place),
            None => Vec::new(),
        };
        let headers = self.take(end - self.place);
        Ok((entry, Before { padding, lacks_padding, global, headers }))
    }

    /// Passes the payload of the current entry to `taker`. The entry is not sparse.
    pub(super) fn payload(&mut self, mut taker: impl FnMut(&[u8]) -> Result<(), WriteError>) -> Result<(), WriteError> {
        while let Some(piece) = self.tar.piece()? {
            let Piece::Data { bytes, .. } = piece else { continue };
            taker(bytes)?;
            self.seen.borrow_mut().discard(bytes.len());
            self.place += bytes.len() as u64;
        }
        Ok(())
    }

    /// Passes everything behind the archive's end to `taker`.
    pub(super) fn rest(self, mut taker: impl FnMut(&[u8]) -> Result<(), WriteError>) -> Result<(), WriteError> {
        let mut reader = self.tar.into_inner().reader;
        let ahead = self.seen.borrow_mut().take_all();
        taker(&ahead)?;
        let mut buffer = vec![0; REST_BYTES];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => taker(&buffer[..count])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(WriteError::Read(error)),
            }
        }
    }

    fn take(&mut self, count: u64) -> Vec<u8> {
        let bytes = self.seen.borrow_mut().take(usize::try_from(count).unwrap_or(usize::MAX));
        self.place += bytes.len() as u64;
        bytes
    }
}

/// Bytes that the tar's reader has read and that were not taken yet: read-ahead and headers.
#[derive(Default)]
struct Seen {
    bytes: Vec<u8>,
    start: usize,
}

impl Seen {
    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.bytes.len() - self.start > BETWEEN_PAYLOADS_BYTES {
            return Err(io::Error::other(format!("more than {BETWEEN_PAYLOADS_BYTES} bytes of headers in a row")));
        }
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let count = count.min(self.bytes.len() - self.start);
        let taken = self.bytes[self.start..self.start + count].to_vec();
        self.start += count;
        taken
    }

    fn take_all(&mut self) -> Vec<u8> {
        self.take(usize::MAX)
    }

    fn discard(&mut self, count: usize) {
        self.start += count.min(self.bytes.len() - self.start);
    }
}

/// A reader that records the bytes it returned.
struct Tee<R> {
    reader: R,
    seen: Rc<RefCell<Seen>>,
}

impl<R: Read> Read for Tee<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(out)?;
        self.seen.borrow_mut().push(&out[..count])?;
        Ok(count)
    }
}
