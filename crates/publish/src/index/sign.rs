//! Signs a published manifest, and attaches the signature as cosign does.

use tarpon_images::{Access, access};
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Digest, Source};
use tarpon_policy::{Attached, Attachment, SigningKey, signature_tag};

use crate::{Error, ErrorKind, Result, ResultExt};

/// Signs the manifest `digest` in the repository of `place`. Signatures by others that are attached to it already are kept. Nothing is done if
/// this key signed it already: an unchanged image is indexed and signed every night, and hosts refuse a manifest with too many signatures.
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
    let public = key.public_key().context(ErrorKind::Other, step)?;
    let (own, others): (Vec<_>, Vec<_>) = attached.into_iter().partition(|one| one.is_by(&public, *digest, &name));
    if own.len() == 1 {
        return Ok(());
    }
    // Several of its own are from versions that attached one more each time: one replaces them.
    let attachment = Attachment::sign(key, *digest, &name, &others).context(ErrorKind::Other, step)?;
    let target = access::open_destination(place, access)?;
    let push = async {
        target.push_bytes(attachment.payload).await?;
        target.push_bytes(attachment.config).await?;
        target.push_manifest(OCI_MANIFEST, attachment.manifest, Some(&tag)).await
    };
    push.await.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use tarpon_registry::serve::Contents;
    use tarpon_testkit::fixture::Fixture;
    use tarpon_testkit::registry::Auth;

    use super::*;
    use crate::index::tests::key;

    /// The number of signatures of `digest` in the repository `app`.
    async fn count(fixture: &Fixture, access: &Access, digest: &Digest) -> usize {
        let repository = access::open_later(&fixture.name("app:v1"), access).unwrap();
        let bytes = repository.attached(&signature_tag(digest)).await.unwrap().unwrap();
        Attached::of(&bytes).unwrap().len()
    }

    #[tokio::test]
    async fn what_a_key_signed_it_does_not_sign_again() {
        let fixture = Fixture::with_registry(Contents::new(), Auth::Anonymous).await;
        let access = Access { tls_verify: Some(false), ..Access::default() };
        let place: Source = fixture.name("app:v1").parse().unwrap();
        let (one, other, digest) = (key(), key(), Digest::of(b"an index"));
        for (key, signatures) in [(&one, 1), (&one, 1), (&other, 2), (&one, 2), (&other, 2)] {
            sign(key, &digest, &place, &access).await.unwrap();
            assert_eq!(count(&fixture, &access, &digest).await, signatures);
        }
    }

    #[tokio::test]
    async fn many_signatures_by_a_key_become_one() {
        let fixture = Fixture::with_registry(Contents::new(), Auth::Anonymous).await;
        let access = Access { tls_verify: Some(false), ..Access::default() };
        let place: Source = fixture.name("app:v1").parse().unwrap();
        let (key, digest) = (key(), Digest::of(b"an index"));
        let mut attachment = Attachment::sign(&key, digest, &fixture.name("app"), &[]).unwrap();
        for _ in 0..2 {
            let attached = Attached::of(&attachment.manifest).unwrap();
            attachment = Attachment::sign(&key, digest, &fixture.name("app"), &attached).unwrap();
        }
        let target = access::open_destination(&place, &access).unwrap();
        target.push_bytes(attachment.payload).await.unwrap();
        target.push_bytes(attachment.config).await.unwrap();
        target.push_manifest(OCI_MANIFEST, attachment.manifest, Some(&signature_tag(&digest))).await.unwrap();
        assert_eq!(count(&fixture, &access, &digest).await, 3);
        sign(&key, &digest, &place, &access).await.unwrap();
        assert_eq!(count(&fixture, &access, &digest).await, 1);
    }
}
