//! [`Admission`]: whether the host's policy accepts an image.
//!
//! An image is checked where its name becomes a manifest ([`resolve`]), in the process that parses what was received. Its
//! record then notes under which demands it was accepted. An image of the store is used under the same demands only: others, for example
//! a new key in the policy, have it resolved again.

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use tarpon_oci::{Descriptor, Digest, Manifest, MediaType, Platform, Source};
use tarpon_policy::{Demands, SIGNATURE, Signature, signature_tag};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::Store;

use crate::access::{self, Access};
use crate::error::{Error, ErrorKind, Result, ResultExt};

/// Most signatures of an image that are read: real images have one for each signer.
const SIGNATURES: usize = 64;

/// Longest signed payload: real ones have 300 bytes.
const PAYLOAD_BYTES: u64 = 64 << 10;

/// Signatures that are fetched at a time: all those of a real image, and too few for a registry to mind.
const SIGNATURES_AT_ONCE: usize = 8;

const STEP: &str = "check the image by the policy";

/// What the policy demands of an image.
#[derive(Debug, Clone)]
pub struct Admission {
    source: Source,
    demands: Demands,
}

impl Admission {
    /// Reads the policy.
    ///
    /// # Errors
    /// It cannot be read, or refuses the image whatever signatures it has.
    pub fn of(source: &Source, access: &Access) -> Result<Self> {
        let demands = access.policy.demands(source).map_err(|error| {
            Error::new(ErrorKind::Forbidden, "read the policy", error)
                .hint("containers-policy.json(5) describes the file; --policy names another one")
        })?;
        demands.check_before().map_err(refused)?;
        Ok(Self { source: source.clone(), demands })
    }

    /// What is demanded.
    pub fn demands(&self) -> &Demands {
        &self.demands
    }

    /// Checks the image with this manifest, whose signatures are in its repository.
    ///
    /// # Errors
    /// The policy refuses the image, or its signatures cannot be fetched.
    pub async fn check(&self, repository: &Repository, manifest: &Digest) -> Result<()> {
        if !self.demands.need_signatures() {
            return Ok(());
        }
        let signatures = signatures(repository, manifest).await?;
        self.demands.check(&self.source, manifest, &signatures).map_err(refused)
    }

    /// Notes that the image of the store was accepted.
    pub(crate) fn note(&self, store: &Store, manifest: &Digest) -> Result<()> {
        if !self.demands.need_signatures() {
            return Ok(());
        }
        let noted = store.note_admission(manifest, &self.demands.fingerprint(&self.source));
        noted.context(ErrorKind::Store, "note that the policy accepts the image")
    }

    /// Whether the image of the store was accepted under the same demands.
    pub fn is_noted(&self, store: &Store, manifest: &Digest) -> Result<bool> {
        if !self.demands.need_signatures() {
            return Ok(true);
        }
        let noted = store.is_admitted(manifest, &self.demands.fingerprint(&self.source));
        noted.context(ErrorKind::Store, STEP)
    }

    /// The error for an image of the store that must not be resolved again.
    pub(crate) fn unproven(&self) -> Error {
        refused(self.demands.refusal("it demands a signature, and the image was not checked when it was stored"))
            .hint("without the pull policy \"never\" its signatures are fetched")
    }
}

/// Pins the image for `platform`, if the policy accepts it. An image is shown only after it was resolved here, or found in the store under
/// the same demands.
pub async fn resolve(repository: &Repository, access: &Access, platform: &Platform) -> Result<ResolvedImage> {
    let admission = Admission::of(&access::parse(repository.name())?, access)?;
    let image = access::resolve_unchecked(repository, platform).await?;
    admission.check(repository, image.manifest.digest()).await?;
    Ok(image)
}

fn refused(refusal: tarpon_policy::Refusal) -> Error {
    Error::new(ErrorKind::Forbidden, STEP, refusal)
}

