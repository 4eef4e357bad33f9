//! [`CommitInput`]: the upper directory that a commit reads, and the image below it.

use std::path::{Path, PathBuf};

use tarpon_client::Client;
use tarpon_containers::{Changes, Containers, LeftOut};
use tarpon_images::origin::Origin;
use tarpon_mount::Writable;
use tarpon_oci::Digest;

use super::base::Base;
use super::request::{CommitRequest, CommitSource};
use crate::{Error, ErrorKind, Result};

/// Attempts to read an upper directory without a change. One that changed during each of three attempts changes all the time.
const ATTEMPTS: u32 = 3;

/// An upper directory with its context.
pub(super) struct CommitInput {
    pub(super) upper: PathBuf,
    pub(super) left_out: LeftOut,
    pub(super) base: Base,
    pub(super) created_by: String,
    /// Prevents the removal of a container that has ended.
    pub(super) changes: Option<Changes>,
    /// How often it is read until no change occurred. `None`: a change is no error.
    pub(super) attempts: Option<u32>,
    pub(super) notes: Vec<String>,
}

impl CommitInput {
    /// The input of a commit.
    pub(super) async fn open(containers: &Containers, request: &CommitRequest) -> Result<Self> {
        match &request.source {
            CommitSource::Container(name) => {
                let changes = containers.changes(name)?;
                let base =
                    Base::of_manifest(containers.images(), &changes.image, &changes.manifest, &request.access).await?;
                let mut notes = Vec::new();
                if !request.pause && changes.is_running() {
                    notes.push("the container runs on: what it writes meanwhile may be in the layer or not".to_owned());
                }
                Ok(Self {
                    upper: changes.upper.clone(),
                    left_out: changes.left_out.clone(),
                    base,
                    created_by: changes.command.join(" "),
                    changes: Some(changes),
                    attempts: None,
                    notes,
                })
            }
            CommitSource::Upper { directory, base } => {
                let upper = directory.canonicalize().map_err(|error| {
                    Error::new(ErrorKind::NotFound, format!("find the upper directory {}", directory.display()), error)
                })?;
                let base = match base {
                    Some(base) => Base::requested(containers.images(), base).await?,
                    None => {
                        let (image, manifest) = written_over(containers.client(), &upper)?;
                        Base::of_manifest(containers.images(), &image, &manifest, &request.access).await?
                    }
                };
                let created_by = "tarpon commit".to_owned();
                let attempts = request.pause.then_some(ATTEMPTS);
                let (left_out, notes) = (LeftOut::default(), Vec::new());
                Ok(Self { upper, left_out, base, created_by, changes: None, attempts, notes })
            }
        }
    }
}

/// The image whose mount writes to this directory, or was the last to do so, and its manifest.
fn written_over(client: &Client, upper: &Path) -> Result<(String, Digest)> {
    let is_it = |writable: &Writable| matches!(writable, Writable::Upper(directory) | Writable::Discarded(directory) if directory.canonicalize().is_ok_and(|it| it == upper));
    let mounts = client.status()?.unwrap_or_default();
    if let Some(mount) = mounts.into_iter().find(|mount| is_it(&mount.writable)) {
        return Ok((mount.image, mount.manifest));
    }
    let remembered = Origin::of(upper).map(|origin| (origin.image, origin.manifest));
    remembered.ok_or_else(|| {
        let cause = format!("no mount has written to {} with --rw", upper.display());
        Error::new(ErrorKind::NotFound, "find the image below", cause).hint("name it with --base IMAGE")
    })
}
