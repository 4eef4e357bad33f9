//! Image layers as one neutral form, whatever their format on the wire.
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
    LayerIndex, LayerName, LayerPath, Node, ObjectId, Timestamp, Xattr,
};
