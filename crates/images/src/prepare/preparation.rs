//! From an image reference to a complete record in the store.
//!
//! ```text
//! resolve ─► manifest ─┬─► config
//!                      └─► layers, in parallel: index kept from before │ table of contents │ streamed once
//!                                   └─► merge ─► EROFS image + chunk table ─► record
//! ```

use futures::FutureExt;
use futures::future::BoxFuture;
use tarpon_oci::{Digest, IndexRepo, Source};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::{ImageRecord, ImageState};

use super::layer::{Extent, Layer};
use super::layers::{self, Indexes};
use super::{assemble, exclusive, local, platform};
use crate::admission::{self, Admission};
use crate::error::{Error, ErrorKind, Result, ResultExt};
use crate::image::{ImageRequest, IndexChoice, LayerLimits, Prepared, Pull};
use crate::images::Images;
use crate::index::find::Choice;
use crate::index::pack::{PackListener, PackWanted};
use crate::index::places::{IndexPlace, IndexPlaces};
use crate::index::rules::Rules;
use crate::index::search_result::FoundPack;
use crate::preparer::{Preparer, Task};
use crate::progress::Progress;
use crate::{access, commits, tenant};

/// An image that is completely local.
#[derive(Debug, Clone)]
pub struct Pulled {
    /// Its record.
    pub record: ImageRecord,
    /// Requests to its source, and bytes received.
    pub fetched: tarpon_registry::Stats,
}

