//! The connections of the import pipeline: bounded channels that look like [`Read`] to the stage after them.
//!
//! `download + sha256 of the blob` → `decode + sha256 of the tar` → `walk + sha256 of each file + store`: three concurrent stages, so that
//! network, inflating and hashing overlap.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::{Buf, Bytes};
use tarpon_blob::SourceError;
use tarpon_layer::decode::SNIFF_BYTES;
use tarpon_oci::Hasher;

/// Pieces of a blob buffered between download and decoder: at 16 KiB to 256 KiB a piece at most 8 MiB a layer. Of a local blob, which is read
/// faster than it is walked, so many always wait.
pub const PIECES: usize = 32;

/// Size of a buffer of decoded tar. Large enough that passing it between threads is cheap compared to filling it.
const BUFFER_BYTES: usize = 256 << 10;

/// Decoded buffers waiting for the walker.
const BUFFERS: usize = 8;

/// The reading end of a download.
pub struct BlobReader {
    pieces: tokio::sync::mpsc::Receiver<Result<Bytes, SourceError>>,
    current: Bytes,
    begun: bool,
}

impl BlobReader {
    /// Reads the pieces of this channel.
    pub fn new(pieces: tokio::sync::mpsc::Receiver<Result<Bytes, SourceError>>) -> Self {
        Self { pieces, current: Bytes::new(), begun: false }
    }

    /// Waits for data, or for the end of the download.
    fn next(&mut self) -> io::Result<()> {
        // The first piece must be long enough to detect the compression, however the network split it.
        let enough = if self.begun { 1 } else { SNIFF_BYTES };
        while self.current.len() < enough {
            let Some(piece) = self.pieces.blocking_recv() else { break };
            let piece = piece.map_err(io::Error::other)?;
            self.current = if self.current.is_empty() {
                piece
            } else {
                [std::mem::take(&mut self.current), piece].concat().into()
            };
        }
        self.begun = true;
        Ok(())
    }
}

impl Read for BlobReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.fill_buf()?.read(buffer)?;
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for BlobReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.current.is_empty() {
            self.next()?;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, amount: usize) {
        self.current.advance(amount);
    }
}

/// Reads `source` to its end into the channel and hashes the data. Returns early, without error, when the reading end is gone: then the
/// reader reports its own error.
pub fn pump(source: &mut impl Read, sink: &DecodedSink) -> io::Result<Hasher> {
    let mut hasher = Hasher::new();
    loop {
        let mut buffer = sink.recycled.try_recv().unwrap_or_default();
        buffer.resize(BUFFER_BYTES, 0);
        let length = fill(source, &mut buffer)?;
        buffer.truncate(length);
        hasher.update(&buffer);
        if length == 0 || sink.full.send(buffer).is_err() {
            return Ok(hasher);
        }
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match source.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// The writing end between decoder and walker.
pub struct DecodedSink {
    full: SyncSender<Vec<u8>>,
    recycled: Receiver<Vec<u8>>,
}

/// The reading end between decoder and walker. Buffers are recycled.
pub struct DecodedReader {
    full: Receiver<Vec<u8>>,
    recycled: SyncSender<Vec<u8>>,
    current: Vec<u8>,
    position: usize,
}

/// A channel of decoded buffers.
pub fn decoded() -> (DecodedSink, DecodedReader) {
    let (full, filled) = sync_channel(BUFFERS);
    let (give_back, recycled) = sync_channel(BUFFERS + 2);
    let reader = DecodedReader { full: filled, recycled: give_back, current: Vec::new(), position: 0 };
    (DecodedSink { full, recycled }, reader)
}

impl Read for DecodedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position == self.current.len() {
            let Ok(next) = self.full.recv() else { return Ok(0) };
            let empty = std::mem::replace(&mut self.current, next);
            // A full return channel only means that this buffer is not used again.
            let _ = self.recycled.try_send(empty);
            self.position = 0;
        }
        let rest = &self.current[self.position..];
        let length = buffer.len().min(rest.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.position += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use tarpon_blob::Fault;
    use tarpon_oci::Digest;

    use super::*;

    #[test]
    fn decoded_bytes_arrive_in_order_and_are_hashed() {
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let (sink, mut reader) = decoded();
        let mut source = io::Cursor::new(data.clone());
        let pumping = std::thread::spawn(move || pump(&mut source, &sink).unwrap().finish());
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, data);
        assert_eq!(pumping.join().unwrap(), Digest::of(&data));
    }

    #[test]
    fn a_reader_that_gives_up_stops_the_pump() {
        let (sink, reader) = decoded();
        drop(reader);
        assert!(pump(&mut io::repeat(1), &sink).is_ok());
    }

    #[test]
    fn a_first_piece_of_one_byte_is_no_obstacle() {
        let (sender, receiver) = tokio::sync::mpsc::channel(3);
        for piece in [&b"a"[..], b"b", b"cdef"] {
            sender.try_send(Ok(Bytes::from_static(piece))).unwrap();
        }
        drop(sender);
        let mut reader = BlobReader::new(receiver);
        assert_eq!(reader.fill_buf().unwrap(), b"abcdef");
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 6);
    }

    #[test]
    fn a_failed_download_is_an_error_of_the_reader_not_an_early_end() {
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        sender.try_send(Ok(Bytes::from_static(b"half"))).unwrap();
        sender.try_send(Err(SourceError::new(Fault::Timeout, "no answer"))).unwrap();
        let error = BlobReader::new(receiver).read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("no answer"));
    }
}
