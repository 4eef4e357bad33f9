//! Signs a published manifest, and attaches the signature as cosign does.

use tarpon_images::{Access, access};
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, Source};
use tarpon_policy::{Attached, Attachment, SigningKey, signature_tag};

use crate::{Error, ErrorKind, Result, ResultExt};

/// Signs the manifest `digest` in the repository of `place`. Signatures that are attached to it already are kept.
///
/// # Errors
/// `place` is not in a registry, or the registry fails.
pub async fn sign(key: &SigningKey, digest: &Digest, place: &Source, access: &Access) -> Result<()> {
    let step = "sign the index";
    let Source::Registry(reference) = place else {
        let cause = "signatures are attached in registries only";
        return Err(Error::new(ErrorKind::Refused, step, cause));
    };
    let failed = |error| access::registry(step, error);
    let repository = access::open_later(&place.to_string(), access)?;
    let tag = signature_tag(digest);
    let attached = match repository.attached(&tag).await.map_err(failed)? {
        Some(bytes) => Attached::of(&bytes).map_err(|cause| Error::new(ErrorKind::Refused, step, cause))?,
        None => Vec::new(),
    };
    let name = format!("{}/{}", reference.registry(), reference.repository());
    let attachment = Attachment::sign(key, *digest, &name, &attached).context(ErrorKind::Other, step)?;
    let target = access::open_destination(place, access)?;
    let push = async {
        target.push_bytes(attachment.payload).await?;
        target.push_bytes(attachment.config).await?;
        target.push_manifest(OCI_MANIFEST, attachment.manifest, Some(&tag)).await
    };
    push.await.map(drop).map_err(failed)
}
