//! [`SpanReader`]: a whole layer, decoded while it is read, with its spans at the end.

use std::io::{self, BufRead, Read};

use super::gzip::Gzip;
use super::recorder::{Recorder, Start};
use super::zstd::Zstd;
use super::{Checkpoint, SPAN_BYTES, SpanStarts};
use crate::decode::{Compression, sniff};
use crate::{Allowance, Share};

/// Decoded bytes allowed for any layer: a core hashes them in half a minute.
const DECODED_BASE: u64 = 8 << 30;
/// Decoded bytes allowed for each encoded one: gzip makes at most 1,032 of one. Zstd makes 30,000.
const DECODED_PER_BYTE: u64 = 1100;

/// The tar in a layer's blob, like [`LayerReader`](crate::decode::LayerReader), which also records where decoding can restart. That
/// costs a tenth of the time. Use [`LayerReader`](crate::decode::LayerReader) where it is not needed.
pub struct SpanReader<R> {
    decoder: Decoder<R>,
    recorder: Recorder,
    decoded: u64,
    memory: Share,
}

enum Decoder<R> {
    None(R),
    Gzip(Gzip<R>),
    Zstd(Zstd<R>),
}

/// The spans of a layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spans {
    pub(super) starts: Vec<Start>,
    /// Bytes of the blob.
    pub(super) end: u64,
}

impl<R: BufRead> SpanReader<R> {
    /// Detects the compression from the blob's first bytes. Give `reader` a large buffer.
    ///
    /// # Errors
    /// As `reader`, for a reader whose buffer is too small for the detection, and when no decoder can be set up.
    pub fn sniffed(reader: R) -> io::Result<Self> {
        Self::with_spans_of(SPAN_BYTES, reader)
    }

    /// As [`SpanReader::sniffed`], for a layer of an image within `allowance`.
    ///
    /// # Errors
    /// As [`SpanReader::sniffed`].
    pub fn within(reader: R, allowance: &Allowance) -> io::Result<Self> {
        Ok(Self { memory: allowance.share(), ..Self::sniffed(reader)? })
    }

    /// The same, with spans of at least `bytes`, decoded, instead of [`SPAN_BYTES`].
    ///
    /// # Errors
    /// As [`SpanReader::sniffed`].
    pub fn with_spans_of(bytes: u64, mut reader: R) -> io::Result<Self> {
        let decoder = match sniff(&mut reader)? {
            Compression::None => Decoder::None(reader),
            Compression::Gzip => Decoder::Gzip(Gzip::new(reader)),
            Compression::Zstd => Decoder::Zstd(Zstd::new(reader)?),
        };
        Ok(Self { decoder, recorder: Recorder::new(bytes), decoded: 0, memory: Allowance::unbounded().share() })
    }

    /// The compression of the blob.
    pub fn compression(&self) -> Compression {
        match self.decoder {
            Decoder::None(_) => Compression::None,
            Decoder::Gzip(_) => Compression::Gzip,
            Decoder::Zstd(_) => Compression::Zstd,
        }
    }

    /// The beginnings of spans, as far as the layer was read.
    pub fn starts(&self) -> SpanStarts {
        self.recorder.starts.clone()
    }

    /// The spans of the layer, once it was read to its end.
    pub fn finish(mut self) -> Spans {
        self.recorder.settle();
        let end = match &self.decoder {
            Decoder::None(_) => 0,
            Decoder::Gzip(gzip) => gzip.position(),
            Decoder::Zstd(zstd) => zstd.position(),
        };
        self.memory.keep();
        Spans { starts: self.recorder.spans, end }
    }
}

impl<R: BufRead> Read for SpanReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let (count, taken, window) = match &mut self.decoder {
            Decoder::None(reader) => return reader.read(out),
            Decoder::Gzip(gzip) => (gzip.read(out, &mut self.recorder)?, gzip.position(), 0),
            Decoder::Zstd(zstd) => (zstd.read(out, &mut self.recorder)?, zstd.position(), zstd.held()),
        };
        self.decoded += count as u64;
        self.memory.grow_to(self.recorder.held() + window).map_err(io::Error::other)?;
        if self.decoded > DECODED_BASE.saturating_add(taken.saturating_mul(DECODED_PER_BYTE)) {
            let problem = format!(
                "the layer decodes to more than {} GiB and {DECODED_PER_BYTE} bytes for each of its own",
                DECODED_BASE >> 30
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(count)
    }
}

impl Spans {
    /// Number of spans.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no spans: the layer is not compressed, or empty.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    pub(super) fn checkpoints(&self) -> Vec<Checkpoint> {
        self.starts.iter().filter_map(Start::checkpoint).collect()
    }
}
