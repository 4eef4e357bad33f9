//! [`CommitRequest`]: what to commit, and the result.

use std::path::PathBuf;

use tarpon_client::ContainerName;
use tarpon_images::commits::Committed;
use tarpon_images::{Access, ImageRequest};
use tarpon_layer::toc::Format;
use tarpon_oci::Source;

use super::change::Change;

/// The source of a commit.
#[derive(Debug, Clone)]
pub enum CommitSource {
    /// The changes of a container.
    Container(ContainerName),
    /// The content of an upper directory of overlayfs.
    Upper {
        /// The directory.
        directory: PathBuf,
        /// The image below it. `None`: the image of the mount of this store that writes or wrote there.
        base: Option<Box<ImageRequest>>,
    },
}

/// A request to commit.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// The source.
    pub source: CommitSource,
    /// Its name, which is also the default destination of a push.
    pub image: Source,
    /// Access to the registry of the image below, if the store no longer has its manifest.
    pub access: Access,
    /// Format of the layer. `None`: that of the layers below, or else zstd:chunked.
    pub format: Option<Format>,
    /// Changes to the config.
    pub changes: Vec<Change>,
    /// Author of the image.
    pub author: Option<String>,
    /// Commit message.
    pub message: Option<String>,
    /// Time of the commit, in seconds since 1970: no file of the layer is newer. `None`: now.
    pub timestamp: Option<i64>,
    /// Whether the layer is a consistent snapshot: a running container is paused meanwhile if possible, and an upper directory that changes
    /// all the time is an error.
    pub pause: bool,
}

/// The result of a commit.
#[derive(Debug, Clone)]
pub struct CommitReport {
    /// The record of the committed image.
    pub committed: Committed,
    /// Format of the new layer.
    pub format: Format,
    /// Entries of the new layer.
    pub entries: u64,
    /// Uncompressed bytes of the layer.
    pub uncompressed: u64,
    /// Notes, such as what was left out, one line each.
    pub notes: Vec<String>,
}
