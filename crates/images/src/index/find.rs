//! Finding an index for an image: the pinned one, one that the image names itself, or one that the registry lists.
//!
//! A faulty index never prevents a mount: the layers are then streamed, as if there were none, and one line gives the reason.

use bytes::Bytes;
use tarpon_fetch::BootIndex;
use tarpon_layer::Allowance;
use tarpon_oci::{Artifact, Blob, Descriptor, Digest, MediaType, Verified, limits};
use tarpon_policy::PublicKey;
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::{LayerKind, Verification};

use super::artifact::{self, ARTIFACT_TYPE, BLOB_TYPE, BOOT_INDEX_TYPE, Indexed, PROFILE};
use super::pack::PackWanted;
use super::search_result::{CANDIDATES, SearchResult, Usable, whole};
use super::soci::{self, SociIndex};
use crate::admission;
use crate::image::{DEFAULT_PROFILE, IndexChoice};

/// Whether a request is needed to know that there is no index.
pub fn may_have(choice: &IndexChoice, image: &ResolvedImage) -> bool {
    let is_chosen = match choice {
        // Without keys no signature verifies.
        IndexChoice::None | IndexChoice::Signed => false,
        IndexChoice::SignedBy(keys) => !keys.is_empty(),
        IndexChoice::Locked(lock) => lock.index_of(image.manifest.digest()).is_some(),
        IndexChoice::Pinned(_) | IndexChoice::Registry => true,
    };
    is_chosen || soci::is_named(image)
}

/// Looks for indexes of `image` that cover layers of `wanted`: first the one that the user chose, then the one that the image names, then
/// others that the user accepts.
pub async fn find(
    choice: &IndexChoice,
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    pack: Option<PackWanted<'_>>,
    allowance: &Allowance,
) -> SearchResult {
    if wanted.is_empty() && pack.is_none() {
        return SearchResult::default();
    }
    let mut found = match choice {
        IndexChoice::None | IndexChoice::Signed => SearchResult::default(),
        IndexChoice::SignedBy(keys) => signed(keys, repository, image, wanted, pack, allowance).await,
        IndexChoice::Pinned(digest) => pinned(digest, repository, image, wanted, pack, (PINNED, allowance)).await,
        IndexChoice::Locked(lock) => match lock.index_of(image.manifest.digest()) {
            Some(digest) => pinned(digest, repository, image, wanted, pack, (LOCKED, allowance)).await,
            None => SearchResult::default(),
        },
        IndexChoice::Registry => listed(repository, image, wanted, pack, allowance).await,
    };
    let rest = found.rest(wanted);
    if !rest.is_empty() {
        found.add(soci::named(repository, image, &rest, allowance).await);
    }
    let rest = found.rest(wanted);
    // A list that could not be fetched would make the user wait a second time.
    if !rest.is_empty() && *choice == IndexChoice::Registry && !found.is_list_missing {
        found.add(soci::listed(repository, image, &rest, allowance).await);
    }
    // A missing kind of index is not worth a note where another kind exists, or where none is needed.
    if *choice == IndexChoice::Registry && (!found.layers.is_empty() || wanted.is_empty()) {
        found.notes.retain(|note| !note.starts_with(NONE));
    }
    found
}

const NONE: &str = "no index is used";
/// Reason for using an index: the user named it.
pub const PINNED: &str = "as it was pinned";
/// Reason for using an index: the user's lock names it.
const LOCKED: &str = "as the lock file pins it";

/// The index that the user pinned, of either kind. `why` is the reason.
pub async fn pinned(
    digest: &Digest,
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    pack: Option<PackWanted<'_>>,
    (why, allowance): (&str, &Allowance),
) -> SearchResult {
    let fetched = async {
        let bytes = repository.manifest(digest).await.map_err(|error| error.to_string())?;
        match SociIndex::of(&bytes) {
            Some(index) => index.pinned(repository, image, wanted, allowance).await,
            None => {
                let held = fetch(bytes, repository, image, wanted, pack, allowance).await;
                held.map(|held| held.found(*digest, Verification::IndexPinned))
            }
        }
    };
    match fetched.await {
        Ok(found) => found.because(digest, why),
        Err(reason) => SearchResult::without(format!("the index {digest} is not used: {reason}")),
    }
}

