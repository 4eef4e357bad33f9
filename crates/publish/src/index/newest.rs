//! The newest readable index of an image in a repository, which is the one that a mount uses.

use tarpon_blob::Fault;
use tarpon_images::index::artifact::ARTIFACT_TYPE;
use tarpon_images::index::find::about;
use tarpon_images::index::search_result::CANDIDATES;
use tarpon_oci::{Artifact, Descriptor, Digest};
use tarpon_registry::{Error, Repository};

/// The newest readable index among those that a mount looks at.
#[derive(Debug)]
pub(super) struct Newest {
    /// The index with its digest, if one is readable.
    pub(super) index: Option<(Digest, Artifact)>,
    /// Newer ones, and why they are not usable, one line each.
    pub(super) passed_over: Vec<(Digest, String)>,
}

/// The newest readable index of the image with the manifest `image`. One that is gone or invalid will be no better later, and is passed over.
///
/// # Errors
/// The registry temporarily fails to return its list, or a listed index. An older index in its place would not have what the newest one has,
/// which would then be made and published again, or lost.
pub(super) async fn newest(repository: &Repository, image: &Digest) -> Result<Newest, Error> {
    let mut passed_over = Vec::new();
    // As when mounting the image: the newest is the last.
    for candidate in listed(repository, image).await?.iter().rev().take(CANDIDATES) {
        let read = match repository.manifest(&candidate.digest).await {
            Ok(bytes) => about(bytes, image),
            Err(error) if is_final(&error) => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        match read {
            Ok(artifact) => return Ok(Newest { index: Some((candidate.digest, artifact)), passed_over }),
            Err(reason) => passed_over.push((candidate.digest, reason)),
        }
    }
    Ok(Newest { index: None, passed_over })
}

/// The indexes that the repository lists for the image with this manifest, the newest last.
pub(super) async fn listed(repository: &Repository, image: &Digest) -> Result<Vec<Descriptor>, Error> {
    match repository.referrers(image, ARTIFACT_TYPE).await {
        // It is made with its first index.
        Err(error) if error.fault() == Fault::NotFound => Ok(Vec::new()),
        listed => listed,
    }
}

/// Whether the index is gone, or not what its digest states.
fn is_final(error: &Error) -> bool {
    matches!(error.fault(), Fault::NotFound | Fault::BadData)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tarpon_images::index::artifact;
    use tarpon_images::{Access, access};
    use tarpon_oci::media_type::OCI_MANIFEST;
    use tarpon_oci::{Blob, EMPTY_CONFIG, NewDescriptor};
    use tarpon_testkit::fixture::Fixture;
    use tarpon_testkit::layers::{Image, Item, Layer};
    use tarpon_testkit::registry::Fault as Answer;

    use super::*;

    struct NewestFixture {
        fixture: Fixture,
        image: Digest,
        access: Access,
    }

    impl NewestFixture {
        async fn new() -> Self {
            let image = Image::of([Layer::gzip(&[Item::file("file", "text")])]);
            let access = Access { tls_verify: Some(false), ..Access::default() };
            Self { fixture: Fixture::with_image(&image).await, image: image.digest(), access }
        }

        /// Publishes an index with this blob.
        async fn publish(&self, blob: &'static [u8]) -> Digest {
            let subject = NewDescriptor::new(OCI_MANIFEST, Blob { digest: self.image, size: 1 });
            let manifest = artifact::manifest(blob, [], subject, None).unwrap();
            let target = access::destination(&self.fixture.name("app:v1"), &self.access).unwrap();
            target.push_bytes(Bytes::from_static(EMPTY_CONFIG)).await.unwrap();
            target.push_bytes(Bytes::from_static(blob)).await.unwrap();
            target.push_manifest(OCI_MANIFEST, manifest.into_inner(), None).await.unwrap()
        }

        async fn newest(&self) -> Result<Newest, Error> {
            newest(&access::open_later(&self.fixture.name("app:v1"), &self.access).unwrap(), &self.image).await
        }

        /// Scripts this answer to the last request of the next search, which asks for the newest index.
        async fn answer(&self, answer: Answer) {
            let before = self.fixture.registry().stats().requests;
            self.newest().await.unwrap();
            let requests = self.fixture.registry().stats().requests - before;
            let passes = (1..requests).map(|_| Answer::Pass);
            self.fixture.registry().script(passes.chain([answer]));
        }
    }

    #[tokio::test]
    async fn an_index_that_is_gone_is_passed_over() {
        let fixture = NewestFixture::new().await;
        let (old, new) = (fixture.publish(b"old").await, fixture.publish(b"new").await);
        assert_eq!(fixture.newest().await.unwrap().index.unwrap().0, new);
        fixture.answer(Answer::Status(404)).await;
        let found = fixture.newest().await.unwrap();
        assert_eq!(found.index.unwrap().0, old);
        assert_eq!(found.passed_over.len(), 1);
    }

    #[tokio::test]
    async fn an_index_that_cannot_be_fetched_now_is_not_replaced_by_an_older_one() {
        let fixture = NewestFixture::new().await;
        fixture.publish(b"old").await;
        fixture.publish(b"new").await;
        fixture.answer(Answer::Status(403)).await;
        assert_eq!(fixture.newest().await.unwrap_err().fault(), Fault::Denied);
    }
}
