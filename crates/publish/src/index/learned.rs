//! Boot packs of starts that were learned: made and published once for each image, after enough equal starts.
//!
//! Contents of an image that not everybody may read go to the repository of the image alone, unless the user wants otherwise: an index
//! repository has readers of its own. Nothing is requested for an image that the policy rejects.
//!
//! Two hosts that learn the same start publish one pack. A registry has no operation that compares and writes, so each host looks for a pack
//! before it makes one, and again after the upload of the contents, just before the manifest that makes them an index. Two that still
//! meet there publish two correct indexes, of which the newer one is used.

use std::collections::HashMap;
use std::time::SystemTime;

use futures::FutureExt as _;
use serde::Serialize;
use tarpon_client::traces::all_learned;
use tarpon_images::index::find::boots;
use tarpon_images::index::places::{IndexPlaces, shown};
use tarpon_images::progress::Silent;
use tarpon_images::{Access, Admission, DEFAULT_PROFILE, ImageRequest, Images, access, admission};
use tarpon_oci::{Digest, IndexRepo, Platform, Reference, Source};
use tarpon_policy::{SigningKey, signature_tag};
use tarpon_registry::Repository;
use tarpon_store::Store;
use tarpon_trace::Trace;

use super::make::{Upload, destination, make_learned_index};
use super::newest::newest;
use super::readers::check_readers;
use crate::{Error, ErrorKind, Result, ResultExt as _};

/// Equal starts in a row after which a pack is made, unless the user wants another number. One may be a single command in a shell, two a
/// restart after a failure.
pub const DEFAULT_STARTS: u32 = 3;

/// Which learned starts are published, and where.
#[derive(Debug, Clone)]
pub struct LearnedRequest {
    /// The images; none: all.
    pub images: Vec<Source>,
    /// Equal starts in a row after which a pack is made.
    pub after: u32,
    /// Whether an index repository may have contents of images that not everybody may read.
    pub publish_private: bool,
    /// The index repositories: packs go to the first, or else to the repository of each image.
    pub index_repos: Vec<IndexRepo>,
    /// How to access the images.
    pub access: Access,
}

/// An image whose starts were learned on this host.
#[derive(Debug, Clone)]
pub struct LearnedImage {
    /// The image, as the user wrote it.
    pub text: String,
    /// Its repository, with the digest of its manifest.
    pub pinned: Reference,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Of the start that most often was equal: how often in a row.
    pub starts: u32,
    source: Source,
    trace: Trace,
}

/// What was done for an image.
#[derive(Debug, Clone, Serialize)]
pub struct LearnedStart {
    /// The image, as the user wrote it.
    pub image: String,
    /// Digest of its manifest. None: no start of it was learned.
    pub manifest_digest: Option<Digest>,
    /// Equal starts in a row.
    pub starts: u32,
    /// What was done.
    #[serde(flatten)]
    pub state: LearnedState,
}

/// What was done for an image.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum LearnedState {
    /// It has a pack now.
    Published {
        /// Digest of the index with the pack.
        index_digest: Digest,
        /// Bytes of the pack's frames.
        pack_size: u64,
        /// The repository that has them.
        place: String,
    },
    /// It had one.
    Known {
        /// Digest of the index with the pack.
        index_digest: Digest,
        /// The repository that has it.
        place: String,
    },
    /// There were too few equal starts.
    TooFew {
        /// How many are needed.
        after: u32,
    },
    /// It must not be published, or cannot be, for this reason.
    Refused(Failed),
    /// It has none, for this reason.
    Failed(Failed),
}

/// Why nothing was published.
#[derive(Debug, Clone, Serialize)]
pub struct Failed {
    /// The reason, one line.
    pub error: String,
    /// What the user can do, if any remedy is known.
    pub hint: Option<String>,
    /// The kind of failure.
    pub kind: ErrorKind,
}

impl From<Error> for LearnedState {
    fn from(error: Error) -> Self {
        let failed = Failed { error: error.to_string(), kind: error.kind, hint: error.hint };
        match failed.kind {
            ErrorKind::Refused | ErrorKind::Forbidden => Self::Refused(failed),
            _ => Self::Failed(failed),
        }
    }
}