async fn listed(
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    pack: Option<PackWanted<'_>>,
    allowance: &Allowance,
) -> SearchResult {
    let list = match repository.referrers(image.manifest.digest(), ARTIFACT_TYPE).await {
        Ok(list) => list,
        Err(error) => {
            return SearchResult { is_list_missing: true, ..SearchResult::without(format!("{NONE}: {error}")) };
        }
    };
    let mut reason = format!("{} lists none for this image", repository.name());
    // Where the list is an index under a tag, the newest is the last.
    for candidate in list.iter().rev().take(CANDIDATES) {
        let fetched = async {
            let bytes = repository.manifest(&candidate.digest).await.map_err(|error| error.to_string())?;
            fetch(bytes, repository, image, wanted, pack, allowance).await
        };
        match fetched.await {
            Ok(held) => {
                return held
                    .found(candidate.digest, Verification::IndexTrusted)
                    .because(&candidate.digest, "because the registry lists it");
            }
            Err(error) => reason = format!("{}: {error}", candidate.digest),
        }
    }
    SearchResult::without(format!("{NONE}: {reason}"))
}

/// The newest listed index that one of the keys signed. An index is read only after its signature was verified.
async fn signed(
    keys: &[PublicKey],
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    pack: Option<PackWanted<'_>>,
    allowance: &Allowance,
) -> SearchResult {
    let list = match repository.referrers(image.manifest.digest(), ARTIFACT_TYPE).await {
        Ok(list) => list,
        Err(error) => return SearchResult::without(format!("{NONE}: {error}")),
    };
    let mut notes = Vec::new();
    for candidate in list.iter().rev().take(CANDIDATES) {
        let fetched = async {
            check_signed(keys, repository, &candidate.digest).await?;
            let bytes = repository.manifest(&candidate.digest).await.map_err(|error| error.to_string())?;
            fetch(bytes, repository, image, wanted, pack, allowance).await
        };
        match fetched.await {
            Ok(held) => {
                let found = held.found(candidate.digest, Verification::IndexSigned);
                let mut found = found.because(&candidate.digest, "because a key of the policy signed it");
                found.notes.extend(notes);
                return found;
            }
            Err(why) => notes.push(format!("the index {} is not used: {why}", candidate.digest)),
        }
    }
    SearchResult { notes, ..SearchResult::default() }
}

async fn check_signed(keys: &[PublicKey], repository: &Repository, index: &Digest) -> Result<(), String> {
    let signatures = admission::signatures(repository, index).await.map_err(|error| error.to_string())?;
    let mut why = "it has no signature".to_owned();
    for signature in &signatures {
        match signature.signs(keys, index) {
            Ok(()) => return Ok(()),
            Err(reason) => why = reason,
        }
    }
    Err(why)
}

/// The useful parts of an artifact.
struct VerifiedIndex {
    layers: Vec<Indexed>,
    boot: Option<Verified<Bytes>>,
    notes: Vec<String>,
}

impl VerifiedIndex {
    fn found(self, index: Digest, verification: Verification) -> SearchResult {
        let usable = |indexed: Indexed| {
            let format = LayerKind::plain(indexed.compression);
            Usable { indexed, index, verification, format }
        };
        SearchResult {
            layers: self.layers.into_iter().map(usable).collect(),
            notes: self.notes,
            boot: self.boot,
            ..SearchResult::default()
        }
    }
}