/// The signatures that are attached to the manifest, unchecked.
pub(crate) async fn signatures(repository: &Repository, manifest: &Digest) -> Result<Vec<Signature>> {
    let step = "read the image's signatures";
    let failed = |error| access::registry(step, error);
    let Some(bytes) = repository.attached(&signature_tag(manifest)).await.map_err(failed)? else {
        return Ok(Vec::new());
    };
    let attached = Manifest::parse(bytes).context(ErrorKind::Forbidden, step)?;
    if attached.layers.len() > SIGNATURES {
        let cause = format!("there are {} of them, more than {SIGNATURES}", attached.layers.len());
        return Err(Error::new(ErrorKind::Forbidden, step, cause));
    }
    if let Some(layer) = attached.layers.iter().find(|layer| layer.size > PAYLOAD_BYTES) {
        let cause = format!("one has {} bytes, more than {PAYLOAD_BYTES}", layer.size);
        return Err(Error::new(ErrorKind::Forbidden, step, cause));
    }
    let requests: Vec<_> = attached.layers.iter().map(|layer| signature(repository, layer).boxed()).collect();
    let signatures = futures::stream::iter(requests).buffered(SIGNATURES_AT_ONCE);
    signatures.try_collect().await.map_err(failed)
}

async fn signature(
    repository: &Repository,
    layer: &Descriptor,
) -> std::result::Result<Signature, tarpon_registry::Error> {
    let payload: Bytes = repository.small_blob(layer.blob()).await?;
    let media_type = match &layer.media_type {
        MediaType::Other(text) => text.clone(),
        known => known.to_string(),
    };
    Ok(Signature { media_type, payload, signature: layer.annotations.get(SIGNATURE).cloned() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tarpon_oci::media_type;
    use tarpon_registry::serve::Contents;
    use tarpon_testkit::registry::{Auth, FakeRegistry};
    use tokio::time::Instant;

    use super::*;
    use crate::slow::Slow;

    fn payload(number: usize) -> Bytes {
        Bytes::from(format!("payload {number}"))
    }

    /// A repository in which a blob takes a second, with an attachment of these layers to `digest`.
    fn repository(digest: &Digest, layers: &[serde_json::Value]) -> Repository {
        let mut contents = Contents::new();
        for number in 0..layers.len() {
            contents.add_blob(payload(number));
        }
        let config = contents.add_blob("{}");
        let config = json!({ "mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": 2 });
        let attachment =
            json!({ "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": config, "layers": layers });
        contents.add_manifest(Some(("app", &signature_tag(digest))), media_type::OCI_MANIFEST, attachment.to_string());
        let time = |path: &str| Duration::from_secs(u64::from(path.contains("/blobs/")));
        Slow::repository(FakeRegistry::new(contents, Auth::Anonymous, None), time)
    }

    fn layer(number: usize, size: usize) -> serde_json::Value {
        let annotations = json!({ SIGNATURE: number.to_string() });
        json!({ "mediaType": "a/b", "digest": Digest::of(&payload(number)), "size": size, "annotations": annotations })
    }

    #[tokio::test(start_paused = true)]
    async fn some_signatures_are_fetched_at_a_time_and_all_keep_their_order() {
        let count = 2 * SIGNATURES_AT_ONCE + 1;
        let layers: Vec<_> = (0..count).map(|number| layer(number, payload(number).len())).collect();
        let digest = Digest::of(b"image");
        let (repository, began) = (repository(&digest, &layers), Instant::now());
        let fetched = signatures(&repository, &digest).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 3);
        let expected = |number: usize| (payload(number), Some(number.to_string()));
        let fetched: Vec<_> = fetched.into_iter().map(|one| (one.payload, one.signature)).collect();
        assert_eq!(fetched, (0..count).map(expected).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn no_signature_is_fetched_if_one_is_too_large() {
        let large = usize::try_from(PAYLOAD_BYTES).unwrap() + 1;
        let layers = [layer(0, payload(0).len()), layer(1, large)];
        let digest = Digest::of(b"image");
        let (repository, began) = (repository(&digest, &layers), Instant::now());
        let refused = signatures(&repository, &digest).await.unwrap_err();
        assert!(refused.to_string().contains("more than 65536"), "{refused}");
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