impl Images {
    /// Makes sure that the image's record is in the store. Contacts the registry only when the pull policy or an absent record demands it.
    /// A layout or archive is cheap to read and may have changed: it is always read, unless it is gone or the policy is "never".
    pub async fn prepare(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Prepared> {
        self.prepare_with(request, None, progress).await
    }

    /// As [`Images::prepare`]. `listener` receives the place of the image's boot pack as soon as it is known.
    pub async fn prepare_with(
        &self,
        request: &ImageRequest,
        listener: Option<&dyn PackListener>,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let prepared = self.find(request, listener, progress).await?;
        self.checked(request, prepared, progress).await
    }

    /// Checks what is local of a prepared image.
    async fn checked(
        &self,
        request: &ImageRequest,
        mut prepared: Prepared,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let part = self.for_image(&request.text, &request.access)?;
        part.check_objects(&prepared.record, progress).await?;
        if let Some(warning) = platform::check_record(part.store(), request, &prepared.record)? {
            progress.note(&warning);
            prepared.fallbacks.push(warning);
        }
        Ok(prepared)
    }

    async fn find(
        &self,
        request: &ImageRequest,
        listener: Option<&dyn PackListener>,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        commits::check_not_only_here(self.store(), &request.source)?;
        if self.is_isolated()? {
            may_ask(request)?;
            return self.prepare_remote(request, listener, progress).await.map_err(unproven);
        }
        match request.pull {
            Pull::Missing if is_there(&request.source) => self.prepare_remote(request, listener, progress).await,
            Pull::Missing => match self.local(request)? {
                ImageState::Sound(record) => Ok(Prepared::of(request, record, Vec::new())),
                state => {
                    let made =
                        self.preparations().join(request, self.prepare_missing(request, listener, progress)).await;
                    local::with_damage(made, state, request, progress)
                }
            },
            Pull::Never => local::without_asking(self.local(request)?, request, progress),
            Pull::Always => self.prepare_remote(request, listener, progress).await,
            Pull::Newer => match (self.prepare_remote(request, listener, progress).await, self.local(request)?) {
                (Err(error), ImageState::Sound(record)) if error.kind == ErrorKind::Unavailable => {
                    let line = format!("not refreshed: {error}");
                    progress.note(&line);
                    Ok(Prepared::of(request, record, vec![line]))
                }
                (made, state) => local::with_damage(made, state, request, progress),
            },
        }
    }

    /// Contacts the registry, unless another process has just done so.
    async fn prepare_missing(
        &self,
        request: &ImageRequest,
        listener: Option<&dyn PackListener>,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let _alone = exclusive::lock(self.store(), &exclusive::key_of_name(request), progress).await?;
        match self.local(request)? {
            ImageState::Sound(record) => Ok(Prepared::of(request, record, Vec::new())),
            _ => self.prepare_remote(request, listener, progress).await,
        }
    }

    /// The record that [`Images::prepare`] would use without contacting the image's source.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the source must not be contacted and no record exists; [`ErrorKind::Store`] if the record is damaged
    /// then.
    pub(crate) fn without_source(&self, request: &ImageRequest) -> Result<Option<ImageRecord>> {
        if self.is_isolated()? {
            return may_ask(request).map(|()| None);
        }
        match request.pull {
            Pull::Missing if is_there(&request.source) => Ok(None),
            Pull::Missing => Ok(self.local(request)?.sound()),
            Pull::Never => local::only_here(self.local(request)?).map(|(record, _)| Some(record)),
            Pull::Always | Pull::Newer => Ok(None),
        }
    }

    /// Fetches the whole image and its record into the store, whatever was there before. Everything is verified, including claims of an
    /// external index: if these were wrong, the record derived from them is removed.
    pub async fn pull(&self, request: &ImageRequest, progress: &dyn Progress) -> Result<Pulled> {
        if self.is_isolated()? {
            tenant::check(&request.text)?;
            refuse_tier(request)?;
        }
        if let Some(preparer) = self.preparer() {
            let finished = preparer.prepare(Task::Pull, self.store().folder(), request, None, progress).await?;
            return Ok(Pulled { record: self.made(request, &finished.manifest)?, fetched: finished.fetched });
        }
        let repository = access::open(&request.text, &request.access).await?;
        self.with_tier_of(request).pull_from(request, &repository, progress).await
    }

    /// As [`Images::pull`], through a repository that the caller opened.
    pub async fn pull_from(
        &self,
        request: &ImageRequest,
        repository: &Repository,
        progress: &dyn Progress,
    ) -> Result<Pulled> {
        let image = admission::resolve(repository, &request.access, &request.platform).await?;
        let part = self.for_image(&request.text, &request.access)?;
        let (record, _) = part.index(request, repository, image, Extent::Whole, progress).await?;
        part.note_name(request, &record)?;
        Ok(Pulled { record, fetched: repository.stats() + part.tier_stats() })
    }

    pub(super) fn note_name(&self, request: &ImageRequest, record: &ImageRecord) -> Result<()> {
        Admission::of(&request.source, &request.access)?.note(self.store(), &record.manifest)?;
        let (name, platform) = (request.source.to_string(), request.platform.to_string());
        let noted = self.store().set_reference(&name, &platform, &record.manifest);
        noted.context(ErrorKind::Store, "note the image's name")
    }

    /// As [`Images::prepare`] with [`Pull::Always`], through a repository that the caller opened: with a transport of its own, for
    /// example.
    pub async fn prepare_through(
        &self,
        request: &ImageRequest,
        repository: &Repository,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let places = IndexPlaces::of(request)?;
        let images = self.with_tier_of(request);
        let prepared = images.prepare_from(request, repository, &places, None, progress).await?;
        self.checked(request, prepared, progress).await
    }

    /// Contacts the source. Boxed: most calls find what they want in the store, and the future they wait for should be small.
    fn prepare_remote<'a>(
        &'a self,
        request: &'a ImageRequest,
        listener: Option<&'a dyn PackListener>,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared>> {
        async move {
            if let Some(listener) = listener.filter(|_| may_have_pack(request)) {
                // A registry that the policy rejects is not contacted.
                Admission::of(&request.source, &request.access)?;
                listener.requested();
            }
            if let Some(preparer) = self.preparer() {
                return self.prepare_by(preparer, Task::Prepare, request, listener, progress).await;
            }
            let repository = access::open(&request.text, &request.access).await?;
            let places = IndexPlaces::of(request)?;
            self.with_tier_of(request).prepare_from(request, &repository, &places, listener, progress).await
        }
        .boxed()
    }

    /// Has another process do the task, and loads what it prepared.
    pub(super) async fn prepare_by(
        &self,
        preparer: &dyn Preparer,
        task: Task,
        request: &ImageRequest,
        listener: Option<&dyn PackListener>,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let finished = preparer.prepare(task, self.store().folder(), request, listener, progress).await?;
        let record = self.made(request, &finished.manifest)?;
        Ok(Prepared::of(request, record, finished.fallbacks).after(finished.fetched))
    }

