//! New images from what was written over old ones.
//!
//! ```text
//! marks      overlayfs's attributes of a file
//! upper      the upper directory, entry by entry
//! stream     … as the tar of a layer
//! still      whether it changed while it was read
//! base       the image below: manifest and config
//! change     changes to the config
//! document   config and manifest of the new image
//! push       its way to a registry
//! ```
//!
//! Nothing of the base's layers is read. They stay where they are, and a push has the registry mount them from the base's repository.

mod base;
mod change;
mod document;
mod marks;
mod push;
mod still;
mod stream;
mod upper;

use std::path::{Path, PathBuf};

use tarpon_layer::Allowance;
use tarpon_layer::toc::{Claim, Format};
use tarpon_layer::write::{EstargzOptions, WriteError, Written, ZstdChunkedOptions, estargz, zstd_chunked};
use tarpon_mount::Writable;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, NewDescriptor, Source};
use tarpon_registry::{AccessOptions, Destination};

use self::base::Base;
pub use self::change::Change;
use self::document::LayerHistory;
pub use self::push::{PushRequest, Pushed, PushedLayer, PushedOutcome, push};
use self::still::Still;
use self::stream::LayerTar;
use self::upper::{UpperError, Walk};
use crate::upload;
use crate::{Error, ErrorKind, Result, ResultExt};
use tarpon_client::Client;
use tarpon_client::ContainerName;
use tarpon_containers::{Changes, Containers, LeftOut};
use tarpon_images::Access;
use tarpon_images::ImageRequest;
use tarpon_images::commits::{Commits, Committed, Staging, TAG};
use tarpon_images::origin::Origin;
use tarpon_images::progress::Progress;

/// Attempts to read an upper directory without a change: one that changes in each of three readings never stands still.
const ATTEMPTS: u32 = 3;

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

/// An upper directory with its context.
struct Work {
    upper: PathBuf,
    left_out: LeftOut,
    base: Base,
    created_by: String,
    /// Prevents the removal of a container that has ended.
    changes: Option<Changes>,
    /// How often it is read until no change occurred. `None`: a change is no error.
    attempts: Option<u32>,
    notes: Vec<String>,
}

/// How a layer is written, and what it may hold.
#[derive(Debug, Clone, Copy)]
struct Recipe {
    format: Format,
    newest: Option<i64>,
}

/// A layer in the layout of an image that is being made.
struct Staged {
    staging: Staging,
    layout: Destination,
    layer: Layer,
}

/// A written layer.
struct Layer {
    written: Written,
    entries: u64,
    notes: Vec<String>,
}