/// The images whose starts were learned, those that started last first. Of starts by several commands the one that most often was equal
/// counts: an image has one default pack.
///
/// # Errors
/// The store cannot be read.
pub fn learned_images(store: &Store) -> Result<Vec<LearnedImage>> {
    let mut images: Vec<(SystemTime, LearnedImage)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (stored, trace) in all_learned(store)? {
        let (text, manifest) = (trace.header.image.clone(), trace.header.manifest);
        // Only images of registries are learned, and the name of anything else is damaged.
        let Ok(source @ Source::Registry(_)) = text.parse::<Source>() else { continue };
        let Source::Registry(reference) = &source else { continue };
        let pinned = reference.pinned(manifest);
        let learned = LearnedImage { text, pinned, manifest, starts: trace.header.starts, source, trace };
        match known.get(&learned.pinned.to_string()) {
            None => {
                known.insert(learned.pinned.to_string(), images.len());
                images.push((stored.modified, learned));
            }
            Some(number) => {
                if let Some((_, other)) = images.get_mut(*number).filter(|(_, other)| other.starts < learned.starts) {
                    *other = learned;
                }
            }
        }
    }
    images.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    Ok(images.into_iter().map(|(_, learned)| learned).collect())
}

impl LearnedImage {
    /// Whether the user means it by this name.
    fn is_named(&self, name: &Source) -> bool {
        let (Source::Registry(name), Source::Registry(own)) = (name, &self.source) else { return false };
        let is_repository = (name.registry(), name.repository()) == (own.registry(), own.repository());
        is_repository
            && match name.digest() {
                Some(digest) => *digest == self.manifest,
                None => name.tag() == own.tag(),
            }
    }
}

/// Makes a boot pack of each image that has enough equal starts and no pack yet, and publishes it, one after another. `done` is called for
/// each image.
///
/// # Errors
/// The store cannot be read. What fails for an image is in its result.
pub async fn publish_learned(
    images: &Images,
    request: &LearnedRequest,
    key: Option<&SigningKey>,
    done: &(dyn Fn(&LearnedStart) + Sync),
) -> Result<Vec<LearnedStart>> {
    let store = images.store().clone();
    let reading = tokio::task::spawn_blocking(move || learned_images(&store));
    let mut learned = reading.await.context(ErrorKind::Other, "list the traces")??;
    let is_missing = |name: &&Source| !learned.iter().any(|learned| learned.is_named(name));
    let missing: Vec<LearnedStart> = request.images.iter().filter(is_missing).map(LearnedStart::missing).collect();
    learned.retain(|learned| request.images.is_empty() || request.images.iter().any(|name| learned.is_named(name)));
    missing.iter().for_each(done);
    let mut all = missing;
    for learned in learned {
        let state = publish_one(images, &learned, request, key).boxed().await.unwrap_or_else(LearnedState::from);
        let LearnedImage { text: image, manifest, starts, .. } = learned;
        let start = LearnedStart { image, manifest_digest: Some(manifest), starts, state };
        done(&start);
        all.push(start);
    }
    Ok(all)
}

impl LearnedStart {
    fn missing(name: &Source) -> Self {
        let image = shown(&name.to_string()).to_owned();
        let error = Error::new(ErrorKind::NotFound, "find its start", "none was learned on this host")
            .hint("`tarpon trace ls` lists the learned starts");
        Self { image, manifest_digest: None, starts: 0, state: error.into() }
    }
}

