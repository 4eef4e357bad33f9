//! Image layers of every format as one form, [`LayerIndex`]: entries, and for each file its chunks with their places and digests.
//!
//! ```text
//! toc      tables of contents of eStargz and zstd:chunked layers      soci    SOCI's ztocs
//! plain    layers without one: streamed, with spans as places from which decoding can start again
//! decode   a chunk from the bytes of its layer                        chunks  the chunk table of an image
//! packed   layer indexes as they are stored and published             write   new layers: eStargz, zstd:chunked
//! ```
//!
//! Pure: readers take bytes (or an [`std::io::Read`]) and return values. Every claim of a hostile layer is checked against a limit
//! of [`tarpon_oci::limits`] before it is used.

mod allowance;
pub mod chunks;
pub mod decode;
mod index;
pub mod packed;
pub mod plain;
pub mod soci;
pub mod spans;
pub mod tar;
pub mod time;
pub mod toc;
pub mod write;

pub use allowance::{Allowance, Excess, MEMORY_BASE, MEMORY_PER_BYTE, Share, WRITING, ZEROS_BASE, ZEROS_PER_BYTE};
pub use index::{
    Attributes, Chunk, ChunkPlace, Codec, Device, Entry, FileContent, InvalidEntry, InvalidPath, InvalidXattr,
    LayerIndex, LayerName, LayerPath, Node, ObjectId, Shared, Timestamp, Xattr,
};
