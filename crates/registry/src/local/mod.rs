//! Images that are files here: OCI layouts and archives.
//!
//! Nothing is unpacked: an archive is walked once for the places of its members, and blobs are read from it in place.

mod archive;
mod blobs;
mod docker;
mod layout;

pub(crate) use blobs::{LocalBlobs, LocalSource, Place, blocking};
pub(crate) use docker::open as open_docker_archive;
pub(crate) use layout::{LayoutIndex, open_archive, open_directory};
