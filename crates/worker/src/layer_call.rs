//! A whole layer to be decoded, on a channel of its own.
//!
//! ```text
//! user      compression u8; parts: length u32, encoded bytes; length 0 at the end of the layer
//! worker    parts: length u32, decoded bytes; length 0 at the end of the layer, or 2^32 - 1, length u32 and the error
//! ```

use std::io::{self, BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tarpon_layer::decode::{DecodedLayer, LayerInput, LayerReader};
use tarpon_oci::Compression;

use crate::frames::invalid;
use crate::message::{Control, MESSAGE_BYTES, one_line};
use crate::process::Process;

/// Bytes of a part.
const PART_BYTES: usize = 128 << 10;
/// A worker that decodes nothing for this long has failed. A source that is silent for 28 s has failed before.
const SILENCE: Duration = Duration::from_secs(60);
/// In place of a length: an error follows.
const FAILED: u32 = u32::MAX;

/// Compressions by their number.
const COMPRESSIONS: [Compression; 2] = [Compression::Gzip, Compression::Zstd];

/// Starts to decode `input` in the worker.
pub(crate) fn begin(process: &Process, compression: Compression, mut input: LayerInput) -> io::Result<DecodedLayer> {
    let number = COMPRESSIONS.iter().position(|known| *known == compression);
    let number = number.and_then(|number| u8::try_from(number).ok()).ok_or_else(|| invalid("nothing to decode"))?;
    let mut to = UnixStream::from(process.open(Control::Layer).map_err(|_| ended())?);
    let from = to.try_clone()?;
    from.set_read_timeout(Some(SILENCE))?;
    to.write_all(&[number]).map_err(|_| ended())?;
    let problem = Arc::new(Mutex::new(None));
    let reported = problem.clone();
    // It ends with the input, which the source bounds, or when the reader below is dropped.
    thread::Builder::new().name("tarpon-layer".into()).spawn(move || {
        pump(&mut *input, &mut to, &reported);
        // The worker decodes what it has, and fails at an end that is too early. A channel that is closed already needs no end.
        let _closed = to.shutdown(std::net::Shutdown::Write);
    })?;
    Ok(Box::new(Decoded::new(Channel(from), problem)))
}

/// Sends the layer. An error of `input` is reported; one of the channel is noticed by its reader.
fn pump(input: &mut dyn BufRead, to: &mut UnixStream, reported: &Mutex<Option<io::Error>>) {
    loop {
        let part = match input.fill_buf() {
            Ok(part) => &part[..part.len().min(PART_BYTES)],
            Err(error) => {
                *reported.lock() = Some(error);
                return;
            }
        };
        let sent = part.len();
        if send_part(to, part).is_err() || sent == 0 {
            return;
        }
        input.consume(sent);
    }
}

fn send_part(to: &mut impl Write, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).map_err(|_| invalid("a part that is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(part)
}

/// The decoded bytes.
pub(crate) struct Decoded<R> {
    from: R,
    /// Bytes of the current part that are to come.
    left: usize,
    has_ended: bool,
    /// The error of the input.
    problem: Arc<Mutex<Option<io::Error>>>,
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.has_ended || out.is_empty() {
            return Ok(0);
        }
        self.next(out).map_err(|error| self.problem.lock().take().unwrap_or(error))
    }
}

impl<R: Read> Decoded<R> {
    /// The bytes that a worker sends. An error of the input, once it is there, is the cause of every other.
    pub(crate) fn new(from: R, problem: Arc<Mutex<Option<io::Error>>>) -> Self {
        Self { from, left: 0, has_ended: false, problem }
    }

    fn next(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            match self.length()? {
                0 => {
                    self.has_ended = true;
                    return Ok(0);
                }
                FAILED => {
                    let length = self.length()? as usize;
                    let mut message = vec![0; length.min(MESSAGE_BYTES)];
                    self.from.read_exact(&mut message).map_err(|_| ended())?;
                    return Err(invalid(&one_line(&String::from_utf8_lossy(&message))));
                }
                length => self.left = length as usize,
            }
        }
        let wanted = out.len().min(self.left);
        let read = self.from.read(&mut out[..wanted]).unwrap_or_default();
        if read == 0 {
            return Err(ended());
        }
        self.left -= read;
        Ok(read)
    }

    fn length(&mut self) -> io::Result<u32> {
        let mut length = [0; 4];
        self.from.read_exact(&mut length).map_err(|_| ended())?;
        Ok(u32::from_le_bytes(length))
    }
}

/// [`tarpon_layer::decode::Decoder::layer`] promises this kind.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the worker process that decodes the layer has ended")
}

/// The user's end of the channel.
struct Channel(UnixStream);

impl Read for Channel {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // The thread that sends ends. It has a duplicate, so closing is not enough.
        let _closed = self.0.shutdown(std::net::Shutdown::Both);
    }
}

/// Decodes the layer of a channel.
pub(crate) fn serve(from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut from = io::BufReader::with_capacity(PART_BYTES, from);
    let mut number = [0];
    from.read_exact(&mut number)?;
    let compression =
        COMPRESSIONS.get(usize::from(number[0])).copied().ok_or_else(|| invalid("no such compression"))?;
    let parts = io::BufReader::with_capacity(PART_BYTES, Parts { from, left: 0, has_ended: false });
    match decode(parts, compression, to) {
        Ok(()) => to.write_all(&0_u32.to_le_bytes()),
        Err(error) => {
            let message = error.to_string();
            to.write_all(&FAILED.to_le_bytes())?;
            send_part(to, &message.as_bytes()[..message.len().min(MESSAGE_BYTES)])
        }
    }
}

fn decode(parts: impl BufRead, compression: Compression, to: &mut impl Write) -> io::Result<()> {
    let mut layer = LayerReader::new(parts, compression)?;
    let mut part = vec![0; PART_BYTES];
    loop {
        match layer.read(&mut part)? {
            0 => return Ok(()),
            length => send_part(to, &part[..length])?,
        }
    }
}

/// The encoded bytes that a user sends.
struct Parts<R> {
    from: R,
    left: usize,
    has_ended: bool,
}

impl<R: Read> Read for Parts<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.has_ended {
            let mut length = [0; 4];
            self.from.read_exact(&mut length)?;
            self.left = u32::from_le_bytes(length) as usize;
            self.has_ended = self.left == 0;
        }
        let wanted = out.len().min(self.left);
        let read = self.from.read(&mut out[..wanted])?;
        if read == 0 && self.left > 0 && !out.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        Ok(read)
    }
}
