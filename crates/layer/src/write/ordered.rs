//! [`OrderedWriter`]: compresses pieces on several threads and writes them in the order of submission.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use tarpon_oci::{Blob, Digest, Hasher};

use super::encode::Encoder;

/// Most compression threads for one layer: beyond that, reading the tar on one thread is slower.
const MAX_THREADS: usize = 64;
/// A run of headers without any payload is cut into pieces of about this size, because memory is bounded.
pub(super) const HEADER_RUN_BYTES: usize = 1 << 20;
/// Bytes of a layer per thread that wait: two pieces of the usual largest size.
pub(super) const WAITING_BYTES: usize = 8 << 20;
/// Pieces per thread that wait. Most files are small, and a thread should not run dry while a large one is read.
const WAITING_PIECES: usize = 256;

/// Number of threads for the requested one.
pub(super) fn threads(asked: usize) -> usize {
    asked.clamp(1, MAX_THREADS)
}

/// Bytes that become one member or frame.
#[derive(Debug, Default)]
pub struct Piece {
    /// The bytes to compress.
    pub bytes: Vec<u8>,
    /// Number of its first bytes that get a digest, at most all. None if 0.
    pub payload: usize,
    /// The number of the chunk that begins or continues with this piece.
    pub chunk: Option<usize>,
}

/// The place of a piece with a chunk in the blob.
#[derive(Debug, Clone, Copy)]
pub struct Landed {
    /// The number of the chunk.
    pub chunk: usize,
    /// Offset of its first compressed byte in the blob.
    pub start: u64,
    /// Offset behind its last one.
    pub end: u64,
    /// Digest of its payload.
    pub digest: Option<Digest>,
}

struct Job {
    piece: Piece,
    reply: SyncSender<io::Result<Encoded>>,
}

struct Encoded {
    bytes: Vec<u8>,
    digest: Option<Digest>,
}

/// The threads that compress. Dropping it ends them after what was submitted.
struct Workers {
    /// `None` when it is dropped.
    jobs: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts a thread for each encoder.
    fn start(encoders: Vec<Encoder>) -> io::Result<Self> {
        let (jobs, queue) = sync_channel(encoders.len() * WAITING_PIECES);
        let queue = Arc::new(Mutex::new(queue));
        let mut workers = Self { jobs: Some(jobs), threads: Vec::with_capacity(encoders.len()) };
        for encoder in encoders {
            let queue = Arc::clone(&queue);
            let thread = thread::Builder::new().name("compress".to_owned());
            workers.threads.push(thread.spawn(move || work(&queue, encoder))?);
        }
        Ok(workers)
    }

    fn send(&self, job: Job) -> io::Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(gone)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // The panic was printed, and the writer got an error for the piece.
            let _panic = thread.join();
        }
    }
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

struct Waiting {
    chunk: Option<usize>,
    bytes: usize,
    reply: Receiver<io::Result<Encoded>>,
}

/// Writes a blob of compressed pieces to `W`, in the order of their submission. Its bytes do not depend on the number of threads.
/// After an error only drop it: what it writes from then on lacks a piece.
pub struct OrderedWriter<W> {
    workers: Workers,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    most_waiting_bytes: usize,
    landed: Vec<Landed>,
    blob: W,
    hasher: Hasher,
    position: u64,
    pieces: u64,
}

impl<W: Write> OrderedWriter<W> {
    /// An empty blob. Each encoder gets a thread, and `waiting_bytes` that may wait for compression or for their turn to be written. One
    /// larger piece is always accepted.
    ///
    /// # Errors
    /// When a thread cannot be started, and without encoders.
    pub fn new(blob: W, encoders: Vec<Encoder>, waiting_bytes: usize) -> io::Result<Self> {
        if encoders.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no encoder"));
        }
        let most_waiting_bytes = encoders.len() * waiting_bytes;
        Ok(Self {
            workers: Workers::start(encoders)?,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            most_waiting_bytes,
            landed: Vec::new(),
            blob,
            hasher: Hasher::new(),
            position: 0,
            pieces: 0,
        })
    }

    /// Submits the next piece. Waits while too much is under way.
    ///
    /// # Errors
    /// As `W`, and when compression failed.
    pub fn submit(&mut self, piece: Piece) -> io::Result<()> {
        let (reply, answer) = sync_channel(1);
        let (chunk, bytes) = (piece.chunk, piece.bytes.len());
        while !self.has_room(bytes) {
            self.write_first()?;
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Waiting { chunk, bytes, reply: answer });
        self.workers.send(Job { piece, reply })
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// As [`OrderedWriter::submit`].
    pub fn settle(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            self.write_first()?;
        }
        Ok(())
    }

    /// Appends bytes unchanged. No piece may be waiting.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(self.waiting.is_empty());
        self.write(bytes)
    }

    /// The chunks that were written since the last call.
    pub fn landed(&mut self) -> impl Iterator<Item = Landed> + '_ {
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

    /// Waits until everything is written, flushes, and returns the digest and size of the blob, and `W`.
    ///
    /// # Errors
    /// As [`OrderedWriter::submit`].
    pub fn finish(mut self) -> io::Result<(Blob, W)> {
        self.settle()?;
        self.blob.flush()?;
        Ok((Blob { digest: self.hasher.finish(), size: self.position }, self.blob))
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.waiting.is_empty()
            || self.waiting.len() < self.workers.threads.len() * WAITING_PIECES
                && self.waiting_bytes + bytes <= self.most_waiting_bytes
    }

    fn write_first(&mut self) -> io::Result<()> {
        let Some(Waiting { chunk, bytes, reply }) = self.waiting.pop_front() else { return Ok(()) };
        self.waiting_bytes -= bytes;
        let encoded = reply.recv().map_err(|_| gone())??;
        let start = self.position;
        self.write(&encoded.bytes)?;
        self.pieces += 1;
        if let Some(chunk) = chunk {
            self.landed.push(Landed { chunk, start, end: self.position, digest: encoded.digest });
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.blob.write_all(bytes)?;
        self.hasher.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }
}

/// The error for a thread that ended early, by a panic.
fn gone() -> io::Error {
    io::Error::other("a compressing thread panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(threads: usize, pieces: &[Vec<u8>]) -> (Vec<u8>, Vec<(usize, u64, u64)>, Blob) {
        let encoders = (0..threads).map(|_| Encoder::gzip(6)).collect();
        let mut writer = OrderedWriter::new(Vec::new(), encoders, WAITING_BYTES).unwrap();
        for (chunk, bytes) in pieces.iter().enumerate() {
            writer.submit(Piece { bytes: bytes.clone(), payload: bytes.len(), chunk: Some(chunk) }).unwrap();
        }
        writer.settle().unwrap();
        let landed: Vec<Landed> = writer.landed().collect();
        for landed in &landed {
            assert_eq!(landed.digest, Some(Digest::of(&pieces[landed.chunk])));
        }
        let landed = landed.iter().map(|landed| (landed.chunk, landed.start, landed.end)).collect();
        let (name, blob) = writer.finish().unwrap();
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
        let encoders = vec![Encoder::gzip(1), Encoder::gzip(1)];
        let mut writer = OrderedWriter::new(Full, encoders, WAITING_BYTES).unwrap();
        let submit = |_| writer.submit(Piece { bytes: vec![1; 100], ..Piece::default() });
        let error = (0..10_000).try_for_each(submit).unwrap_err();
        assert_eq!(error.to_string(), "full");
    }
}
