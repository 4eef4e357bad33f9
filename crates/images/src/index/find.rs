//! Finding an index for an image: the pinned one, one that the image names itself, or one that the image's repository or an index
//! repository lists.
//!
//! A faulty index never prevents a mount: the layers are then streamed, as if there were none, and one line gives the reason.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use futures::{FutureExt as _, StreamExt as _};
use tarpon_blob::Fault;
use tarpon_fetch::BootIndex;
use tarpon_layer::Allowance;
use tarpon_oci::{Artifact, Blob, Descriptor, Digest, MediaType, Verified, limits};
use tarpon_policy::PublicKey;
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::{LayerKind, Verification};
use tokio::time::Instant;

use super::artifact::{self, ARTIFACT_TYPE, BLOB_TYPE, BOOT_INDEX_TYPE, Indexed, PROFILE};
use super::pack::PackWanted;
use super::places::{IndexPlaces, shown};
use super::rules::{Accepted, Rules};
use super::search_result::{CANDIDATES, FoundPack, SearchResult, Usable};
use super::soci::{self, SociIndex};
use super::whole::whole;
use crate::admission;
use crate::image::DEFAULT_PROFILE;

/// How long an index of an index repository may take, with its signatures and the index of its boot pack, and with all indexes that were tried
/// before it there: 10 MiB at 1.5 Mbit/s. Streaming the layers would take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an index repository may take to list its indexes: enough for handshakes and a token over the slowest links. An image must not wait
/// longer for a registry that it does not need.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// What is looked for, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The layers that need an index.
    pub(crate) layers: &'a [Blob],
    /// The boot pack.
    pub(crate) pack: Option<PackWanted<'a>>,
    /// What reading may cost.
    pub(crate) allowance: &'a Allowance,
}

/// Which indexes are accepted, and the index repositories that may have one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) places: &'a IndexPlaces<'a>,
}

impl Choice<'_> {
    /// Whether a request is needed to know that there is no index.
    pub(crate) fn may_have(&self, image: &ResolvedImage) -> bool {
        self.rules.accept_any() || soci::is_named(image)
    }
}

/// Looks for indexes of `image` that cover layers of `wanted`: first the one that the user chose, then the one that the image names, then
/// others that the user accepts.
pub(crate) async fn find(
    choice: Choice<'_>,
    repository: &Repository,
    image: &ResolvedImage,
    wanted: Wanted<'_>,
) -> SearchResult {
    if wanted.layers.is_empty() && wanted.pack.is_none() {
        return SearchResult::default();
    }
    let Choice { rules, places } = choice;
    let opened: Vec<_> = (0..places_needed(choice)).map(|number| places.open(number)).collect();
    let spots = spots(choice, &opened, repository);
    let search = Search { rules, image, wanted };
    let mut found = match rules.pinned {
        Some((digest, why)) => search.pinned(&digest, why, &spots).boxed().await,
        None => search.listed(&spots).boxed().await,
    };
    found.fetched = opened.iter().flatten().map(|repository| repository.stats().bytes).sum();
    let rest = found.rest(wanted.layers);
    if !rest.is_empty() {
        found.add(soci::named(repository, image, &rest, wanted.allowance).boxed().await);
    }
    let rest = found.rest(wanted.layers);
    // A list that could not be fetched would make the user wait a second time.
    if !rest.is_empty() && rules.trusts_own_list && !found.is_list_missing {
        found.add(soci::listed(repository, image, &rest, wanted.allowance).boxed().await);
    }
    // A missing kind of index is not worth a note where another kind exists, or where none is needed.
    if rules.trusts_own_list && (!found.layers.is_empty() || wanted.layers.is_empty()) {
        found.notes.retain(|note| !note.starts_with(NONE));
    }
    found
}

/// The index with this digest, in the repository of `image` or in an index repository, of either kind.
pub async fn with_digest(
    digest: &Digest,
    places: &IndexPlaces<'_>,
    repository: &Repository,
    image: &ResolvedImage,
    layers: &[Blob],
) -> SearchResult {
    let (rules, allowance) = (Rules::pinned(*digest, places.list()), Allowance::default());
    let choice = Choice { rules: &rules, places };
    find(choice, repository, image, Wanted { layers, pack: None, allowance: &allowance }).boxed().await
}

