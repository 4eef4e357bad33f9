//! Makes the new image: its layer, its config and its manifest, in the store.

use std::path::Path;

use tarpon_containers::{Changes, Containers, LeftOut};
use tarpon_images::commits::{Commits, Committed, Staging, TAG};
use tarpon_images::progress::Progress;
use tarpon_layer::toc::{Claim, Format};
use tarpon_layer::write::Written;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, NewDescriptor};
use tarpon_registry::{AccessOptions, Destination};

use super::base::Base;
use super::change_watch::ChangeWatch;
use super::document::{self, LayerHistory};
use super::input::CommitInput;
use super::layer::{Failure, Layer, Recipe, kept, write};
use super::request::{CommitReport, CommitRequest};
use crate::{Error, ErrorKind, Result, ResultExt};

/// A layer in the layout of an image that is being made.
struct Staged {
    staging: Staging,
    layout: Destination,
    layer: Layer,
}

/// Makes an image from what was written over another one, and keeps it in the store under its name, replacing any commit of that name.
/// Dropping the future stops it and leaves nothing.
///
/// # Errors
/// `Refused` for what a layer cannot hold, `NotFound` for containers, directories and images, `Store`.
pub async fn commit(containers: &Containers, request: &CommitRequest, progress: &dyn Progress) -> Result<CommitReport> {
    let mut input = CommitInput::open(containers, request).await?;
    let format = request.format.unwrap_or_else(|| usual_format(&input.base));
    let paused = match &input.changes {
        Some(changes) if request.pause => pause(changes, &mut input.notes),
        _ => None,
    };
    // A container that has ended or is paused changes no more.
    let may_change = paused.is_none() && input.changes.as_ref().is_none_or(Changes::is_running);
    let recipe = Recipe { format, newest: request.timestamp };
    let Staged { staging, layout, layer } = staged(containers, &input, recipe, may_change).await?;
    let Layer { written, entries, notes: of_layer } = layer;
    let CommitInput { base, created_by, changes, mut notes, .. } = input;
    // It may continue: all of it has been read.
    drop((paused, changes));
    notes.extend(of_layer);
    notes.iter().for_each(|note| progress.note(note));

    let history = LayerHistory {
        created: request.timestamp.unwrap_or_else(now),
        created_by,
        author: request.author.clone(),
        comment: request.message.clone(),
        changes: request.changes.clone(),
    };
    let digest = documents(&layout, &base, &written, &history).await?;
    let size = base.manifest.layers_size() + written.blob.size;
    let base = (&base.source, *base.manifest.digest());
    let committed = Committed::new(&request.image, digest, base, written.blob, size);
    staging.install(&committed).map_err(not_kept)?;
    Ok(CommitReport { committed, format, entries, uncompressed: written.uncompressed_size, notes })
}

/// Writes the layer into a layout of its own, again if its source changed meanwhile.
async fn staged(containers: &Containers, input: &CommitInput, recipe: Recipe, may_change: bool) -> Result<Staged> {
    let mut left = input.attempts.unwrap_or(1);
    loop {
        left -= 1;
        let still = if may_change { Some(still(&input.upper).await?) } else { None };
        let staging = Commits::of(containers.store()).stage().map_err(not_kept)?;
        let layout = kept(tarpon_registry::open_destination(&staging.layout(), &AccessOptions::default()))?;
        let layer = write(&layout, &input.upper, input.left_out.clone(), recipe).await;
        let changed = match still {
            Some(still) => changed(still, input.left_out.clone()).await,
            None => Ok(None),
        };
        match (layer, changed, input.attempts) {
            (layer, Ok(Some(_)), Some(_)) if left > 0 => drop(layer),
            (_, Ok(Some(path)), Some(attempts)) => return Err(never_still(&path, attempts)),
            (Err(error), _, _) => return Err(error),
            (Ok(_), Err(error), Some(_)) => return Err(error),
            (Ok(mut layer), changed, _) => {
                let changed = changed.ok().flatten();
                layer.notes.extend(changed.map(|path| {
                    format!("/{} changed while it was read: the layer may hold parts of it", path.escape_ascii())
                }));
                return Ok(Staged { staging, layout, layer });
            }
        }
    }
}

/// Watches an upper directory.
async fn still(upper: &Path) -> Result<ChangeWatch> {
    let upper = upper.to_owned();
    let begun = tokio::task::spawn_blocking(move || ChangeWatch::begin(&upper)).await;
    let begun = begun.context(ErrorKind::Other, "look at the directory")?;
    begun.map_err(|error| Failure::Upper(error).outward())
}

/// The first change in an upper directory while it was watched.
async fn changed(still: ChangeWatch, left_out: LeftOut) -> Result<Option<Vec<u8>>> {
    let looked = tokio::task::spawn_blocking(move || still.changed(&left_out)).await;
    let looked = looked.context(ErrorKind::Other, "look at the directory")?;
    looked.map_err(|error| Failure::Upper(error).outward())
}

fn never_still(path: &[u8], attempts: u32) -> Error {
    let cause = format!("/{} changed while it was read, in each of {attempts} attempts", path.escape_ascii());
    Error::new(ErrorKind::Conflict, "make a layer of what was written", cause)
        .hint("stop what writes to it, or take it as it changes with --pause=false")
}

fn not_kept(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Store, "keep the new image", error)
}

/// Pauses a running container, if possible.
fn pause(changes: &Changes, notes: &mut Vec<String>) -> Option<tarpon_containers::Paused> {
    match changes.pause() {
        Ok(paused) => paused,
        Err(error) => {
            notes.push(format!(
                "the container runs on, and what it writes meanwhile may be in the layer or not: {error}"
            ));
            None
        }
    }
}

/// The format of the topmost layers below, so that readers that read them lazily can do the same with the new one.
fn usual_format(base: &Base) -> Format {
    let of_layer = |layer: &tarpon_oci::Descriptor| match Claim::of(&layer.media_type, &layer.annotations, layer.size) {
        Ok(Claim::Toc(claim)) => Some(claim.format()),
        _ => None,
    };
    base.manifest.layers.iter().rev().find_map(of_layer).unwrap_or(Format::ZstdChunked)
}

/// Writes config and manifest into the layout and returns the manifest's digest.
async fn documents(layout: &Destination, base: &Base, written: &Written, history: &LayerHistory) -> Result<Digest> {
    let mut layer = NewDescriptor::new(written.compression.layer_media_type(), written.blob);
    layer.annotations.clone_from(&written.annotations);
    let config = kept(layout.push_bytes(document::config(base, written.diff_id, history)?).await)?;
    let manifest = document::manifest(base, config, &layer)?;
    kept(layout.push_manifest(OCI_MANIFEST, manifest, Some(TAG)).await)
}

fn now() -> i64 {
    i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}
