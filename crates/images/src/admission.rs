//! [`Admission`]: whether the host's policy accepts an image.
//!
//! An image is checked where its name becomes a manifest ([`resolve`]), in the process that parses what was received. Its
//! record then notes under which demands it was accepted. An image of the store is used under the same demands only: others, for example
//! a new key in the policy, have it resolved again.

use bytes::Bytes;
use tarpon_oci::{Digest, Manifest, MediaType, Platform, Source};
use tarpon_policy::{Demands, SIGNATURE, Signature, signature_tag};
use tarpon_registry::{Repository, ResolvedImage};
use tarpon_store::Store;

use crate::access::{self, Access};
use crate::error::{Error, ErrorKind, Result, ResultExt};

/// Most signatures of an image that are read: real images have one for each signer.
const SIGNATURES: usize = 64;

/// Longest signed payload: real ones have 300 bytes.
const PAYLOAD_BYTES: u64 = 64 << 10;

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
    let mut signatures = Vec::with_capacity(attached.layers.len());
    for layer in &attached.layers {
        if layer.size > PAYLOAD_BYTES {
            let cause = format!("one has {} bytes, more than {PAYLOAD_BYTES}", layer.size);
            return Err(Error::new(ErrorKind::Forbidden, step, cause));
        }
        let payload: Bytes = repository.small_blob(layer.blob()).await.map_err(failed)?;
        let signature = layer.annotations.get(SIGNATURE).cloned();
        let media_type = match &layer.media_type {
            MediaType::Other(text) => text.clone(),
            known => known.to_string(),
        };
        signatures.push(Signature { media_type, payload, signature });
    }
    Ok(signatures)
}