const NONE: &str = "no index is used";

/// A repository that may have indexes.
struct Spot<'a> {
    /// The number and the name of the index repository; `None`: it is the image's repository.
    place: Option<(usize, &'a str)>,
    repository: Result<&'a Repository, String>,
    accepted: &'a Accepted,
}

/// The number of index repositories that are needed.
fn places_needed(choice: Choice<'_>) -> usize {
    if choice.rules.accept_any() { choice.places.list().len() } else { 0 }
}

/// The repositories in the order in which an index of them is used: those of the user, who can put there what the image's repository lacks,
/// then that of the image.
fn spots<'a>(
    choice: Choice<'a>,
    opened: &'a [crate::Result<Arc<Repository>>],
    repository: &'a Repository,
) -> Vec<Spot<'a>> {
    let rules = choice.rules;
    let mut spots: Vec<Spot<'a>> = Vec::with_capacity(opened.len() + 1);
    for (number, (opened, place)) in opened.iter().zip(choice.places.list()).enumerate() {
        let accepted = rules.places.get(number).unwrap_or(&Accepted::Nothing);
        let repository = opened.as_deref().map_err(ToString::to_string);
        spots.push(Spot { place: Some((number, shown(&place.source))), repository, accepted });
    }
    spots.push(Spot { place: None, repository: Ok(repository), accepted: &rules.own });
    spots.retain(|spot| rules.pinned.is_some() || *spot.accepted != Accepted::Nothing);
    spots
}

impl Spot<'_> {
    fn number(&self) -> Option<usize> {
        self.place.map(|(number, _)| number)
    }

    /// "of PLACE ", or nothing for the image's repository.
    fn of(&self) -> String {
        self.place.map(|(_, name)| format!("of {name} ")).unwrap_or_default()
    }

    fn name(&self) -> &str {
        match (self.place, &self.repository) {
            (Some((_, name)), _) => name,
            (None, Ok(repository)) => repository.name(),
            (None, Err(_)) => "",
        }
    }

    /// The answer of the repository, which has less time if the image does not need it.
    async fn answer<T>(
        &self,
        ask: impl AsyncFnOnce(&Repository) -> Result<T, tarpon_registry::Error>,
    ) -> Result<T, (Fault, String)> {
        let repository = self.repository.as_ref().map_err(|error| (Fault::Refused, error.clone()))?;
        let asked = async { ask(repository).await.map_err(|error| (error.fault(), error.to_string())) };
        if self.place.is_none() {
            return asked.await;
        }
        let late = |_| (Fault::Timeout, format!("no answer within {} s", LIST_TIMEOUT.as_secs()));
        tokio::time::timeout(LIST_TIMEOUT, asked).await.map_err(late).and_then(|answer| answer)
    }

    /// Checks that one of the keys signed the index, if one has to.
    async fn check_signed(&self, index: &Digest) -> Result<(), String> {
        match self.accepted {
            Accepted::SignedBy(keys) => check_signed(keys, self.repository.clone()?, index).await,
            _ => Ok(()),
        }
    }

    /// The time by which its indexes must be read, if the image does not need the repository.
    fn deadline(&self) -> Option<Instant> {
        self.place.map(|_| Instant::now() + READ_TIMEOUT)
    }

    /// The listed indexes of the image, the most recent last.
    async fn list(&self, image: &Digest) -> Result<Vec<Descriptor>, String> {
        if let Accepted::Refused(why) = self.accepted {
            return Err(why.clone());
        }
        match self.answer(async |repository| repository.referrers(image, ARTIFACT_TYPE).await).await {
            // A repository or layout without any index need not exist.
            Err((Fault::NotFound, _)) if self.place.is_some() => Ok(Vec::new()),
            answer => answer.map_err(|(_, why)| why),
        }
    }

    async fn manifest(&self, digest: &Digest) -> Result<Verified<Bytes>, String> {
        match self.accepted {
            Accepted::Refused(why) => return Err(why.clone()),
            Accepted::Nothing if self.place.is_some() => {
                return Err("the policy demands signatures there, and names no key".to_owned());
            }
            _ => {}
        }
        self.answer(async |repository| repository.manifest(digest).await).await.map_err(|(_, why)| why)
    }
}

