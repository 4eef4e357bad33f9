//! The vocabulary of OCI images: digests, descriptors, references, manifests and platforms, and the limits that
//! everything from outside must meet.
//!
//! Pure: no I/O, no clock. Everything here is parsed from bytes whose digest was checked before ([`Verified`]).

mod blob;
mod digest;
pub mod limits;
mod verified;

pub use blob::Blob;
pub use digest::{Digest, Hasher, InvalidDigest};
pub use verified::{DigestMismatch, Verified};
