//! Makes the index of an image, and publishes it.

use bytes::Bytes;
use futures::FutureExt as _;
use serde::Serialize;
use tarpon_images::index::artifact;
use tarpon_images::index::places::{IndexPlaces, access_to, shown};
use tarpon_images::prepare::layer::Layer;
use tarpon_images::prepare::preparation::index_layers;
use tarpon_images::progress::Progress;
use tarpon_images::{Access, DEFAULT_PROFILE, ImageRequest, Images, PREDICTED_PROFILE, access, admission};
use tarpon_layer::LayerIndex;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, EMPTY_CONFIG, NewDescriptor, RunConfig, Source};
use tarpon_policy::SigningKey;
use tarpon_registry::{Destination, Repository, ResolvedImage};
use tarpon_store::Store;
use tarpon_trace::Trace;

use super::boot::{self, BootPack, Packer, Start};
use super::packs::{self, Published};
use super::readers::check_readers;
use super::sign::sign;
use crate::{Error, ErrorKind, Result, ResultExt};

/// The index of an image, ready to be published.
#[derive(Debug, Clone, Serialize)]
pub struct ImageIndexArtifact {
    /// The image, normalised.
    pub image: String,
    /// Digest of its manifest.
    pub manifest_digest: Digest,
    /// Digest of the artifact's manifest, which `--index` pins.
    pub index_digest: Digest,
    /// Bytes of the index.
    pub index_size: u64,
    /// Compressed bytes of the layers that it covers.
    pub layers_size: u64,
    /// The layers that it covers, lowest first.
    pub layers: Vec<IndexedLayer>,
    /// Its boot packs, one for each profile.
    pub boots: Vec<BootPack>,
    /// The artifact's manifest.
    #[serde(skip)]
    pub(super) manifest: Bytes,
    /// Its blob.
    #[serde(skip)]
    pub(super) blob: Bytes,
}

/// A layer in an index.
#[derive(Debug, Clone, Serialize)]
pub struct IndexedLayer {
    /// Digest of the blob.
    pub digest: Digest,
    /// Compressed bytes.
    pub size: u64,
    /// Entries.
    pub entries: usize,
    /// Places in the middle of the layer where decoding can start, beside those that need no record.
    pub checkpoints: usize,
}

/// Makes the index of an image: reads each layer without a table of contents once, unless that was done before. With traces of starts,
/// the index is cut to fit them, and has a boot pack for each. Packs of other profiles in the newest index of the image are kept, unless that
/// would copy contents of a private image to another repository.
pub async fn make_index(
    images: &Images,
    request: &ImageRequest,
    traces: &[Trace],
    progress: &dyn Progress,
) -> Result<ImageIndexArtifact> {
    let starts: Vec<Start> = traces.iter().map(Start::traced).collect();
    let predicted = if starts.is_empty() { Predicted::None } else { Predicted::Kept };
    index_for(images, request, starts, predicted, None, progress).await?.ok_or_else(needless)
}

/// As [`make_index`] without traces, for an index that will be published at `destination`.
pub async fn make_plain_index(
    images: &Images,
    request: &ImageRequest,
    destination: &Source,
    progress: &dyn Progress,
) -> Result<ImageIndexArtifact> {
    let made = index_for(images, request, Vec::new(), Predicted::None, Some(destination), progress).await?;
    made.ok_or_else(needless)
}

/// As [`make_index`], with a pack of the predicted start of the image's command, unless a recorded default one is kept. `destination` is where
/// the index will be published: an index repository may have readers of its own, so it gets no predicted contents of an image that not
/// everybody may read.
pub async fn make_predicted_index(
    images: &Images,
    request: &ImageRequest,
    destination: &Source,
    progress: &dyn Progress,
) -> Result<ImageIndexArtifact> {
    find_predicted_index(images, request, destination, progress).await?.ok_or_else(needless)
}

/// As [`make_predicted_index`]. None: each layer has a table of contents, and nothing is predicted.
pub(super) async fn find_predicted_index(
    images: &Images,
    request: &ImageRequest,
    destination: &Source,
    progress: &dyn Progress,
) -> Result<Option<ImageIndexArtifact>> {
    index_for(images, request, Vec::new(), Predicted::New, Some(destination), progress).await
}

/// As [`make_index`], with the trace of a learned start. The contents of a predicted pack, beside which it may have been learned, are part of
/// the start.
pub(super) async fn make_learned_index(
    images: &Images,
    request: &ImageRequest,
    trace: &Trace,
    progress: &dyn Progress,
) -> Result<ImageIndexArtifact> {
    let starts = vec![Start::learned(trace)];
    index_for(images, request, starts, Predicted::Kept, None, progress).await?.ok_or_else(needless)
}

