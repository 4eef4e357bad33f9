//! A whole layer, decompressed as it is read.

use std::io::{self, BufRead, Read};

use flate2::bufread::MultiGzDecoder;
use tarpon_oci::limits;

use super::{Compression, SNIFF_BYTES};

/// The tar in a layer's blob. Multi-member gzip, multi-frame zstd and skippable frames are read to the end of the blob. Checksums
/// of the compressed formats are checked, and trailing bytes that are neither are an error.
pub struct LayerReader<R: BufRead> {
    compression: Compression,
    decoder: Decoder<R>,
}

enum Decoder<R: BufRead> {
    None(R),
    Gzip(Box<MultiGzDecoder<R>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, R>>),
}

impl<R: BufRead> LayerReader<R> {
    /// Detects the compression from the blob's first bytes. Give `reader` a large buffer.
    ///
    /// # Errors
    /// As `reader`, and for a reader whose buffer is too small for the detection.
    pub fn sniffed(mut reader: R) -> io::Result<Self> {
        let compression = sniff(&mut reader)?;
        Self::new(reader, compression)
    }

    /// Decodes with the given compression.
    ///
    /// # Errors
    /// When no decoder can be set up.
    pub fn new(reader: R, compression: Compression) -> io::Result<Self> {
        Self::with_window_log(reader, compression, limits::ZSTD_LAYER_WINDOW_LOG)
    }

    /// As [`LayerReader::new`], with another limit for the window of zstd.
    pub(crate) fn with_window_log(reader: R, compression: Compression, window_log: u32) -> io::Result<Self> {
        let decoder = match compression {
            Compression::None => Decoder::None(reader),
            Compression::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(reader))),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(reader)?;
                decoder.window_log_max(window_log)?;
                Decoder::Zstd(Box::new(decoder))
            }
        };
        Ok(Self { compression, decoder })
    }

    /// The compression of the blob.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// The blob's reader, at its current position.
    pub fn into_inner(self) -> R {
        match self.decoder {
            Decoder::None(reader) => reader,
            Decoder::Gzip(decoder) => decoder.into_inner(),
            Decoder::Zstd(decoder) => decoder.finish(),
        }
    }
}

/// Detects the compression of the blob that begins here.
pub(crate) fn sniff(reader: &mut impl BufRead) -> io::Result<Compression> {
    let start = reader.fill_buf()?;
    if !start.is_empty() && start.len() < SNIFF_BYTES {
        let problem = format!("the blob begins with a piece of only {} bytes", start.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(Compression::detect(start))
}

impl<R: BufRead> Read for LayerReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::None(reader) => reader.read(out),
            Decoder::Gzip(decoder) => decoder.read(out),
            Decoder::Zstd(decoder) => decoder.read(out),
        }
    }
}
