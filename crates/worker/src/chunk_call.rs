//! A chunk to be decoded: the form of the request and of its response, on a channel of bytes. Both sides block.
//!
//! ```text
//! request    codec u8, used bits u8, 0 u16, window u32, encoded u32, skip u64, size u64; window; encoded bytes
//! response   0 u8, size u32, decoded bytes; or 1 u8, length u32, the error
//! ```
//!
//! Numbers are little-endian.

use std::io::{self, Read, Write};
use std::time::Instant;

use tarpon_layer::Codec;
use tarpon_layer::chunks::CheckpointEntry;
use tarpon_layer::decode::{DecodeError, decode_chunk, decode_span};
use tarpon_oci::limits;

use crate::frames::invalid;
use crate::message::{MESSAGE_BYTES, one_line};

const REQUEST_BYTES: usize = 28;
const RESPONSE_BYTES: usize = 5;

/// Longest window of a checkpoint: 32 KiB, packed, which cannot be much longer.
const WINDOW_BYTES: usize = 64 << 10;

/// Most requests of small chunks fit: then one call of the kernel receives all of one.
const BUFFER_BYTES: usize = 64 << 10;

/// Codecs by their number in a request.
const CODECS: [Codec; 4] = [Codec::Gzip, Codec::Zstd, Codec::Deflate, Codec::CheckedSpan];

/// A chunk to be decoded.
pub(crate) struct Call<'a> {
    pub(crate) codec: Codec,
    /// For spans.
    pub(crate) used_bits: u8,
    pub(crate) window: &'a [u8],
    pub(crate) encoded: &'a [u8],
    pub(crate) skip: u64,
    pub(crate) size: u64,
}

impl Call<'_> {
    /// Sends the request.
    pub(crate) fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let codec = CODECS.iter().position(|codec| *codec == self.codec);
        let codec = codec.and_then(|codec| u8::try_from(codec).ok()).ok_or_else(|| invalid("a codec without calls"))?;
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| invalid("a chunk that is too long"));
        let mut head = [0; REQUEST_BYTES];
        (head[0], head[1]) = (codec, self.used_bits);
        head[4..8].copy_from_slice(&length(self.window)?.to_le_bytes());
        head[8..12].copy_from_slice(&length(self.encoded)?.to_le_bytes());
        head[12..20].copy_from_slice(&self.skip.to_le_bytes());
        head[20..28].copy_from_slice(&self.size.to_le_bytes());
        let mut parts = [&head[..], self.window, self.encoded].map(io::IoSlice::new);
        write_all(to, &mut parts)
    }

    /// Receives the response into `out`, before `until`. The outer error is the worker's end. The caller has checked the size.
    pub(crate) fn receive(
        &self,
        from: &mut impl Read,
        until: Instant,
        out: &mut Vec<u8>,
    ) -> io::Result<Result<(), DecodeError>> {
        out.resize(usize::try_from(self.size).map_err(|_| invalid("a chunk that is too long"))?, 0);
        let mut head = [0; RESPONSE_BYTES];
        // Usually one call, for head and bytes.
        let filled = fill(from, &mut head, out, RESPONSE_BYTES, until)? - RESPONSE_BYTES;
        let [status, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        match status {
            0 if length == out.len() => {
                fill(from, &mut out[filled..], &mut [], length - filled, until)?;
                Ok(Ok(()))
            }
            1 if (filled..=MESSAGE_BYTES).contains(&length) => {
                let mut message = vec![0; length];
                message[..filled].copy_from_slice(&out[..filled]);
                fill(from, &mut message[filled..], &mut [], length - filled, until)?;
                Ok(Err(DecodeError::Elsewhere { problem: one_line(&String::from_utf8_lossy(&message)) }))
            }
            _ => Err(invalid("not a response to a chunk")),
        }
    }
}

/// Reads at least `wanted` bytes into the first buffer, which has so many, and what is more into the second. Returns their number.
fn fill(from: &mut impl Read, first: &mut [u8], second: &mut [u8], wanted: usize, until: Instant) -> io::Result<usize> {
    let mut filled = 0;
    while filled < wanted {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match from.read_vectored(&mut [io::IoSliceMut::new(&mut first[filled..]), io::IoSliceMut::new(second)]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Answers the requests of a channel until it is closed.
pub(crate) fn serve(from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut from = io::BufReader::with_capacity(BUFFER_BYTES, from);
    let (mut input, mut out) = (Vec::new(), Vec::new());
    loop {
        let mut head = [0; REQUEST_BYTES];
        match from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let (window, encoded) = (number(4), number(8));
        let is_short = window <= WINDOW_BYTES && encoded as u64 <= limits::MEMBER_BYTES;
        let codec = CODECS.get(usize::from(head[0])).copied().filter(|_| is_short);
        let codec = codec.ok_or_else(|| invalid("not a request for a chunk"))?;
        input.clear();
        // Grows with what arrives.
        if from.by_ref().take((window + encoded) as u64).read_to_end(&mut input)? < window + encoded {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let long = |at: usize| (number(at) as u64) | (number(at + 4) as u64) << 32;
        let (window, encoded) = input.split_at(window);
        let call = Call { codec, used_bits: head[1], window, encoded, skip: long(12), size: long(20) };
        respond(to, call.decode(&mut out), &out)?;
        // A large chunk is rare, and its buffers would stay with each idle channel.
        if input.len().max(out.len()) > KEPT_BYTES {
            (input, out) = (Vec::new(), Vec::new());
        }
    }
}

/// Buffers of this size are kept: most chunks fit.
const KEPT_BYTES: usize = 1 << 20;

impl Call<'_> {
    fn decode(&self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let Self { codec, used_bits, window, encoded, skip, size } = *self;
        match codec {
            Codec::Deflate | Codec::CheckedSpan => {
                decode_span(&CheckpointEntry { used_bits, window }, encoded, skip, size, out)
            }
            codec => decode_chunk(codec, encoded, skip, size, out),
        }
    }
}

fn respond(to: &mut impl Write, outcome: Result<(), DecodeError>, out: &[u8]) -> io::Result<()> {
    let message = outcome.err().map(|error| error.to_string());
    let (status, bytes) = match &message {
        None => (0, out),
        Some(message) => (1, message.as_bytes()),
    };
    let length = u32::try_from(bytes.len()).map_err(|_| invalid("a chunk that is too long"))?.to_le_bytes();
    let head = [status, length[0], length[1], length[2], length[3]];
    write_all(to, &mut [&head[..], bytes].map(io::IoSlice::new))
}

/// Writes all of the parts, in as few calls as possible.
fn write_all(to: &mut impl Write, mut parts: &mut [io::IoSlice<'_>]) -> io::Result<()> {
    io::IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match to.write_vectored(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => io::IoSlice::advance_slices(&mut parts, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