/// As [`make_index`], with packs derived from those of another image: of `profile`, or all packs of the newest index in its
/// repository. Nothing is run for it.
pub async fn make_index_from(
    images: &Images,
    request: &ImageRequest,
    old: &str,
    profile: Option<&str>,
    progress: &dyn Progress,
) -> Result<ImageIndexArtifact> {
    let source = old.parse().context(ErrorKind::NotFound, "read the image's name")?;
    let old = ImageRequest { text: old.to_owned(), source, ..request.clone() };
    let repository = access::open(&old.text, &old.access).await?;
    let image = admission::resolve(&repository, &old.access, &old.platform).await?;
    let found = packs::kept(&IndexPlaces::of(&old)?, &repository, &image).await?;
    found.notes.iter().for_each(|note| progress.note(note));
    // What is predicted for the old image is not what the new one reads.
    let is_wanted =
        |start: &Start| profile.is_none_or(|profile| start.profile == profile) && start.profile != PREDICTED_PROFILE;
    let starts: Vec<Start> = found.packs.into_iter().map(|pack| pack.start).filter(is_wanted).collect();
    if starts.is_empty() {
        let which = profile.map_or_else(|| "no boot pack".to_owned(), |profile| format!("no boot pack {profile:?}"));
        let cause = format!("{} has {which}", image.name);
        return Err(Error::new(ErrorKind::NotFound, "take boot packs over", cause));
    }
    index_for(images, request, starts, Predicted::Kept, None, progress).await?.ok_or_else(needless)
}

/// What becomes of the pack of the predicted start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Predicted {
    /// The index has none.
    None,
    /// One that is published already stays, unless it would be copied to another repository or the index has a recorded default pack.
    Kept,
    /// One is made.
    New,
}

/// The error for an image that needs neither an index nor a pack.
fn needless() -> Error {
    let cause = "each of its layers has a table of contents of its own";
    Error::new(ErrorKind::Refused, "make the index", cause).hint("it mounts lazily as it is")
}

/// `at`: where the index will be published, if that is not where the request names. None: the index would be empty.
async fn index_for(
    images: &Images,
    request: &ImageRequest,
    mut starts: Vec<Start>,
    predicted: Predicted,
    at: Option<&Source>,
    progress: &dyn Progress,
) -> Result<Option<ImageIndexArtifact>> {
    each_once(&starts)?;
    let repository = access::open(&request.text, &request.access).await?;
    let image = admission::resolve(&repository, &request.access, &request.platform).await?;
    let part = images.for_image(&request.text, &request.access)?;
    let places = IndexPlaces::of(request)?;
    let layers = index_layers(&part, &repository, &image, progress).boxed();
    // Without the list of packs there is no index, so its error does not wait for the whole image.
    let (layers, found) = futures::try_join!(layers, packs::kept(&places, &repository, &image).boxed())?;
    let is_needed = !starts.is_empty() || layers.iter().any(boot::is_described);
    if !is_needed && predicted == Predicted::None {
        return Ok(None);
    }
    found.notes.iter().for_each(|note| progress.note(note));
    // Where the request names no place, nothing can be published.
    let named = || destination(request).map_or_else(|_| request.source.clone(), |(place, _)| place);
    let destination = at.cloned().unwrap_or_else(named);
    let stays = |kept: &Published| kept.pack.is_at(&destination, &request.source);
    // The version stands for a pack that the new index has, too.
    let kept_version = found.prediction.filter(|_| found.packs.iter().all(stays));
    // The caller knows that contents of a learned start may be published.
    let published = found.packs.iter().find(|kept| kept.start.profile == PREDICTED_PROFILE);
    let published = published.map(|kept| kept.start.pieces.as_slice()).unwrap_or_default();
    starts.iter_mut().filter(|start| start.is_partial).for_each(|start| start.pieces.extend_from_slice(published));
    let is_other = |kept: &Published| starts.iter().all(|start| start.profile != kept.start.profile);
    let mut kept: Vec<Published> = found.packs.into_iter().filter(is_other).collect();
    if !kept.iter().all(stays)
        && let Err(error) = check_readers(request, image.manifest.digest(), &destination).boxed().await
    {
        if error.kind != ErrorKind::Forbidden {
            return Err(error);
        }
        progress.note(&format!("the boot packs of the image's other repository are not copied: {error}"));
        kept.retain(stays);
    }
    let has_default =
        starts.iter().chain(kept.iter().map(|kept| &kept.start)).any(|start| start.profile == DEFAULT_PROFILE);
    kept.retain(|kept| {
        let is_wanted = predicted == Predicted::Kept && stays(kept) && !has_default;
        kept.start.profile != PREDICTED_PROFILE || is_wanted
    });
    let config = match predicted {
        Predicted::New if !has_default => Some(predictable(&repository, &image, request, &destination).await),
        _ => None,
    };
    let (store, name) = (part.store().clone(), request.text.clone());
    let packing = tokio::task::spawn_blocking(move || {
        pack(store, &repository, layers, &name, Starts { known: starts, predicted: config }, kept)
    });
    let packed = packing.await.context(ErrorKind::Other, "write the index")??;
    let prediction = if predicted == Predicted::Kept { kept_version } else { packed.prediction };
    packed.notes.iter().for_each(|note| progress.note(note));
    if !is_needed && packed.boots.iter().all(|boot| boot.fit.is_none()) {
        return Ok(None);
    }
    let subject = tarpon_oci::Blob { digest: *image.manifest.digest(), size: image.manifest.bytes.len() as u64 };
    let subject = NewDescriptor::new(image.manifest.media_type.clone(), subject);
    let boots = packed.boots.iter().flat_map(BootPack::descriptors);
    let manifest =
        artifact::manifest(&packed.blob, boots, subject, prediction).context(ErrorKind::Other, "write the index")?;
    Ok(Some(ImageIndexArtifact {
        image: image.name.clone(),
        manifest_digest: *image.manifest.digest(),
        index_digest: *manifest.digest(),
        index_size: packed.blob.len() as u64,
        layers_size: packed.layers.iter().map(|layer| layer.size).sum(),
        layers: packed.layers,
        boots: packed.boots,
        manifest: manifest.into_inner(),
        blob: packed.blob,
    }))
}

