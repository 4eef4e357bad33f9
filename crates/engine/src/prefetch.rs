//! Fetching images before they are started.

use tarpon_client::protocol::{BroughtStart, StartRequest};
use tarpon_images::{ErrorKind, ImageRequest, LayerLimits, Prepared, Progress, Pull, Result, ResultExt as _};
use tarpon_oci::Source;
use tarpon_registry::Stats;
use tarpon_server::StartBringer;
use tarpon_store::{ImageRecord, Store};

use crate::engine::Engine;

/// How much of an image is fetched before it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrefetchExtent {
    /// What a mount would fetch without a reader: the record, for which layers without a table of contents are streamed, and the boot pack, or
    /// what earlier starts read, or what the image's author marked.
    Start,
    /// Of that only the record, if no layer has to be streamed for it, and the boot pack, or what earlier starts read.
    StartOnly,
    /// Everything, as [`Engine::pull`] does.
    Whole,
}

/// An image that was fetched before it is started.
#[derive(Debug, Clone)]
pub struct Prefetched {
    /// Its record.
    pub record: ImageRecord,
    /// Requests to its sources, and bytes received.
    pub fetched: Stats,
    /// What the store has of what its start needs. `None`: it has the whole image.
    pub start: Option<BroughtStart>,
}

impl Engine {
    /// Fetches an image into the store, so that its next start waits for less. Resolves its name again, unless the request forbids that. What
    /// is in the store is not fetched again, and counts as used now. The rate of the request's limits applies to everything that is large.
    ///
    /// # Errors
    /// Those of [`Engine::prepare`] or [`Engine::pull`]. What a start needs and its source does not provide is no error but missing.
    pub async fn prefetch(
        &self,
        request: &ImageRequest,
        extent: PrefetchExtent,
        progress: &dyn Progress,
    ) -> Result<Prefetched> {
        if extent == PrefetchExtent::Whole {
            let pulled = self.pull(request, progress).await?;
            self.note_use(request, &pulled.record)?;
            return Ok(Prefetched { record: pulled.record, fetched: pulled.fetched, start: None });
        }
        let limits = LayerLimits { may_stream: extent == PrefetchExtent::Start, ..request.limits };
        let request = ImageRequest { limits, pull: resolving(request), ..request.clone() };
        let prepared = self.prepare(&request, progress).await?;
        let store = self.note_use(&request, &prepared.record)?;
        let start = self.bring_start(store, &request, extent, &prepared, progress).await?;
        let fetched = prepared.fetched + Stats { requests: start.requests, bytes: start.bytes };
        Ok(Prefetched { record: prepared.record, fetched, start: Some(start) })
    }

    /// Makes the image the last that eviction removes. Returns the part of the store that has it.
    fn note_use(&self, request: &ImageRequest, record: &ImageRecord) -> Result<Store> {
        let images = self.images().for_image(&request.text, &request.access)?;
        let noted = images.store().touch_image(&record.manifest);
        noted.context(ErrorKind::Store, "note the use of the image")?;
        Ok(images.store().clone())
    }

    /// Has the running server fetch what the start needs, or fetches it here if none runs.
    async fn bring_start(
        &self,
        store: Store,
        request: &ImageRequest,
        extent: PrefetchExtent,
        prepared: &Prepared,
        progress: &dyn Progress,
    ) -> Result<BroughtStart> {
        let wanted = StartRequest {
            image: prepared.text.clone(),
            manifest: prepared.record.manifest,
            access: prepared.access.clone(),
            index_places: prepared.index_places.clone(),
            rate: request.limits.rate,
            landmarks: extent == PrefetchExtent::Start,
        };
        let report = |requested, missing| progress.start_requested(requested, missing);
        match self.client().bring_start(wanted.clone(), &report).await? {
            Some(brought) => Ok(brought),
            None => StartBringer::new(store, self.sources().clone()).bring(&wanted, &report).await,
        }
    }
}

/// When to resolve the name: a tag may refer to another image since it was resolved; a digest does not.
fn resolving(request: &ImageRequest) -> Pull {
    match (&request.source, request.pull) {
        (Source::Registry(reference), Pull::Missing) if reference.digest().is_none() => Pull::Always,
        (_, pull) => pull,
    }
}