/// An index of a repository, read in time.
async fn in_time<T>(deadline: Option<Instant>, read: BoxFuture<'_, Result<T, String>>) -> Result<T, String> {
    let Some(deadline) = deadline else { return read.await };
    let late = |_| format!("it was not received within {} s", READ_TIMEOUT.as_secs());
    tokio::time::timeout_at(deadline, read).await.map_err(late).and_then(|read| read)
}

/// The answers of repositories, in the order of the repositories. All are asked at the same time.
struct Answers<'a, T> {
    awaited: FuturesOrdered<BoxFuture<'a, T>>,
    /// Those that came while an earlier one was used: at most one of each repository.
    early: VecDeque<T>,
}

impl<'a, T> Answers<'a, T> {
    fn new(requests: impl Iterator<Item = BoxFuture<'a, T>>) -> Self {
        Self { awaited: requests.collect(), early: VecDeque::new() }
    }

    async fn next(&mut self) -> Option<T> {
        match self.early.pop_front() {
            Some(answer) => Some(answer),
            None => self.awaited.next().await,
        }
    }

    /// The output of `used`, which uses an answer. The time of the other requests goes on meanwhile, and so do they.
    async fn during<U>(&mut self, used: impl Future<Output = U>) -> U {
        tokio::pin!(used);
        loop {
            tokio::select! {
                biased;
                output = &mut used => return output,
                Some(answer) = self.awaited.next() => self.early.push_back(answer),
            }
        }
    }
}

/// A search in several repositories.
struct Search<'a> {
    rules: &'a Rules,
    image: &'a ResolvedImage,
    wanted: Wanted<'a>,
}

