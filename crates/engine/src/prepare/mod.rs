//! From an image reference to a complete record in the store.
//!
//! ```text
//! resolve ─► manifest ─┬─► config
//!                      └─► layers, in parallel: index kept from before │ table of contents │ streamed once
//!                                   └─► merge ─► EROFS image + chunk table ─► record
//! ```

mod assemble;
mod kept;
mod layers;
pub(crate) mod pipe;
mod stream;
pub(crate) mod toc;

use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::ImageRecord;

use crate::image::{ImageRequest, Prepared, Pull};
use crate::progress::Progress;
use crate::{Engine, Error, ErrorKind, Result, access};

impl Engine {
    /// Makes sure that the image's record is in the store. Asks the registry only when the pull policy or an absent
    /// record demands it.
    pub async fn prepare(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        match request.pull {
            Pull::Missing => match self.local(request)? {
                Some(record) => Ok(prepared(request, record, Vec::new())),
                None => self.prepare_remote(request, progress).await,
            },
            Pull::Never => match self.local(request)? {
                Some(record) => Ok(prepared(request, record, Vec::new())),
                None => Err(Error::new(ErrorKind::NotFound, "look in the store", "the image is not there")
                    .hint("the pull policy is \"never\"; without it the registry would be asked")),
            },
            Pull::Always => self.prepare_remote(request, progress).await,
            Pull::Newer => match (self.prepare_remote(request, progress).await, self.local(request)?) {
                (Err(error), Some(record)) if error.kind == ErrorKind::Unavailable => {
                    let line = format!("not refreshed: {error}");
                    progress.note(&line);
                    Ok(prepared(request, record, vec![line]))
                }
                (result, _) => result,
            },
        }
    }

    /// The record that this name led to last time.
    fn local(&self, request: &ImageRequest) -> Result<Option<ImageRecord>> {
        let failed = |error| Error::new(ErrorKind::Store, "look in the store", error);
        let (name, platform) = (request.source.to_string(), request.platform.to_string());
        let Some(reference) = self.store().reference(&name, &platform).map_err(failed)? else { return Ok(None) };
        self.store().image(&reference.manifest).map_err(failed)
    }

    async fn prepare_remote(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        let repository = access::open(&request.text, &request.access).await?;
        let resolved = access::resolve(&repository, &request.platform).await?;
        let failed = |error| Error::new(ErrorKind::Store, "look in the store", error);
        let known = self.store().image(resolved.manifest.digest()).map_err(failed)?;
        let (record, fallbacks) = match known {
            Some(record) => (record, Vec::new()),
            None => self.index(request, &repository, resolved, progress).await?,
        };
        let (name, platform) = (request.source.to_string(), request.platform.to_string());
        let noted = self.store().set_reference(&name, &platform, &record.manifest);
        noted.map_err(|error| Error::new(ErrorKind::Store, "note the image's name", error))?;
        Ok(prepared(request, record, fallbacks))
    }

    /// Indexes all layers and installs the record.
    async fn index(
        &self,
        request: &ImageRequest,
        repository: &Repository,
        resolved: ResolvedImage,
        progress: &dyn Progress,
    ) -> Result<(ImageRecord, Vec<String>)> {
        // Objects of this import are not evicted before the record that needs them is there.
        let _pin = self.store().pin().map_err(|error| Error::new(ErrorKind::Store, "pin the import", error))?;
        let (config, layers) = layers::index_all(self.store(), repository, &resolved, progress).await?;
        let fallbacks = layers.iter().filter_map(|layer| layer.fallback.clone()).collect();
        let image = assemble::Image { request: request.clone(), resolved, config, layers };
        let store = self.store().clone();
        let record = tokio::task::spawn_blocking(move || assemble::assemble(&store, image))
            .await
            .map_err(|error| Error::new(ErrorKind::Other, "merge the layers", error))??;
        Ok((record, fallbacks))
    }
}

fn prepared(request: &ImageRequest, record: ImageRecord, fallbacks: Vec<String>) -> Prepared {
    Prepared { text: request.text.clone(), record, access: request.access.clone(), fallbacks }
}
