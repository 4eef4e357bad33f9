//! [`Decoder`]: where encoded bytes are decoded.

use std::fmt::Debug;
use std::io::{self, BufRead, Read};

use super::{Compression, DecodeError, LayerReader, decode_chunk, decode_span};
use crate::chunks::CheckpointEntry;
use crate::index::Codec;

/// Decodes bytes that nothing has verified, in this process or in a confined one. Calls block. The result is not trusted: its digest is
/// compared.
pub trait Decoder: Debug + Send + Sync {
    /// As [`decode_chunk`].
    ///
    /// # Errors
    /// [`DecodeError`].
    fn chunk(&self, codec: Codec, encoded: &[u8], skip: u64, size: u64, out: &mut Vec<u8>) -> Result<(), DecodeError>;

    /// As [`decode_span`], for bytes that nothing has verified. (Where the digest is that of the encoded bytes, the result is not compared
    /// with anything: call [`decode_span`], in this process.)
    ///
    /// # Errors
    /// [`DecodeError`].
    fn span(
        &self,
        checkpoint: &CheckpointEntry<'_>,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError>;

    /// The decoded bytes of a whole layer, as [`LayerReader`] reads them. An error of `input` is returned unchanged, and one of
    /// kind [`io::ErrorKind::ConnectionAborted`] means that the process that decodes has ended: another attempt may work.
    ///
    /// # Errors
    /// When no decoder can be set up.
    fn layer(&self, compression: Compression, input: LayerInput) -> io::Result<DecodedLayer>;
}

/// The encoded bytes of a layer.
pub type LayerInput = Box<dyn BufRead + Send>;

/// The decoded bytes of a layer.
pub type DecodedLayer = Box<dyn Read + Send>;

/// Decodes in this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

impl Decoder for InProcess {
    fn chunk(&self, codec: Codec, encoded: &[u8], skip: u64, size: u64, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        decode_chunk(codec, encoded, skip, size, out)
    }

    fn span(
        &self,
        checkpoint: &CheckpointEntry<'_>,
        encoded: &[u8],
        skip: u64,
        size: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        decode_span(checkpoint, encoded, skip, size, out)
    }

    fn layer(&self, compression: Compression, input: LayerInput) -> io::Result<DecodedLayer> {
        Ok(Box::new(LayerReader::new(input, compression)?))
    }
}