impl Search<'_> {
    /// The index that the user pinned, of either kind. All repositories are asked at the same time.
    async fn pinned(&self, digest: &Digest, why: &str, spots: &[Spot<'_>]) -> SearchResult {
        let ask = |spot| async move { (spot, Spot::manifest(spot, digest).await) }.boxed();
        let mut answers = Answers::new(spots.iter().map(ask));
        let mut reasons = Vec::new();
        while let Some((spot, manifest)) = answers.next().await {
            let read = match manifest {
                Ok(bytes) => {
                    let read = in_time(spot.deadline(), self.read_pinned(spot, digest, bytes).boxed());
                    answers.during(read).await
                }
                Err(why) => Err(why),
            };
            match read {
                Ok(found) => return found.because(digest, &spot.of(), why),
                Err(why) => reasons.push(spot.place.map_or_else(|| why.clone(), |(_, name)| format!("{name}: {why}"))),
            }
        }
        SearchResult::without(format!("the index {digest} is not used: {}", reasons.join("; ")))
    }

    async fn read_pinned(
        &self,
        spot: &Spot<'_>,
        digest: &Digest,
        bytes: Verified<Bytes>,
    ) -> Result<SearchResult, String> {
        let Wanted { layers, allowance, .. } = self.wanted;
        spot.check_signed(digest).await?;
        match SociIndex::of(&bytes) {
            Some(index) => index.pinned(spot.repository.clone()?, self.image, layers, allowance).await,
            None => {
                let held = self.fetch(spot, bytes, &[]).await?;
                Ok(held.found(*digest, Verification::IndexPinned, spot.number()))
            }
        }
    }

    /// An accepted index of the first repository that has one. All are asked for their lists at the same time.
    async fn listed(&self, spots: &[Spot<'_>]) -> SearchResult {
        let image = self.image.manifest.digest();
        let ask = |spot| async move { (spot, Spot::list(spot, image).await) }.boxed();
        let mut answers = Answers::new(spots.iter().map(ask));
        let (mut notes, mut empty, mut own, mut is_list_missing) = (Vec::new(), Vec::new(), None, false);
        while let Some((spot, list)) = answers.next().await {
            let is_own = spot.place.is_none();
            let list = match list {
                Ok(list) => list,
                Err(why) if is_own => {
                    (own, is_list_missing) = (Some(why), true);
                    continue;
                }
                Err(why) => {
                    notes.push(format!("no index {}is used: {why}", spot.of()));
                    continue;
                }
            };
            if list.is_empty() {
                empty.push(spot.name());
            }
            let (found, refused) = answers.during(self.first_usable(spot, &list)).await;
            for (digest, why) in refused {
                if is_own && *spot.accepted == Accepted::Listed {
                    own = Some(format!("{digest}: {why}"));
                } else {
                    notes.push(format!("the index {digest} {}is not used: {why}", spot.of()));
                }
            }
            if let Some(mut found) = found {
                found.notes.extend(notes);
                return found;
            }
        }
        // A user who accepts only signed indexes, or has a repository for some images, expects none of most images.
        if self.rules.trusts_own_list && !empty.is_empty() {
            let lists = if empty.len() == 1 { "lists" } else { "list" };
            let none = format!("{} {lists} none for this image", empty.join(" and "));
            own = Some(own.map_or_else(|| none.clone(), |own| format!("{none}; {own}")));
        }
        notes.extend(own.map(|why| format!("{NONE}: {why}")));
        SearchResult { notes, is_list_missing, ..SearchResult::default() }
    }

    /// The most recent listed index that can be used, and why those after it cannot. They share the time that the repository has.
    async fn first_usable(
        &self,
        spot: &Spot<'_>,
        list: &[Descriptor],
    ) -> (Option<SearchResult>, Vec<(Digest, String)>) {
        let (deadline, mut refused) = (spot.deadline(), Vec::new());
        for candidate in list.iter().rev().take(CANDIDATES) {
            match in_time(deadline, self.read_listed(spot, candidate).boxed()).await {
                Ok(found) => return (Some(found), refused),
                Err(why) => refused.push((candidate.digest, why)),
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
        }
        (None, refused)
    }

    /// A listed index. It is read only after its signature was verified, if it needs one.
    async fn read_listed(&self, spot: &Spot<'_>, entry: &Descriptor) -> Result<SearchResult, String> {
        let digest = &entry.digest;
        let (verification, why) = match spot.accepted {
            Accepted::SignedBy(_) => (Verification::IndexSigned, "because a key of the policy signed it"),
            _ if spot.place.is_some() => (Verification::IndexTrusted, "because the index repository lists it"),
            _ => (Verification::IndexTrusted, "because the registry lists it"),
        };
        // Requested with its signatures and its blobs, which saves round trips. All are parsed after the signatures.
        let layers = artifact::listed_layers(entry);
        let blobs = async { Ok(self.fetch_ahead(spot, &layers).await) };
        let ((), bytes, blobs) = futures::try_join!(spot.check_signed(digest), spot.manifest(digest), blobs)?;
        let held = self.fetch(spot, bytes, &blobs).await?;
        Ok(held.found(*digest, verification, spot.number()).because(digest, &spot.of(), why))
    }

    /// The wanted blobs among the layers of an artifact that a list shows, or why they cannot be fetched. The pack of an index that needs a
    /// signature waits for it.
    async fn fetch_ahead(&self, spot: &Spot<'_>, layers: &[Descriptor]) -> Vec<Fetched> {
        let Wanted { layers: wanted, pack, .. } = self.wanted;
        let Ok(repository) = spot.repository else { return Vec::new() };
        if !matches!(spot.accepted, Accepted::SignedBy(_)) {
            notify(pack, layers, spot.number());
        }
        let index = layers
            .first()
            .filter(|layer| is_index(layer) && layer.size <= limits::INDEX_ARTIFACT_BYTES && !wanted.is_empty());
        let boot = pack.and_then(|pack| artifact::boot_index(layers, pack.profile));
        let boot = boot.filter(|layer| layer.size <= limits::BOOT_INDEX_BYTES);
        let fetch = |layer: &Descriptor| {
            let blob = layer.blob();
            async move { Fetched { blob, bytes: whole(repository, blob).await } }.boxed()
        };
        futures::future::join_all(index.into_iter().chain(boot).map(fetch)).await
    }

    /// Reads the artifact whose manifest is `bytes`, if it is about the image: the indexes of wanted layers, and at the same time the index
    /// of the wanted boot pack. Those among `blobs` are not requested.
    async fn fetch(&self, spot: &Spot<'_>, bytes: Verified<Bytes>, blobs: &[Fetched]) -> Result<VerifiedIndex, String> {
        let Wanted { layers: wanted, pack, allowance } = self.wanted;
        let repository = spot.repository.clone()?;
        let artifact = about(bytes, self.image.manifest.digest())?;
        let blob = match artifact.layers.first() {
            Some(layer) if is_index(layer) => layer.blob(),
            _ => return Err("its content is not that of an index".to_owned()),
        };
        let layers = async {
            if wanted.is_empty() { Ok(Vec::new()) } else { layers(repository, blob, blobs, wanted, allowance).await }
        };
        let (layers, boot) = futures::join!(layers, boot(repository, &artifact, pack, blobs, spot.number()));
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
}

/// The signature of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignedBy {
    /// It has no signature.
    None,
    /// One of the keys.
    Key,
    /// No signature is by one of the keys for this index, for this reason.
    Other(String),
}

/// Who signed the index in this repository, as far as the keys show.
///
/// # Errors
/// Its signatures cannot be read: one line.
pub async fn signed_by(keys: &[PublicKey], repository: &Repository, index: &Digest) -> Result<SignedBy, String> {
    let signatures = admission::signatures(repository, index).await.map_err(|error| error.to_string())?;
    let mut signed = SignedBy::None;
    for signature in &signatures {
        match signature.signs(keys, index) {
            Ok(()) => return Ok(SignedBy::Key),
            Err(reason) => signed = SignedBy::Other(reason),
        }
    }
    Ok(signed)
}

async fn check_signed(keys: &[PublicKey], repository: &Repository, index: &Digest) -> Result<(), String> {
    match signed_by(keys, repository, index).await? {
        SignedBy::Key => Ok(()),
        SignedBy::None => Err("it has no signature".to_owned()),
        SignedBy::Other(why) => Err(why),
    }
}

/// The useful parts of an artifact.
struct VerifiedIndex {
    layers: Vec<Indexed>,
    boot: Option<Verified<Bytes>>,
    notes: Vec<String>,
}

impl VerifiedIndex {
    /// `place`: the number of the index repository that has it.
    fn found(self, index: Digest, verification: Verification, place: Option<usize>) -> SearchResult {
        let usable = |indexed: Indexed| {
            let format = LayerKind::plain(indexed.compression);
            Usable { indexed, index, verification, format }
        };
        SearchResult {
            layers: self.layers.into_iter().map(usable).collect(),
            notes: self.notes,
            boot: self.boot.map(|index| FoundPack { index, place }),
            ..SearchResult::default()
        }
    }
}

/// The artifact whose manifest is `bytes`, if it is an index of the image with the manifest `image`.
pub fn about(bytes: Verified<Bytes>, image: &Digest) -> Result<Artifact, String> {
    let artifact = Artifact::parse(bytes).map_err(|error| error.to_string())?;
    if artifact.artifact_type != ARTIFACT_TYPE {
        return Err(format!("it is a {}", artifact.artifact_type));
    }
    let subject = artifact.subject.as_ref().map(|subject| subject.digest);
    if subject != Some(*image) {
        return Err("it is about another image".to_owned());
    }
    Ok(artifact)
}

/// Whether it is the blob with the indexes of layers.
fn is_index(layer: &Descriptor) -> bool {
    layer.media_type == MediaType::Other(BLOB_TYPE.to_owned())
}

/// A blob that was requested before the manifest named it.
struct Fetched {
    blob: Blob,
    bytes: Result<Verified<Bytes>, String>,
}

/// The blob: one of `blobs`, or requested. One that could not be fetched is not requested again: that took all the time that it may take.
async fn fetched(repository: &Repository, blob: Blob, blobs: &[Fetched]) -> Result<Verified<Bytes>, String> {
    match blobs.iter().find(|known| known.blob == blob) {
        Some(known) => known.bytes.clone(),
        None => whole(repository, blob).await,
    }
}

async fn layers(
    repository: &Repository,
    blob: Blob,
    blobs: &[Fetched],
    wanted: &[Blob],
    allowance: &Allowance,
) -> Result<Vec<Indexed>, String> {
    if blob.size > limits::INDEX_ARTIFACT_BYTES {
        return Err(format!("it has {} bytes, more than {}", blob.size, limits::INDEX_ARTIFACT_BYTES));
    }
    let bytes = fetched(repository, blob, blobs).await?;
    allowance.receive(blob.size);
    let (wanted, allowance) = (wanted.to_vec(), allowance.clone());
    let reading = tokio::task::spawn_blocking(move || artifact::read(&bytes, |blob| wanted.contains(blob), &allowance));
    reading.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// The index of the wanted boot pack. A missing one is noted only where one could be expected: among others, or under a name of its own.
async fn boot(
    repository: &Repository,
    artifact: &Artifact,
    pack: Option<PackWanted<'_>>,
    blobs: &[Fetched],
    place: Option<usize>,
) -> Result<Option<Verified<Bytes>>, String> {
    let Some(PackWanted { profile, .. }) = pack else { return Ok(None) };
    let Some(layer) = artifact::boot_index(&artifact.layers, profile) else {
        return match boots(artifact).next() {
            None if profile == DEFAULT_PROFILE => Ok(None),
            _ => Err("the index has none of this name".to_owned()),
        };
    };
    notify(pack, &artifact.layers, place);
    let bytes = boot_index_among(repository, layer, blobs).await?;
    BootIndex::read(&bytes).map_err(|error| error.to_string())?;
    Ok(Some(bytes))
}

/// Passes the place of the wanted pack on, if the layers of an artifact have it. A predicted one waits for a start.
fn notify(pack: Option<PackWanted<'_>>, layers: &[Descriptor], place: Option<usize>) {
    let Some(PackWanted { profile, starts, listener: Some(listener) }) = pack else { return };
    if let Some((frames, is_predicted)) = artifact::boot_frames(layers, profile)
        && (starts || !is_predicted)
    {
        listener.found(frames, place);
    }
}

/// The indexes of an artifact's boot packs, each with the name of its profile.
pub fn boots(artifact: &Artifact) -> impl Iterator<Item = (&str, &Descriptor)> + Clone {
    boots_among(&artifact.layers)
}

fn boots_among(layers: &[Descriptor]) -> impl Iterator<Item = (&str, &Descriptor)> + Clone {
    let is_boot = |layer: &&Descriptor| layer.media_type == MediaType::Other(BOOT_INDEX_TYPE.to_owned());
    layers.iter().filter(is_boot).filter_map(|layer| Some((layer.annotations.get(PROFILE)?.as_str(), layer)))
}

/// The bytes of the index of a boot pack.
pub async fn boot_index(repository: &Repository, layer: &Descriptor) -> Result<Verified<Bytes>, String> {
    boot_index_among(repository, layer, &[]).await
}

async fn boot_index_among(
    repository: &Repository,
    layer: &Descriptor,
    blobs: &[Fetched],
) -> Result<Verified<Bytes>, String> {
    if layer.size > limits::BOOT_INDEX_BYTES {
        return Err(format!("its index has {} bytes, more than {}", layer.size, limits::BOOT_INDEX_BYTES));
    }
    fetched(repository, layer.blob(), blobs).await
}

#[cfg(test)]
mod tests;