/// Where indexes of the image are published, and how that is accessed: the first index repository of the request, else the image's own.
///
/// # Errors
/// The index repository has no place for indexes of the image.
pub fn destination(request: &ImageRequest) -> Result<(Source, Access)> {
    let Some(repo) = request.index_repos.first() else { return Ok((request.source.clone(), request.access.clone())) };
    let Some(place) = repo.place(&request.source) else {
        let cause = format!("{repo} has no place for it: the image is in no registry, or its name is too long");
        return Err(Error::new(ErrorKind::Refused, "choose where the index is published", cause));
    };
    let access = access_to(&place.to_string(), &request.source, &request.access);
    Ok((place, access))
}

/// Publishes an index beside its image, or at `destination`, signed if there is a key. `access` is that of the image.
pub async fn publish_index(
    index: &ImageIndexArtifact,
    destination: &Source,
    access: &Access,
    key: Option<&SigningKey>,
) -> Result<Digest> {
    Upload::contents(index, destination, access).await?.finish(key).await
}

/// An index whose contents are published, but not its manifest, without which they are not found.
pub(super) struct Upload<'a> {
    index: &'a ImageIndexArtifact,
    place: &'a Source,
    access: Access,
    target: Destination,
    step: String,
}

impl<'a> Upload<'a> {
    /// Publishes the contents. `access` is that of the image.
    pub(super) async fn contents(index: &'a ImageIndexArtifact, place: &'a Source, access: &Access) -> Result<Self> {
        let step = format!("publish the index to {}", shown(&place.to_string()));
        let image: Source = index.image.parse().context(ErrorKind::Other, step.clone())?;
        let access_to = |place: &str| access_to(place, &image, access);
        let access_to_place = access_to(&place.to_string());
        let target = access::open_destination(place, &access_to_place)?;
        // For frames that are published, and not in the destination too.
        let blobs = |boot: &BootPack| {
            let place = boot.place.as_deref().unwrap_or(&index.image);
            access::open_later(place, &access_to(place)).map(|repository| repository.blobs())
        };
        let blobs = index.boots.iter().map(blobs).collect::<Result<Vec<_>>>()?;
        let push = async {
            target.push_bytes(Bytes::from_static(EMPTY_CONFIG)).await?;
            target.push_bytes(index.blob.clone()).await?;
            for (boot, blobs) in index.boots.iter().zip(blobs) {
                target.push_bytes(boot.index.clone()).await?;
                match &boot.frames {
                    Some(frames) => drop(target.push_bytes(frames.clone()).await?),
                    None if target.has_blob(boot.blob).await? => {}
                    None => target.copy_blob(boot.blob, blobs).await?,
                }
            }
            Ok(())
        };
        push.boxed().await.map_err(|error| access::registry(step.clone(), error))?;
        Ok(Self { index, place, access: access_to_place, target, step })
    }