    /// The record that another process made.
    fn made(&self, request: &ImageRequest, manifest: &Digest) -> Result<ImageRecord> {
        let step = "load the image's record";
        let part = self.for_image(&request.text, &request.access)?;
        let found = part.store().image(manifest).context(ErrorKind::Store, step)?;
        found.ok_or_else(|| Error::new(ErrorKind::Store, step, "it is not in the store any more"))
    }

    /// Prepares the image of a repository that the caller opened, and does not check what is local of it. Its index may be in one of `places`.
    pub fn prepare_from<'a>(
        &'a self,
        request: &'a ImageRequest,
        repository: &'a Repository,
        places: &'a IndexPlaces<'a>,
        listener: Option<&'a dyn PackListener>,
        progress: &'a dyn Progress,
    ) -> BoxFuture<'a, Result<Prepared>> {
        async move {
            if request.index != IndexChoice::None {
                places.get_ready();
            }
            let resolved = admission::resolve(repository, &request.access, &request.platform).await?;
            // From here on the caller has proved access.
            let part = self.for_image(&request.text, &request.access)?;
            let manifest = *resolved.manifest.digest();
            let (record, fallbacks) = match part.already_here(request, &manifest)? {
                ImageState::Sound(record) => (record, Vec::new()),
                _ => {
                    // Under another name, or requested again, it may be on its way to the store.
                    let _alone = exclusive::lock(part.store(), &manifest, progress).await?;
                    match part.already_here(request, &manifest)? {
                        ImageState::Sound(record) => (record, Vec::new()),
                        state => {
                            local::note_damage(&state, progress);
                            if let Some(listener) = listener.filter(|_| may_have_pack(request)) {
                                listener.expected();
                            }
                            let starts = request.starts;
                            let pack =
                                request.profile.as_deref().map(|profile| PackWanted { profile, starts, listener });
                            let rules = rules(request, &manifest, places)?;
                            let extent = Extent::Index(Choice { rules: &rules, places }, pack);
                            part.index(request, repository, resolved, extent, progress).await?
                        }
                    }
                }
            };
            part.note_name(request, &record)?;
            let fetched = repository.stats() + places.stats() + part.tier_stats();
            Ok(Prepared::of(request, record, fallbacks).after(fetched))
        }
        .boxed()
    }

    /// The local state of an image that the registry names. An error if it is not for the requested platform.
    fn already_here(&self, request: &ImageRequest, manifest: &Digest) -> Result<ImageState> {
        let known = self.believed(manifest).context(ErrorKind::Store, "look in the store")?;
        if let ImageState::Sound(record) = &known {
            platform::check_record(self.store(), request, record)?;
        }
        Ok(known)
    }

    /// Indexes all layers and installs the record.
    pub(super) async fn index(
        &self,
        request: &ImageRequest,
        repository: &Repository,
        resolved: ResolvedImage,
        extent: Extent<'_>,
        progress: &dyn Progress,
    ) -> Result<(ImageRecord, Vec<String>)> {
        // Checked before the layers are streamed in vain.
        if request.platform_named && resolved.index_digest.is_none() {
            platform::check(request, &access::config(repository, &resolved).await?)?;
        }
        // Objects of this import are not evicted before the record that needs them exists.
        let _pin = self.store().pin().context(ErrorKind::Store, "pin the import")?;
        let limits = request.limits;
        let indexes = layers::index_all(self, repository, &resolved, extent, limits, progress).await?;
        let by_index = indexes.layers.iter().any(|layer| layer.verification.is_by_index());
        let fetched = repository.stats().bytes + self.tier_stats().bytes + indexes.fetched;
        let places = extent.places();
        match self.assemble(request, resolved.clone(), indexes, places, fetched, progress).await {
            Err(error) if by_index && error.kind == ErrorKind::Refused => {
                progress.note(&format!("the index is not used, because the layers do not fit together by it: {error}"));
            }
            done => return done,
        }
        let indexes = layers::index_all(self, repository, &resolved, Extent::Own, limits, progress).await?;
        self.assemble(request, resolved, indexes, &[], repository.stats().bytes, progress).await
    }

    async fn assemble(
        &self,
        request: &ImageRequest,
        resolved: ResolvedImage,
        indexes: Indexes,
        places: &[IndexPlace],
        fetched: u64,
        progress: &dyn Progress,
    ) -> Result<(ImageRecord, Vec<String>)> {
        let Indexes { config, layers, boot, shared, fetched: _ } = indexes;
        let boot = boot.map(|FoundPack { index, place }| {
            let place = place.and_then(|number| places.get(number)).map(|place| place.source.clone());
            assemble::Boot { index, place }
        });
        let fallbacks = layers.iter().filter_map(|layer| layer.fallback.clone()).collect();
        let (name, platform) = (request.source.to_string(), request.platform.to_string());
        let image = assemble::Image { name, platform, manifest: resolved.manifest, config, layers, fetched, boot };
        let store = self.store().clone();
        let assembled = tokio::task::spawn_blocking(move || assemble::assemble(&store, image)).await;
        // Its last layers were copied to the tier meanwhile.
        if let Some(shared) = shared {
            shared.finish().await.iter().for_each(|problem| progress.note(problem));
        }
        let record = assembled.context(ErrorKind::Other, "merge the layers")??;
        Ok((record, fallbacks))
    }
}

