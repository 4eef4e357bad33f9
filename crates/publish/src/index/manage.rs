//! The published indexes of an image: listed, and removed.

use serde::Serialize;
use tarpon_blob::Fault;
use tarpon_images::index::find::{SignedBy, about, boots, signed_by};
use tarpon_images::index::places::{IndexPlaces, shown};
use tarpon_images::{Admission, ImageRequest, access, admission};
use tarpon_oci::{Artifact, Digest, Source};
use tarpon_policy::{PublicKey, signature_tag};
use tarpon_registry::Repository;

use super::make::destination;
use super::newest::listed;
use crate::{Error, ErrorKind, Result};

/// The published indexes of an image.
#[derive(Debug, Clone, Serialize)]
pub struct KnownIndexes {
    /// The image, normalised.
    pub image: String,
    /// Digest of its manifest.
    pub manifest_digest: Digest,
    /// Its indexes, in the order in which a mount looks at them.
    pub indexes: Vec<KnownIndex>,
    /// What could not be read, one line each.
    pub problems: Vec<String>,
}

/// A published index of an image.
#[derive(Debug, Clone, Serialize)]
pub struct KnownIndex {
    /// Digest of the index.
    pub index_digest: Digest,
    /// The repository that has it.
    pub place: String,
    /// Bytes of the index, without its boot packs.
    pub index_size: u64,
    /// Its boot packs.
    pub packs: Vec<KnownPack>,
    /// Its signature.
    pub signature: IndexSignature,
}

/// A boot pack of a published index.
#[derive(Debug, Clone, Serialize)]
pub struct KnownPack {
    /// The profile of the start.
    pub profile: String,
    /// Bytes of its frames.
    pub size: u64,
}

/// The signature of a published index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexSignature {
    /// It has no signature.
    None,
    /// A key that the policy names for the image or for the index repository.
    ByPolicy,
    /// Another key.
    ByOther,
}

impl IndexSignature {
    fn of(signed: &SignedBy) -> Self {
        match signed {
            SignedBy::None => Self::None,
            SignedBy::Key => Self::ByPolicy,
            SignedBy::Other(_) => Self::ByOther,
        }
    }
}

/// Lists the indexes of the image in its index repositories and in its own repository.
///
/// # Errors
/// The image cannot be resolved. Of a repository that cannot be read a line is returned.
pub async fn known_indexes(request: &ImageRequest) -> Result<KnownIndexes> {
    let repository = access::open(&request.text, &request.access).await?;
    let image = manifest_of(&repository, request).await?;
    let own_keys = Admission::of(&request.source, &request.access)?.demands().keys();
    let mut known = KnownIndexes {
        image: repository.name().to_owned(),
        manifest_digest: image,
        indexes: Vec::new(),
        problems: Vec::new(),
    };
    let places = IndexPlaces::of(request)?;
    for (number, place) in places.list().iter().enumerate() {
        let keys: Vec<PublicKey> = place.demands.keys().into_iter().chain(own_keys.iter().cloned()).collect();
        let name = shown(&place.source).to_owned();
        match places.open(number) {
            Ok(opened) => known.add(&opened, &image, &keys, name).await,
            Err(error) => known.problems.push(format!("{name}: {error}")),
        }
    }
    let name = shown(repository.name()).to_owned();
    known.add(&repository, &image, &own_keys, name).await;
    Ok(known)
}

impl KnownIndexes {
    async fn add(&mut self, repository: &Repository, image: &Digest, keys: &[PublicKey], place: String) {
        let list = match listed(repository, image).await {
            Ok(list) => list,
            Err(error) => return self.problems.push(format!("{place}: {error}")),
        };
        for candidate in list.iter().rev() {
            let digest = &candidate.digest;
            match read(repository, image, digest).await {
                Ok(artifact) => {
                    let signature = match signed_by(keys, repository, digest).await {
                        Ok(signed) => IndexSignature::of(&signed),
                        Err(error) => {
                            self.problems.push(format!("{place}: the signatures of {digest}: {error}"));
                            IndexSignature::None
                        }
                    };
                    self.indexes.push(described(&artifact, *digest, &place, signature));
                }
                Err(error) => self.problems.push(format!("{place}: the index {digest}: {error}")),
            }
        }
    }
}

