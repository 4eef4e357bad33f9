//! Preparing an image without streaming any layer: from tables of contents and existing indexes, or not at all.

use tarpon_layer::Allowance;
use tarpon_layer::toc::Claim;
use tarpon_registry::Repository;

use super::kept;
use super::layer::{self, Extent};
use crate::access;
use crate::admission;
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::{ImageRequest, Prepared};
use crate::images::Images;
use crate::preparer::Task;
use crate::progress::Progress;

impl Images {
    /// Makes sure that the record of the image that the name currently refers to is in the store.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if a layer has no table of contents that the manifest pins, and was not seen here before.
    pub async fn prepare_without_streaming(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        self.refuse_isolated("show its layers one by one")?;
        if let Some(preparer) = self.preparer() {
            return self.prepare_by(preparer, Task::WithoutStreaming, request, None, progress).await;
        }
        let repository = access::open(&request.text, &request.access).await?;
        self.with_tier_of(request).without_streaming_from(request, &repository, progress).await
    }

    /// As [`Images::prepare_without_streaming`], through a repository that the caller opened.
    pub async fn without_streaming_from(
        &self,
        request: &ImageRequest,
        repository: &Repository,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let resolved = admission::resolve(repository, &request.access, &request.platform).await?;
        let known = self.believed(resolved.manifest.digest()).context(ErrorKind::Store, "look in the store")?.sound();
        let (record, fallbacks) = match known {
            Some(record) => (record, Vec::new()),
            None => {
                let wanted = layer::wanted(&resolved.manifest.layers)?;
                let is_known = |layer: &&layer::Wanted| {
                    matches!(layer.claim, Claim::Toc(_))
                        || kept::load(self.store(), layer.blob, &layer.claim, &Allowance::default()).is_some()
                };
                if let Some(plain) = wanted.iter().find(|layer| !is_known(layer)) {
                    let cause = format!("layer {} ({}) has no table of contents", plain.number + 1, plain.blob.digest);
                    return Err(Error::new(ErrorKind::Refused, "show its layers one by one", cause));
                }
                self.index(request, repository, resolved, Extent::Own, progress).await?
            }
        };
        self.note_name(request, &record)?;
        Ok(Prepared::of(request, record, fallbacks))
    }
}
