//! Image layers as one neutral form, whatever their format on the wire.
//!
//! Pure: readers take bytes (or an [`std::io::Read`]) and return values. Everything that a hostile layer can claim
//! meets a limit of [`tarpon_oci::limits`] before it is believed.

mod index;

pub use index::{
    Attributes, Chunk, Codec, Device, Entry, FileContent, LayerIndex, LayerPath, Node, ObjectId, Place, Timestamp,
    Xattr,
};
