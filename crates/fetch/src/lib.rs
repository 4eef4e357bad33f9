//! From "these bytes of that object" to verified bytes: local store, read plan, singleflight, request, check, decode.
//!
//! This crate owns the two traits at its edges: [`BlobSource`] (where blobs come from) and [`ObjectStore`] (where
//! objects stay). What leaves it is [`tarpon_oci::Verified`].

mod object_store;
mod source;

pub use object_store::{ObjectStore, ObjectWriter, PartialObject, StoreError};
pub use source::{BlobSource, BlobStream, Fault, SourceError};
