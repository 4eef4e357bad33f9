//! A [`LayerIndex`] as bytes: small, and believed no more than a table of contents is.
//!
//! Indexes travel and are kept, and most of one are digests, which nothing makes smaller. So everything else is laid out in
//! columns that zstd packs well (paths as what differs from the path before, places as what differs from the place before),
//! and a digest that can be told from another one is left out. What is read back goes through the same checks as the entries
//! of a TOC.
//!
//! The bytes are not compressed, carry no digest of their own and name no layer: all that is the caller's.

mod chunks;
mod columns;
mod read;
mod write;

pub use read::{InvalidPacked, unpack, unpack_within};
pub use write::pack;
