//! A layout or archive that is opened at first use: an image with a stored record mounts without it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tarpon_blob::{BlobSource, BlobStream, SourceError};
use tarpon_oci::{Blob, Source, Verified};
use tokio::sync::OnceCell;

use super::blobs::{LocalSource, blocking};
use super::{LayoutIndex, LocalBlobs, docker, layout};
use crate::stats::Counters;

/// A source that is not a registry.
pub(crate) struct Local {
    source: Source,
    counters: Arc<Counters>,
    opened: OnceCell<Opened>,
}

/// The root of an open source, and its blobs.
pub(crate) struct Opened {
    pub(crate) root: Root,
    pub(crate) blobs: Arc<LocalBlobs>,
}

/// The root that resolving starts from.
#[expect(clippy::large_enum_variant, reason = "one per source")]
pub(crate) enum Root {
    /// At `index.json`.
    Layout(LayoutIndex),
    /// At a generated manifest.
    Docker(Verified<Bytes>),
}

impl Local {
    pub(crate) fn new(source: Source, counters: Arc<Counters>) -> Self {
        Self { source, counters, opened: OnceCell::new() }
    }

    /// The open source. A failed attempt is not remembered.
    pub(crate) async fn opened(&self) -> Result<&Opened, SourceError> {
        self.opened.get_or_try_init(|| blocking(self.opener())).await
    }

    fn opener(&self) -> impl FnOnce() -> Result<Opened, SourceError> + Send + 'static {
        let (source, counters) = (self.source.clone(), self.counters.clone());
        let layout = |(index, blobs)| Opened { root: Root::Layout(index), blobs: Arc::new(blobs) };
        move || match source {
            Source::OciLayout { directory, tag } => layout::open_directory(&directory, tag, counters).map(layout),
            Source::OciArchive { file, tag } => layout::open_archive(&file, tag, counters).map(layout),
            Source::DockerArchive { file, reference } => {
                let (manifest, blobs) = docker::open(&file, reference.as_ref(), counters)?;
                Ok(Opened { root: Root::Docker(manifest), blobs: Arc::new(blobs) })
            }
            Source::Registry(reference) => unreachable!("{reference} is not local"),
        }
    }
}

impl BlobSource for Local {
    fn read(&self, blob: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        async move { LocalSource(self.opened().await?.blobs.clone()).read(blob, range).await }.boxed()
    }

    fn name(&self) -> String {
        self.source.to_string()
    }

    fn is_local(&self) -> bool {
        true
    }
}
