//! Operations of an [`Engine`] that make images and indexes, and send them to registries.

use std::sync::Arc;

use tarpon_images::progress::Progress;
use tarpon_images::{Access, ImageRequest};
use tarpon_oci::{Digest, Source};
use tarpon_policy::SigningKey;
use tarpon_publish::{
    CommitReport, CommitRequest, ImageIndexArtifact, IndexCheck, LearnedImage, LearnedRequest, LearnedStart,
    PushRequest, Pushed, SyncOptions, Synced,
};
use tarpon_trace::Trace;

use crate::{Engine, Result};

impl Engine {
    /// As [`commit`](crate::commit).
    pub async fn commit(&self, request: &CommitRequest, progress: &dyn Progress) -> Result<CommitReport> {
        tarpon_publish::commit(&self.containers, request, progress).await
    }

    /// As [`push`](crate::push).
    pub async fn push(&self, request: &PushRequest, progress: Arc<dyn Progress>) -> Result<Pushed> {
        tarpon_publish::push(self.images(), request, progress).await
    }

    /// As [`make_index`](crate::make_index).
    pub async fn make_index(
        &self,
        request: &ImageRequest,
        traces: &[Trace],
        progress: &dyn Progress,
    ) -> Result<ImageIndexArtifact> {
        tarpon_publish::make_index(self.images(), request, traces, progress).await
    }

    /// As [`make_plain_index`](crate::make_plain_index).
    pub async fn make_plain_index(
        &self,
        request: &ImageRequest,
        destination: &Source,
        progress: &dyn Progress,
    ) -> Result<ImageIndexArtifact> {
        tarpon_publish::make_plain_index(self.images(), request, destination, progress).await
    }

    /// As [`make_predicted_index`](crate::make_predicted_index).
    pub async fn make_predicted_index(
        &self,
        request: &ImageRequest,
        destination: &Source,
        progress: &dyn Progress,
    ) -> Result<ImageIndexArtifact> {
        tarpon_publish::make_predicted_index(self.images(), request, destination, progress).await
    }

    /// As [`make_index_from`](crate::make_index_from).
    pub async fn make_index_from(
        &self,
        request: &ImageRequest,
        old: &str,
        profile: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<ImageIndexArtifact> {
        tarpon_publish::make_index_from(self.images(), request, old, profile, progress).await
    }

    /// As [`publish_index`](crate::publish_index).
    pub async fn publish_index(
        &self,
        index: &ImageIndexArtifact,
        destination: &Source,
        access: &Access,
        key: Option<&SigningKey>,
    ) -> Result<Digest> {
        tarpon_publish::publish_index(index, destination, access, key).await
    }

    /// Signs a published index or image in the repository of `place`, as `cosign sign` does. An index with a signature of its own is published
    /// with [`publish_index`](Self::publish_index).
    pub async fn sign_index(&self, key: &SigningKey, index: &Digest, place: &Source, access: &Access) -> Result<()> {
        tarpon_publish::sign(key, index, place, access).await
    }

    /// As [`sync_indexes`](crate::sync_indexes).
    pub async fn sync_indexes(
        &self,
        requests: Vec<ImageRequest>,
        options: SyncOptions<'_>,
        done: &(dyn Fn(&Synced) + Sync),
    ) -> Vec<Synced> {
        tarpon_publish::sync_indexes(self.images(), requests, options, done).await
    }

    /// The images whose starts were learned, with the number of equal starts of each.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn learned_images(&self) -> Result<Vec<LearnedImage>> {
        tarpon_publish::learned_images(self.store())
    }

    /// Makes a boot pack of each image that has enough equal starts and no pack yet, and publishes it. `done` is called for each image.
    ///
    /// # Errors
    /// The store cannot be read. What fails for an image is in its result.
    pub async fn publish_learned(
        &self,
        request: &LearnedRequest,
        key: Option<&SigningKey>,
        done: &(dyn Fn(&LearnedStart) + Sync),
    ) -> Result<Vec<LearnedStart>> {
        tarpon_publish::publish_learned(self.images(), request, key, done).await
    }

    /// As [`check_index`](crate::check_index).
    pub async fn check_index(
        &self,
        request: &ImageRequest,
        index: &Digest,
        progress: &dyn Progress,
    ) -> Result<IndexCheck> {
        tarpon_publish::check_index(self.images(), request, index, progress).await
    }
}
