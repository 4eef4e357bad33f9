//! Writes manifests, and lists referrers where a registry does not do so itself.

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use tarpon_blob::{Fault, SourceError};
use tarpon_oci::media_type::OCI_INDEX;
use tarpon_oci::{Descriptor, Digest, ImageIndex, InvalidManifest, NewDescriptor};

use super::answers::{check_stored, expect};
use super::body;
use super::call::{Call, Payload};
use super::referrers::fallback_tag;
use super::retry::{Budget, retried};
use super::session::Session;
use crate::Error;

impl Session {
    /// Puts a manifest or index under `name`, its digest or a tag. Returns whether the registry declares that it keeps the list of
    /// the subject's referrers itself.
    pub(crate) async fn put_manifest(
        &self,
        name: &str,
        media_type: &str,
        digest: &Digest,
        bytes: &Bytes,
    ) -> Result<bool, SourceError> {
        let path = &self.path(&format!("manifests/{name}"));
        let call = &Call::new(Method::PUT, path).with(CONTENT_TYPE, media_type).carrying(Payload::Bytes(bytes.clone()));
        retried(Budget::carrying(bytes.len() as u64), &call.shown, || async move {
            let response = expect(call, self.at_registry(path, call).await?, &[200, 201]).await?;
            check_stored(&response, digest, &call.shown)?;
            let keeps_referrers = response.headers.contains_key("oci-subject");
            body::drain(response).await;
            Ok(keeps_referrers)
        })
        .await
    }

    /// Deletes the manifest or index `digest`, with its tags. `false`: there was none.
    pub(crate) async fn delete_manifest(&self, digest: &Digest) -> Result<bool, SourceError> {
        let path = &self.path(&format!("manifests/{digest}"));
        let call = &Call::new(Method::DELETE, path);
        retried(Budget::new(), &call.shown, || async move {
            let response = self.at_registry(path, call).await?;
            if matches!(response.status.as_u16(), 404 | 410) {
                body::drain(response).await;
                return Ok(false);
            }
            let response = expect(call, response, &[200, 202, 204]).await?;
            body::drain(response).await;
            Ok(true)
        })
        .await
    }

    /// Removes `referrer` from the list of the referrers of `subject`, if clients keep one under a tag.
    pub(crate) async fn remove_referrer(&self, subject: &Digest, referrer: &Digest) -> Result<(), Error> {
        let unreadable = |error: InvalidManifest| Error::Manifest { what: "list of referrers", error };
        let tag = fallback_tag(subject);
        let known = match self.manifest(&tag, None).await {
            Ok((bytes, _)) => ImageIndex::parse(bytes).map_err(unreadable)?,
            Err(error) if error.fault == Fault::NotFound => return Ok(()),
            Err(error) => return Err(Error::Push(error)),
        };
        let is_it = |found: &Descriptor| found.digest == *referrer;
        if !known.manifests.iter().any(is_it) {
            return Ok(());
        }
        let list = known.without(is_it).map_err(unreadable)?;
        let put = self.put_manifest(&tag, OCI_INDEX, list.bytes.digest(), &list.bytes).await;
        put.map(drop).map_err(Error::Push)
    }

    /// Adds `referrer` to the list of the referrers of `subject`, which is kept under a tag.
    pub(crate) async fn add_referrer(&self, subject: &Digest, referrer: &NewDescriptor) -> Result<(), Error> {
        let unreadable = |error: InvalidManifest| Error::Manifest { what: "list of referrers", error };
        let tag = fallback_tag(subject);
        let known = match self.manifest(&tag, None).await {
            Ok((bytes, _)) => ImageIndex::parse(bytes).map_err(unreadable)?,
            Err(error) if error.fault == Fault::NotFound => ImageIndex::empty(),
            Err(error) => return Err(Error::Push(error)),
        };
        let list = known.with(referrer, |found| found.digest == referrer.digest).map_err(unreadable)?;
        let put = self.put_manifest(&tag, OCI_INDEX, list.bytes.digest(), &list.bytes).await;
        put.map(drop).map_err(Error::Push)
    }
}