/// Indexes each layer from the layer itself, without a record of the image. Streamed content still goes into the store.
pub async fn index_layers(
    images: &Images,
    repository: &Repository,
    image: &ResolvedImage,
    progress: &dyn Progress,
) -> Result<Vec<Layer>> {
    let _pin = images.store().pin().context(ErrorKind::Store, "pin the import")?;
    let limits = LayerLimits::default();
    Ok(layers::index_all(images, repository, image, Extent::Own, limits, progress).await?.layers)
}

/// The indexes that may be used for the image, by the user's choice and the policy.
pub(super) fn rules(request: &ImageRequest, manifest: &Digest, places: &IndexPlaces<'_>) -> Result<Rules> {
    let admission = Admission::of(&request.source, &request.access)?;
    Ok(Rules::of(&request.index, manifest, admission.demands(), places.list()))
}

/// Whether the image may have a boot pack in a registry.
fn may_have_pack(request: &ImageRequest) -> bool {
    let is_wanted = request.profile.is_some() && request.index != IndexChoice::None;
    is_wanted && matches!(request.source, Source::Registry(_))
}

/// Whether the source is a layout or archive that exists.
fn is_there(source: &Source) -> bool {
    match source {
        Source::Registry(_) => false,
        Source::OciLayout { directory, .. } => directory.exists(),
        Source::OciArchive { file, .. } | Source::DockerArchive { file, .. } => file.exists(),
    }
}

/// An error if the request forbids the access check that an isolated store requires of the registry.
fn may_ask(request: &ImageRequest) -> Result<()> {
    tenant::check(&request.text)?;
    refuse_tier(request)?;
    if let Some(layout) = request.index_repos.iter().find(|repo| matches!(repo, IndexRepo::Layout(_))) {
        let cause = format!("{layout} is a path, which proves no access, and the store is of isolation \"tenant\"");
        return Err(Error::new(ErrorKind::Refused, "use the index repositories", cause).hint("use one in a registry"));
    }
    if request.pull != Pull::Never {
        return Ok(());
    }
    let cause = "the store is of isolation \"tenant\", which requires a request to the registry each time, and the pull policy is \"never\"";
    Err(Error::new(ErrorKind::Refused, "open the image", cause).hint("omit the pull policy"))
}

/// An error if the request has a tier, for an isolated store.
fn refuse_tier(request: &ImageRequest) -> Result<()> {
    let Some(tier) = &request.access.tier else { return Ok(()) };
    let cause = format!("{tier} proves no access to an image, and the store is of isolation \"tenant\"");
    Err(Error::new(ErrorKind::Refused, "use the tier", cause).hint("omit --tier and unset $TARPON_TIER"))
}

/// The error when the caller's access could not be determined.
fn unproven(error: Error) -> Error {
    match error.kind {
        ErrorKind::Unavailable => {
            error.hint("the store is of isolation \"tenant\": an image is used only after its registry granted access")
        }
        _ => error,
    }
}
