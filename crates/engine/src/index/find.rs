//! Finding an index for an image: the one that is pinned, or one that the registry lists.
//!
//! Whatever is wrong with an index is no reason not to mount: the layers are streamed then, as if there were none, and one
//! line says why.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tarpon_oci::{Artifact, Blob, Digest, MediaType, Verified, limits};
use tarpon_registry::{Repository, ResolvedImage};

use super::artifact::{self, ARTIFACT_TYPE, BLOB_TYPE, Indexed};
use crate::image::IndexChoice;

/// How the states of layers begin of which an index from elsewhere is all that is known.
pub(crate) const BY_INDEX: &str = "index-";
/// The user named the index by digest, so whoever made it is believed.
pub(crate) const INDEX_PINNED: &str = "index-pinned";
/// The registry lists the index, and the user said that its word is good enough.
pub(crate) const INDEX_TRUSTED: &str = "index-trusted";

/// Indexes of a registry's list that are looked at before giving up.
const CANDIDATES: usize = 4;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Indexes of layers, each at most once.
    pub(crate) layers: Vec<Indexed>,
    /// How far they are to be believed.
    pub(crate) verification: &'static str,
    /// Digest of the index.
    pub(crate) index: Option<Digest>,
    /// A line for the user: which index is used, or why none is.
    pub(crate) note: Option<String>,
}

/// Looks for an index of `image` that covers layers of `wanted`.
pub(crate) async fn find(
    choice: &IndexChoice,
    repository: &Repository,
    image: &ResolvedImage,
    wanted: &[Blob],
) -> Found {
    match choice {
        IndexChoice::None => Found::default(),
        _ if wanted.is_empty() => Found::default(),
        IndexChoice::Pinned(digest) => match fetch(repository, image, digest, wanted).await {
            Ok(layers) => found(layers, INDEX_PINNED, digest, "as it was pinned"),
            Err(reason) => without(format!("the index {digest} is not used: {reason}")),
        },
        IndexChoice::Registry => listed(repository, image, wanted).await,
    }
}

async fn listed(repository: &Repository, image: &ResolvedImage, wanted: &[Blob]) -> Found {
    let list = match repository.referrers(image.manifest.digest(), ARTIFACT_TYPE).await {
        Ok(list) => list,
        Err(error) => return without(format!("no index is used: {error}")),
    };
    let mut reason = format!("{} lists none for this image", repository.name());
    // Where the list is an index under a tag, the newest is the last.
    for candidate in list.iter().rev().take(CANDIDATES) {
        match fetch(repository, image, &candidate.digest, wanted).await {
            Ok(layers) => return found(layers, INDEX_TRUSTED, &candidate.digest, "because the registry lists it"),
            Err(error) => reason = format!("{}: {error}", candidate.digest),
        }
    }
    without(format!("no index is used: {reason}"))
}

fn found(layers: Vec<Indexed>, verification: &'static str, digest: &Digest, why: &str) -> Found {
    let note = format!("the index {digest} is used, {why}");
    Found { layers, verification, index: Some(*digest), note: Some(note) }
}

fn without(note: String) -> Found {
    Found { note: Some(note), ..Found::default() }
}

/// Fetches the artifact `digest` and checks that it is about `image`.
async fn fetch(
    repository: &Repository,
    image: &ResolvedImage,
    digest: &Digest,
    wanted: &[Blob],
) -> Result<Vec<Indexed>, String> {
    let bytes = repository.manifest(digest).await.map_err(|error| error.to_string())?;
    let artifact = Artifact::parse(bytes).map_err(|error| error.to_string())?;
    if artifact.artifact_type != ARTIFACT_TYPE {
        return Err(format!("it is a {}", artifact.artifact_type));
    }
    let subject = artifact.subject.as_ref().map(|subject| subject.digest);
    if subject != Some(*image.manifest.digest()) {
        return Err("it is about another image".to_owned());
    }
    let blob = match &artifact.layers[..] {
        [layer] if layer.media_type == MediaType::Other(BLOB_TYPE.to_owned()) => layer.blob(),
        _ => return Err("it does not hold what an index holds".to_owned()),
    };
    if blob.size > limits::INDEX_ARTIFACT_BYTES {
        return Err(format!("it has {} bytes, more than {}", blob.size, limits::INDEX_ARTIFACT_BYTES));
    }
    let bytes = whole(repository, blob).await?;
    let wanted = wanted.to_vec();
    let reading = tokio::task::spawn_blocking(move || artifact::read(&bytes, |blob| wanted.contains(blob)));
    let mut layers = reading.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    layers.dedup_by_key(|layer| layer.blob.digest);
    if layers.is_empty() { Err("it covers no layer that needs one".to_owned()) } else { Ok(layers) }
}

/// All bytes of a blob, checked.
async fn whole(repository: &Repository, blob: Blob) -> Result<Verified<Bytes>, String> {
    let mut all = BytesMut::new();
    let pieces = repository.blobs().read(blob, 0..blob.size).await;
    let mut pieces = pieces.map_err(|error| error.to_string())?;
    while let Some(piece) = pieces.next().await {
        all.extend_from_slice(&piece.map_err(|error| error.to_string())?);
    }
    Verified::check(&blob.digest, all.freeze()).map_err(|error| error.to_string())
}