async fn publish_one(
    images: &Images,
    learned: &LearnedImage,
    request: &LearnedRequest,
    key: Option<&SigningKey>,
) -> Result<LearnedState> {
    if learned.starts < request.after {
        return Ok(LearnedState::TooFew { after: request.after });
    }
    let image = ImageRequest {
        index_repos: request.index_repos.clone(),
        access: request.access.clone(),
        ..ImageRequest::new(
            learned.pinned.to_string(),
            Source::Registry(learned.pinned.clone()),
            // The manifest is that of one platform.
            Platform::host(),
        )
    };
    let (place, access_to_place) = destination(&image)?;
    Admission::of(&image.source, &image.access)?;
    let places = IndexPlaces::of(&image)?;
    check_place(&places, &place, key)?;
    if !request.publish_private {
        check_readers(&image, &learned.manifest, &place).boxed().await?;
    }
    let own = access::open(&image.text, &image.access).await?;
    // Here the policy is obeyed with the signatures of the image.
    admission::resolve(&own, &image.access, &image.platform).boxed().await?;
    let wanted = if key.is_some() { Wanted::Signed } else { Wanted::Any };
    if let Some(known) = known_pack(&places, &own, &learned.manifest, wanted).boxed().await? {
        return Ok(known);
    }
    let mut trace = learned.trace.clone();
    DEFAULT_PROFILE.clone_into(&mut trace.header.profile);
    let made = make_learned_index(images, &image, &trace, &Silent).boxed().await?;
    let upload = Upload::contents(&made, &place, &image.access).boxed().await?;
    let target = access::open_origin(&place.to_string(), &access_to_place)?;
    let known = pack_at(&target, &learned.manifest, wanted).await.map_err(|error| looked(&place, error))?;
    if let Some(index_digest) = known {
        return Ok(LearnedState::Known { index_digest, place: shown(&place.to_string()).to_owned() });
    }
    let index_digest = upload.finish(key).await?;
    let pack_size = made.boots.iter().filter(|boot| boot.profile == DEFAULT_PROFILE).map(|boot| boot.size).sum();
    Ok(LearnedState::Published { index_digest, pack_size, place: shown(&place.to_string()).to_owned() })
}

/// Refuses an index repository whose index no host with this policy would use.
fn check_place(places: &IndexPlaces<'_>, place: &Source, key: Option<&SigningKey>) -> Result<()> {
    let (place, step) = (place.to_string(), "publish a pack");
    let Some(place) = places.list().iter().find(|other| other.source == place) else { return Ok(()) };
    place.demands.check_before().context(ErrorKind::Forbidden, step)?;
    if place.demands.need_signatures() && key.is_none() {
        let why = place.demands.refusal("it demands a signature of what is there");
        return Err(Error::new(ErrorKind::Forbidden, step, why).hint("--sign-by-key signs what is published"));
    }
    Ok(())
}

/// Which packs make another one needless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Any,
    /// Those whose index has a signature. Hosts check it; here it means that a host with a key published the index.
    Signed,
}

/// The pack that the image already has, in an index repository or in its own.
async fn known_pack(
    places: &IndexPlaces<'_>,
    own: &Repository,
    manifest: &Digest,
    wanted: Wanted,
) -> Result<Option<LearnedState>> {
    for (number, place) in places.list().iter().enumerate() {
        // One that the policy rejects is not asked.
        if place.demands.check_before().is_err() {
            continue;
        }
        let source: Source = place.source.parse().context(ErrorKind::Other, "look for a boot pack")?;
        let found = pack_at(&*places.open(number)?, manifest, wanted).await.map_err(|error| looked(&source, error))?;
        if let Some(index_digest) = found {
            return Ok(Some(LearnedState::Known { index_digest, place: shown(&place.source).to_owned() }));
        }
    }
    let failed = |error| access::registry("look for a boot pack in the image's repository", error);
    let found = pack_at(own, manifest, wanted).await.map_err(failed)?;
    let repository = own.name().split('@').next().unwrap_or_default().to_owned();
    Ok(found.map(|index_digest| LearnedState::Known { index_digest, place: repository }))
}

fn looked(place: &Source, error: tarpon_registry::Error) -> Error {
    access::registry(format!("look for a boot pack in {}", shown(&place.to_string())), error)
}

/// The newest readable index of the image there, which is the one that a mount uses, if it has a default pack.
async fn pack_at(
    repository: &Repository,
    manifest: &Digest,
    wanted: Wanted,
) -> std::result::Result<Option<Digest>, tarpon_registry::Error> {
    let Some((digest, artifact)) = newest(repository, manifest).await?.index else { return Ok(None) };
    let has_pack = boots(&artifact).any(|(profile, _)| profile == DEFAULT_PROFILE);
    let is_wanted = has_pack
        && match wanted {
            Wanted::Any => true,
            Wanted::Signed => repository.attached(&signature_tag(&digest)).await?.is_some(),
        };
    Ok(is_wanted.then_some(digest))
}
