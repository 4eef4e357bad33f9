//! Decodes bytes of a layer: whole layers as a stream, single chunks in one call.
//!
//! No claimed size is trusted: a decoder stops after the requested bytes, and its memory depends on the request, never on claims of
//! the data.

mod checked_span;
mod chunk;
mod decoder;
mod prefix;
mod stream;

pub use checked_span::decode_checked_span;
pub use chunk::{ChunkDecoder, DecodeError, decode_chunk, decode_span};
pub use decoder::{DecodedLayer, Decoder, InProcess, LayerInput};
pub use stream::LayerReader;
pub(crate) use stream::sniff;
pub use tarpon_oci::Compression;

/// Bytes of a blob that [`Compression::detect`] reads.
pub const SNIFF_BYTES: usize = 4;
