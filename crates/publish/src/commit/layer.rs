//! Writes the layer of a commit into an OCI layout.

use std::path::Path;

use tarpon_containers::LeftOut;
use tarpon_layer::Allowance;
use tarpon_layer::toc::Format;
use tarpon_layer::write::{EstargzOptions, WriteError, Written, ZstdChunkedOptions, estargz, zstd_chunked};
use tarpon_registry::Destination;

use super::stream::LayerTar;
use super::upper::{UpperError, Walk};
use crate::upload;
use crate::{Error, ErrorKind, Result, ResultExt};

/// How a layer is written, and what it may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recipe {
    pub(super) format: Format,
    pub(super) newest: Option<i64>,
}

/// A written layer.
pub(super) struct Layer {
    pub(super) written: Written,
    pub(super) entries: u64,
    pub(super) notes: Vec<String>,
}

/// Writes the layer into the layout, on a thread of its own.
pub(super) async fn write(layout: &Destination, upper: &Path, left_out: LeftOut, recipe: Recipe) -> Result<Layer> {
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
pub(super) enum Failure {
    Upper(UpperError),
    Write(WriteError),
}

impl Failure {
    pub(super) fn outward(self) -> Error {
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

/// An error of the layout in the store.
pub(super) fn kept<T>(result: std::result::Result<T, tarpon_registry::Error>) -> Result<T> {
    result.context(ErrorKind::Store, "keep the new image")
}
