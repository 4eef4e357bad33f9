//! From encoded bytes of a layer to decoded ones: whole layers as a stream, single chunks in one call.
//!
//! Nothing is believed about sizes: a decoder stops after the bytes that were asked for, and memory follows what was asked
//! for, never what the data claims.

mod chunk;
mod span;
mod stream;

pub use chunk::{ChunkDecoder, DecodeError, decode_chunk};
pub use span::decode_span;
pub use stream::LayerReader;
pub(crate) use stream::sniff;
pub use tarpon_oci::Compression;

/// Bytes of a blob that [`Compression::detect`] looks at.
pub const SNIFF_BYTES: usize = 4;
