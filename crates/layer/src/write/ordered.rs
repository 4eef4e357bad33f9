//! [`Ordered`]: compresses pieces on several threads and writes them in the order of submission.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tarpon_oci::{Blob, Digest, Hasher};

use super::encode::Encoder;
use super::error::WriteError;

/// Most compression threads for one layer: beyond that, reading the tar on one thread is slower.
const MAX_THREADS: usize = 64;
/// A run of headers without any payload is cut into pieces of about this size, because memory is bounded.
pub(super) const HEADER_RUN_BYTES: usize = 1 << 20;

/// Number of threads for the requested one.
pub(super) fn threads(asked: usize) -> usize {
    asked.clamp(1, MAX_THREADS)
}

/// Bytes per thread that wait for compression or for their turn to be written: two pieces of the usual largest size. One larger
/// piece is always accepted.
const WAITING_BYTES: usize = 8 << 20;
/// Pieces per thread that wait. Most files are small, and a thread should not run dry while a large one is read.
const WAITING_PIECES: usize = 256;

/// Bytes that become one member or frame.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// Number of its first bytes that get a digest. None if 0.
    pub(super) payload: usize,
    /// The chunk that begins or continues with this piece.
    pub(super) chunk: Option<usize>,
}

/// The place of a piece with a chunk in the blob.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landed {
    pub(super) chunk: usize,
    pub(super) start: u64,
    pub(super) end: u64,
    /// Digest of its payload.
    pub(super) digest: Option<Digest>,
}

struct Job {
    piece: Piece,
    reply: SyncSender<io::Result<Encoded>>,
}

struct Encoded {
    bytes: Vec<u8>,
    digest: Option<Digest>,
}

struct Waiting {
    chunk: Option<usize>,
    bytes: usize,
    reply: Receiver<io::Result<Encoded>>,
}

/// The blob under construction.
pub(super) struct Ordered<W> {
    jobs: SyncSender<Job>,
    threads: usize,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    landed: Vec<Landed>,
    blob: W,
    hasher: Hasher,
    position: u64,
    pieces: u64,
}

/// Runs `body` with a blob to write to, and with one thread for each encoder.
pub(super) fn scope<W: Write, T>(
    blob: W,
    encoders: Vec<Encoder>,
    body: impl FnOnce(Ordered<W>) -> Result<T, WriteError>,
) -> Result<T, WriteError> {
    let threads = encoders.len();
    let (jobs, queue) = sync_channel(threads * WAITING_PIECES);
    let queue = &Mutex::new(queue);
    thread::scope(|scope| {
        for encoder in encoders {
            scope.spawn(move || work(queue, encoder));
        }
        // The threads end when `body` has dropped the other end of their queue.
        body(Ordered {
            jobs,
            threads,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            landed: Vec::new(),
            blob,
            hasher: Hasher::new(),
            position: 0,
            pieces: 0,
        })
    })
}

fn work(queue: &Mutex<Receiver<Job>>, mut encoder: Encoder) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { piece, reply }) = job else { return };
        let encoded = encoder.encode(&piece.bytes).map(|bytes| {
            let digest = (piece.payload > 0).then(|| Digest::of(&piece.bytes[..piece.payload]));
            Encoded { bytes, digest }
        });
        // The receiver is gone if the blob failed.
        let _ = reply.send(encoded);
    }
}

impl<W: Write> Ordered<W> {
    /// Submits the next piece. Waits while too much is under way.
    pub(super) fn submit(&mut self, piece: Piece) -> Result<(), WriteError> {
        let (reply, answer) = sync_channel(1);
        let (chunk, bytes) = (piece.chunk, piece.bytes.len());
        while !self.has_room(bytes) {
            self.write_first()?;
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting { chunk, bytes, reply: answer });
        self.jobs.send(Job { piece, reply }).map_err(|_| gone())
    }