/// Makes an image from what was written over another one, and keeps it in the store under its name, replacing any commit of that name.
/// Dropping the future stops it and leaves nothing.
///
/// # Errors
/// `Refused` for what a layer cannot hold, `NotFound` for containers, directories and images, `Store`.
pub async fn commit(containers: &Containers, request: &CommitRequest, progress: &dyn Progress) -> Result<CommitReport> {
    let mut work = work(containers, request).await?;
    let format = request.format.unwrap_or_else(|| usual_format(&work.base));
    let paused = match &work.changes {
        Some(changes) if request.pause => pause(changes, &mut work.notes),
        _ => None,
    };
    // A container that has ended or is paused changes no more.
    let may_change = paused.is_none() && work.changes.as_ref().is_none_or(Changes::is_running);
    let recipe = Recipe { format, newest: request.timestamp };
    let Staged { staging, layout, layer } = staged(containers, &work, recipe, may_change).await?;
    let Layer { written, entries, notes: of_layer } = layer;
    let Work { base, created_by, changes, mut notes, .. } = work;
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
async fn staged(containers: &Containers, work: &Work, recipe: Recipe, may_change: bool) -> Result<Staged> {
    let mut left = work.attempts.unwrap_or(1);
    loop {
        left -= 1;
        let still = if may_change { Some(still(&work.upper).await?) } else { None };
        let staging = Commits::of(containers.store()).stage().map_err(not_kept)?;
        let layout = kept(tarpon_registry::open_destination(&staging.layout(), &AccessOptions::default()))?;
        let layer = write(&layout, &work.upper, work.left_out.clone(), recipe).await;
        let changed = match still {
            Some(still) => changed(still, work.left_out.clone()).await,
            None => Ok(None),
        };
        match (layer, changed, work.attempts) {
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

async fn work(containers: &Containers, request: &CommitRequest) -> Result<Work> {
    match &request.source {
        CommitSource::Container(name) => {
            let changes = containers.changes(name)?;
            let base =
                Base::of_manifest(containers.images(), &changes.image, &changes.manifest, &request.access).await?;
            let mut notes = Vec::new();
            if !request.pause && changes.is_running() {
                notes.push("the container runs on: what it writes meanwhile may be in the layer or not".to_owned());
            }
            Ok(Work {
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
            Ok(Work { upper, left_out, base, created_by, changes: None, attempts, notes })
        }
    }
}

/// The image whose mount writes to this directory, or was the last to do so, and its manifest.
fn written_over(client: &Client, upper: &Path) -> Result<(String, Digest)> {
    let is_it = |writable: &Writable| matches!(writable, Writable::Upper(directory) if directory.canonicalize().is_ok_and(|it| it == upper));
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

/// Watches an upper directory.
async fn still(upper: &Path) -> Result<Still> {
    let upper = upper.to_owned();
    let begun = tokio::task::spawn_blocking(move || Still::begin(&upper)).await;
    let begun = begun.context(ErrorKind::Other, "look at the directory")?;
    begun.map_err(|error| Failure::Upper(error).outward())
}

/// The first change in an upper directory while it was watched.
async fn changed(still: Still, left_out: LeftOut) -> Result<Option<Vec<u8>>> {
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

/// Writes the layer into the layout, on a thread of its own.
async fn write(layout: &Destination, upper: &Path, left_out: LeftOut, recipe: Recipe) -> Result<Layer> {
    let (mut sink, up) = upload::channel();
    let upper = upper.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        let written = layer(&upper, left_out, recipe, &mut sink);
        let sent = sink.finish(written.is_ok());
        let written = written?;
        sent.map(|()| written).map_err(|error| Failure::Write(WriteError::Blob(error)))
    });
    let (pushed, written) = futures::join!(layout.push_stream(up), writing);
    let written = written.context(ErrorKind::Other, "write the layer")?;
    match (written, pushed) {
        // The error of the disk is the cause of the writer's error.
        (Err(Failure::Write(WriteError::Blob(_))), Err(error)) => kept(Err(error)),
        (Err(failure), _) => Err(failure.outward()),
        (Ok(_), Err(error)) => kept(Err(error)),
        (Ok(layer), Ok(blob)) if blob == layer.written.blob => Ok(layer),
        (Ok(_), Ok(blob)) => {
            Err(Error::new(ErrorKind::Store, "write the layer", format!("it came to be {}", blob.digest)))
        }
    }
}

/// Why there is no layer.
enum Failure {
    Upper(UpperError),
    Write(WriteError),
}

impl Failure {
    fn outward(self) -> Error {
        const STEP: &str = "make a layer of what was written";
        match self {
            Self::Upper(error) => Error::new(ErrorKind::Refused, STEP, error),
            Self::Write(error @ WriteError::Unrepresentable { .. }) => Error::new(ErrorKind::Refused, STEP, error)
                .hint("remove or rename it in the container, and commit again"),
            Self::Write(error) => Error::new(ErrorKind::Refused, STEP, error),
        }
    }
}

fn layer(
    upper: &Path,
    left_out: LeftOut,
    recipe: Recipe,
    blob: &mut upload::Sink,
) -> std::result::Result<Layer, Failure> {
    let mut tar = LayerTar::new(Walk::new(upper, left_out, recipe.newest).map_err(Failure::Upper)?);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // The files are the user's own. The largest table of contents bounds the memory.
    let allowance = Allowance::unbounded();
    let written = match recipe.format {
        Format::Estargz => {
            estargz(&mut tar, blob, &EstargzOptions { threads, ..EstargzOptions::default() }, &allowance)
        }
        Format::ZstdChunked => {
            zstd_chunked(&mut tar, blob, &ZstdChunkedOptions { threads, ..Default::default() }, &allowance)
        }
    };
    if let Some(failure) = tar.failure() {
        return Err(Failure::Upper(failure));
    }
    Ok(Layer { written: written.map_err(Failure::Write)?, entries: tar.entries(), notes: notes(&tar) })
}

/// Notes on content of the directory that a layer cannot represent.
fn notes(tar: &LayerTar) -> Vec<String> {
    let tally = tar.tally();
    let line = |count: u64, what: &str| (count > 0).then(|| format!("left out {count} {what}"));
    let nothing = (tar.entries() == 0).then(|| "nothing was written: the new layer is empty".to_owned());
    let left_out = [
        line(tally.sockets, "sockets: a layer has none"),
        line(tally.acls, "files' access control lists: a layer has none, and the files are there"),
    ];
    let blind = "this user cannot see the marks of a mount by root: if one wrote this, a directory that it emptied or replaced still \
                 shows what is below it; commit as root then";
    let blind = tally.is_blind.then(|| blind.to_owned());
    left_out.into_iter().flatten().chain(nothing).chain(blind).collect()
}

/// Writes config and manifest into the layout and returns the manifest's digest.
async fn documents(layout: &Destination, base: &Base, written: &Written, history: &LayerHistory) -> Result<Digest> {
    let mut layer = NewDescriptor::new(written.compression.layer_media_type(), written.blob);
    layer.annotations.clone_from(&written.annotations);
    let config = kept(layout.push_bytes(document::config(base, written.diff_id, history)?).await)?;
    let manifest = document::manifest(base, config, &layer)?;
    kept(layout.push_manifest(OCI_MANIFEST, manifest, Some(TAG)).await)
}

/// An error of the layout in the store.
fn kept<T>(result: std::result::Result<T, tarpon_registry::Error>) -> Result<T> {
    result.context(ErrorKind::Store, "keep the new image")
}

fn now() -> i64 {
    i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}
