//! A [`LayerIndex`](crate::LayerIndex) as bytes: small, and as untrusted as a table of contents.
//!
//! Indexes are transferred and stored, and most of one are digests, which do not compress. So everything else is laid out in
//! columns that zstd compresses well (paths as the difference to the path before, places as the difference to the place before),
//! and a digest that can be derived from another one is omitted. The decoded index goes through the same checks as the entries of a TOC.
//!
//! The bytes are not compressed, carry no digest of their own and name no layer: the caller is responsible for that.

mod chunks;
mod column;
mod columns;
mod error;
mod read;
mod write;

pub use error::InvalidPacked;
pub use read::{unpack, unpack_within};
pub use write::{Packed, pack};