fn described(artifact: &Artifact, index_digest: Digest, place: &str, signature: IndexSignature) -> KnownIndex {
    let packs = boots(artifact).map(|(profile, layer)| {
        // Its frames follow the index of a pack.
        let frames = artifact.layers.iter().skip_while(|other| other.digest != layer.digest).nth(1);
        KnownPack { profile: profile.to_owned(), size: frames.map_or(0, |frames| frames.size) }
    });
    KnownIndex {
        index_digest,
        place: place.to_owned(),
        index_size: artifact.layers.first().map_or(0, |layer| layer.size),
        packs: packs.collect(),
        signature,
    }
}

/// The manifest of the image. One that its registry does not have any more can be named by the digest of its manifest: its indexes may still
/// be somewhere.
async fn manifest_of(repository: &Repository, request: &ImageRequest) -> Result<Digest> {
    let error = match admission::resolve(repository, &request.access, &request.platform).await {
        Ok(image) => return Ok(*image.manifest.digest()),
        Err(error) => error,
    };
    match &request.source {
        Source::Registry(reference) if error.kind == ErrorKind::NotFound => reference.digest().copied().ok_or(error),
        _ => Err(error),
    }
}

/// A listed index.
pub(super) async fn read(
    repository: &Repository,
    image: &Digest,
    digest: &Digest,
) -> std::result::Result<Artifact, String> {
    about(repository.manifest(digest).await.map_err(|error| error.to_string())?, image)
}

/// Which published indexes of an image are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwanted {
    /// All.
    All,
    /// All but the newest, which a mount uses.
    Old,
    /// The one with this digest.
    One(Digest),
}

/// What was removed.
#[derive(Debug, Clone, Serialize)]
pub struct RemovedIndexes {
    /// The image, normalised.
    pub image: String,
    /// The repository that had them.
    pub place: String,
    /// The indexes, by digest.
    pub removed: Vec<Digest>,
}

/// Removes indexes of the image from where they are published ([`destination`]), with their signatures and their entries in the list of
/// referrers.
///
/// # Errors
/// There is no such index, or the registry does not delete it.
pub async fn remove_indexes(request: &ImageRequest, unwanted: Unwanted) -> Result<RemovedIndexes> {
    let step = "remove the indexes";
    let failed = |error| access::registry(step, error);
    let (place, access_to_place) = destination(request)?;
    let own = access::open(&request.text, &request.access).await?;
    let image = manifest_of(&own, request).await?;
    let name = shown(&place.to_string()).to_owned();
    let repository = access::open_origin(&place.to_string(), &access_to_place)?;
    let target = access::open_destination(&place, &access_to_place)?;
    let mut list: Vec<Digest> =
        listed(&repository, &image).await.map_err(failed)?.iter().map(|found| found.digest).collect();
    match unwanted {
        Unwanted::All => {}
        Unwanted::Old => drop(list.pop()),
        Unwanted::One(digest) => {
            list.retain(|found| *found == digest);
            if list.is_empty() {
                let cause = format!("{name} lists no index {digest} for this image");
                return Err(Error::new(ErrorKind::NotFound, step, cause));
            }
        }
    }
    let mut removed = Vec::new();
    for index in list {
        // Only what is an index of this image, whatever the registry lists. One that is gone may still be listed.
        match repository.manifest(&index).await {
            Ok(bytes) => drop(about(bytes, &image).map_err(|why| Error::new(ErrorKind::Refused, step, why))?),
            Err(error) if error.fault() == Fault::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let delete = async {
            if let Some(signatures) = repository.attached(&signature_tag(&index)).await? {
                target.delete_manifest(signatures.digest(), None).await?;
            }
            target.delete_manifest(&index, Some(&image)).await
        };
        delete.await.map_err(|error| {
            failed(error).hint("the registry may not allow it: registry:2 needs REGISTRY_STORAGE_DELETE_ENABLED=true")
        })?;
        removed.push(index);
    }
    Ok(RemovedIndexes { image: own.name().to_owned(), place: name, removed })
}
