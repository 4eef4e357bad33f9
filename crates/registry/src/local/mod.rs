//! Images in local files: OCI layouts and archives.
//!
//! Layouts can be written too. Nothing is unpacked: an archive is walked once for the places of its members, and blobs are read in place.

mod archive;
mod blobs;
mod delete;
mod docker;
mod folder;
mod layout;
mod opened;
mod referrers;
mod write;

pub(crate) use blobs::{BlobPlace, LocalBlobs, LocalSource};
pub use folder::images_in;
pub(crate) use layout::LayoutIndex;
pub(crate) use opened::{Local, Root};
pub(crate) use write::LayoutWriter;
