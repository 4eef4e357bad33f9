//! The data types of OCI images: digests, descriptors, references, manifests and platforms, and the limits for all external input.
//!
//! Pure: no I/O, no clock. Everything here is parsed from bytes whose digest was checked before ([`Verified`]).

mod artifact;
mod blob;
mod config;
mod descriptor;
mod digest;
mod index_lock;
mod index_repo;
mod invalid_manifest;
mod json;
pub mod limits;
mod manifest;
pub mod media_type;
mod platform;
mod reference;
mod source;
mod verified;
mod write;

pub use artifact::{Artifact, EMPTY_CONFIG, NewArtifact, empty_config};
pub use blob::Blob;
pub use config::{ImageConfig, RunConfig};
pub use descriptor::Descriptor;
pub use digest::{Digest, Hasher, InvalidDigest};
pub use index_lock::{IndexLock, InvalidLock};
pub use index_repo::{IndexRepo, InvalidIndexRepo};
pub use invalid_manifest::InvalidManifest;
pub use manifest::{Document, ImageIndex, Manifest, NoPlatform};
pub use media_type::{Compression, MediaType};
pub use platform::{InvalidPlatform, Platform};
pub use reference::{DEFAULT_TAG, DOCKER_HUB, InvalidReference, Reference, is_short_name, is_tag};
pub use source::{InvalidSource, Source};
pub use verified::{DigestMismatch, Verified};
pub use write::NewDescriptor;