    /// Publishes the manifest, and before it the signature if there is a key: from then on the index is found, and where signatures are
    /// demanded, one without is refused.
    pub(super) async fn finish(self, key: Option<&SigningKey>) -> Result<Digest> {
        let Self { index, place, access, target, step } = self;
        if let Some(key) = key {
            sign(key, &index.index_digest, place, &access).boxed().await?;
        }
        let push = target.push_manifest(OCI_MANIFEST, index.manifest.clone(), None);
        push.boxed().await.map_err(|error| access::registry(step, error))
    }
}

/// The starts for which packs are made.
struct Starts {
    known: Vec<Start>,
    /// How the image is started, or why that is not known, if that start is to be predicted.
    predicted: Option<Result<RunConfig>>,
}

/// How the image is started.
///
/// # Errors
/// [`ErrorKind::Forbidden`] if its contents may not be published at `destination`.
async fn predictable(
    repository: &Repository,
    image: &ResolvedImage,
    request: &ImageRequest,
    destination: &Source,
) -> Result<RunConfig> {
    check_readers(request, image.manifest.digest(), destination).boxed().await?;
    let config = repository.config(image).boxed().await;
    config.map(|config| config.run).map_err(|error| access::registry("read the image's config", error))
}

/// The parts of an artifact.
struct Packed {
    layers: Vec<IndexedLayer>,
    blob: Bytes,
    boots: Vec<BootPack>,
    /// The version of the prediction, if it had a result that another attempt would not change.
    prediction: Option<u32>,
    notes: Vec<String>,
}

/// An error if a profile has several packs.
fn each_once(starts: &[Start]) -> Result<()> {
    let mut names = std::collections::HashSet::new();
    let twice = starts.iter().map(|start| &start.profile).find(|profile| !names.insert(*profile));
    twice.map_or(Ok(()), |profile| {
        let cause = format!("two traces are of the profile {profile:?}");
        Err(Error::new(ErrorKind::Refused, "make the index", cause).hint("`tarpon trace merge` makes one of several"))
    })
}

fn pack(
    store: Store,
    repository: &Repository,
    mut layers: Vec<Layer>,
    name: &str,
    starts: Starts,
    kept: Vec<Published>,
) -> Result<Packed> {
    let Starts { known: mut starts, predicted } = starts;
    let (mut boots, mut notes) = (Vec::with_capacity(starts.len() + kept.len()), Vec::new());
    let mut prediction = None;
    let has_traces = !starts.is_empty();
    // Moved, not copied: they have an entry for each file and chunk of the image.
    let mut indexes: Vec<LayerIndex> = layers.iter_mut().map(|layer| std::mem::take(&mut layer.index)).collect();
    if has_traces || predicted.is_some() || !kept.is_empty() {
        let packer = Packer::new(store, repository, &layers, &indexes, name)?;
        let predicted = predicted.map(|config| packer.predict(&indexes, &config?));
        prediction = predicted.as_ref().filter(|start| is_final(start)).map(|_| tarpon_prediction::VERSION);
        match predicted {
            Some(Ok(start)) => starts.extend(start),
            // The index is worth as much as before.
            Some(Err(error)) => notes.push(format!("no start is predicted: {error}")),
            None => {}
        }
        // Kept packs hold whole chunks of the index that they were made with.
        let cut_for = starts.iter().chain(kept.iter().map(|kept| &kept.start));
        packer.cut(&layers, &mut indexes, cut_for)?;
        for (start, pack) in starts.iter().zip(packer.packs(&layers, &indexes, &starts)?) {
            match pack {
                Some(pack) => boots.push(pack),
                None => notes.push(format!("the image has nothing of what the start {} touched", start.profile)),
            }
        }
    }
    if boots.is_empty() && has_traces {
        let cause = "the image has nothing of what was touched";
        return Err(Error::new(ErrorKind::Refused, "make the boot pack", cause));
    }
    boots.extend(kept.into_iter().map(|kept| kept.pack));
    // The same packs make the same index, whichever of them is new.
    boots.sort_by(|one, other| one.profile.cmp(&other.profile));
    let indexed = boot::indexed(&layers, indexes);
    let described = indexed.iter().map(|layer| IndexedLayer {
        digest: layer.blob.digest,
        size: layer.blob.size,
        entries: layer.index.entries.len(),
        checkpoints: layer.index.checkpoints.len(),
    });
    let blob = artifact::blob(&indexed).map_err(|cause| Error::new(ErrorKind::Other, "write the index", cause))?;
    Ok(Packed { layers: described.collect(), blob, boots, prediction, notes })
}

/// Whether a later prediction by the same code would have the same result.
fn is_final(predicted: &Result<Option<Start>>) -> bool {
    predicted.as_ref().err().is_none_or(|error| error.kind == ErrorKind::Forbidden)
}