    /// Waits until everything is written.
    pub(super) fn settle(&mut self) -> Result<(), WriteError> {
        while !self.waiting.is_empty() {
            self.write_first()?;
        }
        Ok(())
    }

    /// Appends bytes unchanged. No piece may be waiting.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        debug_assert!(self.waiting.is_empty());
        self.write(bytes)
    }

    /// The chunks that were written since the last call.
    pub(super) fn landed(&mut self) -> impl Iterator<Item = Landed> + '_ {
        self.landed.drain(..)
    }

    /// Bytes of the blob so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Members or frames so far.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces
    }

    /// Flushes, and returns the digest and size of the blob.
    pub(super) fn finish(mut self) -> Result<Blob, WriteError> {
        self.blob.flush().map_err(WriteError::Blob)?;
        Ok(Blob { digest: self.hasher.finish(), size: self.position })
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.waiting.is_empty()
            || self.waiting.len() < self.threads * WAITING_PIECES
                && self.waiting_bytes + bytes <= self.threads * WAITING_BYTES
    }

    fn write_first(&mut self) -> Result<(), WriteError> {
        let Some(Waiting { chunk, bytes, reply }) = self.waiting.pop_front() else { return Ok(()) };
        self.waiting_bytes -= bytes;
        let encoded = reply.recv().map_err(|_| gone())?.map_err(WriteError::Blob)?;
        let start = self.position;
        self.write(&encoded.bytes)?;
        self.pieces += 1;
        if let Some(chunk) = chunk {
            self.landed.push(Landed { chunk, start, end: self.position, digest: encoded.digest });
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.blob.write_all(bytes).map_err(WriteError::Blob)?;
        self.hasher.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }
}

/// The error for a thread that ended early. Its panic surfaces when the scope ends.
fn gone() -> WriteError {
    WriteError::Blob(io::Error::other("a compressing thread ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(threads: usize, pieces: &[Vec<u8>]) -> (Vec<u8>, Vec<(usize, u64, u64)>, Blob) {
        let mut blob = Vec::new();
        let encoders = (0..threads).map(|_| Encoder::gzip(6)).collect();
        let (landed, name) = scope(&mut blob, encoders, |mut ordered| {
            for (chunk, bytes) in pieces.iter().enumerate() {
                ordered.submit(Piece { bytes: bytes.clone(), payload: bytes.len(), chunk: Some(chunk) })?;
            }
            ordered.settle()?;
            let landed: Vec<Landed> = ordered.landed().collect();
            for landed in &landed {
                assert_eq!(landed.digest, Some(Digest::of(&pieces[landed.chunk])));
            }
            let landed = landed.iter().map(|landed| (landed.chunk, landed.start, landed.end)).collect();
            Ok((landed, ordered.finish()?))
        })
        .unwrap();
        (blob, landed, name)
    }

    #[test]
    fn pieces_are_written_in_their_order_by_any_number_of_threads() {
        let large = |number: u8| vec![number; if number.is_multiple_of(3) { 5 << 20 } else { 1000 }];
        let pieces: Vec<Vec<u8>> = (1..40).map(large).collect();
        let (blob, landed, name) = write(1, &pieces);
        assert_eq!(name, Blob { digest: Digest::of(&blob), size: blob.len() as u64 });
        assert!(landed.iter().enumerate().all(|(number, landed)| landed.0 == number));
        assert!(landed.windows(2).all(|pair| pair[0].2 == pair[1].1));
        for threads in [2, 5] {
            assert!(write(threads, &pieces) == (blob.clone(), landed.clone(), name));
        }
    }

    #[test]
    fn a_blob_that_takes_no_more_ends_everything() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("full"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let result = scope(Full, vec![Encoder::gzip(1), Encoder::gzip(1)], |mut ordered| {
            for _ in 0..10_000 {
                ordered.submit(Piece { bytes: vec![1; 100], ..Piece::default() })?;
            }
            Ok(())
        });
        assert!(matches!(result, Err(WriteError::Blob(_))));
    }
}