/// Reads the artifact whose manifest is `bytes`, if it is about `image`: the indexes of wanted layers, and at the same time the index of
/// the wanted boot pack.
async fn fetch(
    bytes: Verified<Bytes>,
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
    pack: Option<PackWanted<'_>>,
    allowance: &Allowance,
) -> Result<VerifiedIndex, String> {
    let artifact = about(bytes, image)?;
    let blob = match artifact.layers.first() {
        Some(layer) if layer.media_type == MediaType::Other(BLOB_TYPE.to_owned()) => layer.blob(),
        _ => return Err("its content is not that of an index".to_owned()),
    };
    let layers =
        async { if wanted.is_empty() { Ok(Vec::new()) } else { layers(repository, blob, wanted, allowance).await } };
    let (layers, boot) = futures::join!(layers, boot(repository, &artifact, pack));
    let layers = layers?;
    // Without its pack an index is worth as much as before.
    let (boot, notes) = match boot {
        Ok(boot) => (boot, Vec::new()),
        Err(reason) => {
            (None, vec![format!("the boot pack {} is not used: {reason}", pack.map_or("", |pack| pack.profile))])
        }
    };
    if layers.is_empty() && boot.is_none() && (notes.is_empty() || !wanted.is_empty()) {
        return Err("it covers no layer that needs one".to_owned());
    }
    Ok(VerifiedIndex { layers, boot, notes })
}

/// The artifact whose manifest is `bytes`, if it is an index of `image`.
pub fn about(bytes: Verified<Bytes>, image: &ResolvedImage) -> Result<Artifact, String> {
    let artifact = Artifact::parse(bytes).map_err(|error| error.to_string())?;
    if artifact.artifact_type != ARTIFACT_TYPE {
        return Err(format!("it is a {}", artifact.artifact_type));
    }
    let subject = artifact.subject.as_ref().map(|subject| subject.digest);
    if subject != Some(*image.manifest.digest()) {
        return Err("it is about another image".to_owned());
    }
    Ok(artifact)
}

async fn layers(
    repository: &Repository,
    blob: Blob,
    wanted: &[Blob],
    allowance: &Allowance,
) -> Result<Vec<Indexed>, String> {
    if blob.size > limits::INDEX_ARTIFACT_BYTES {
        return Err(format!("it has {} bytes, more than {}", blob.size, limits::INDEX_ARTIFACT_BYTES));
    }
    let bytes = whole(repository, blob).await?;
    allowance.receive(blob.size);
    let (wanted, allowance) = (wanted.to_vec(), allowance.clone());
    let reading = tokio::task::spawn_blocking(move || artifact::read(&bytes, |blob| wanted.contains(blob), &allowance));
    let mut layers = reading.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    layers.dedup_by_key(|layer| layer.blob.digest);
    Ok(layers)
}

/// The index of the wanted boot pack. A missing one is noted only where one could be expected: among others, or under a name of its own.
async fn boot(
    repository: &Repository,
    artifact: &Artifact,
    pack: Option<PackWanted<'_>>,
) -> Result<Option<Verified<Bytes>>, String> {
    let Some(PackWanted { profile, listener }) = pack else { return Ok(None) };
    let mut packs = boots(artifact);
    let Some((_, layer)) = packs.clone().find(|(name, _)| *name == profile) else {
        return match packs.next() {
            None if profile == DEFAULT_PROFILE => Ok(None),
            _ => Err("the index has none of this name".to_owned()),
        };
    };
    if let (Some(listener), Some(frames)) = (listener, artifact::boot_frames(artifact, profile)) {
        listener.found(frames);
    }
    let bytes = boot_index(repository, layer).await?;
    BootIndex::read(&bytes).map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

/// The indexes of an artifact's boot packs, each with the name of its profile.
pub fn boots(artifact: &Artifact) -> impl Iterator<Item = (&str, &Descriptor)> + Clone {
    let is_boot = |layer: &&Descriptor| layer.media_type == MediaType::Other(BOOT_INDEX_TYPE.to_owned());
    artifact.layers.iter().filter(is_boot).filter_map(|layer| Some((layer.annotations.get(PROFILE)?.as_str(), layer)))
}

/// The bytes of the index of a boot pack.
pub async fn boot_index(repository: &Repository, layer: &Descriptor) -> Result<Verified<Bytes>, String> {
    if layer.size > limits::BOOT_INDEX_BYTES {
        return Err(format!("its index has {} bytes, more than {}", layer.size, limits::BOOT_INDEX_BYTES));
    }
    whole(repository, layer.blob()).await
}
