//! Pushes a committed image: the new layer is uploaded, those below are mounted from the base's repository.
//!
//! A layer below is already at the destination, or the registry mounts it from the base's repository. Otherwise it is streamed from there
//! to the destination, verified, bypassing the store. The tag is written last.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use tarpon_blob::BlobSource;
use tarpon_images::access;
use tarpon_images::commits::{Commits, HeldCommit};
use tarpon_images::progress::{LayerPlan, LayerWay, Progress, counted};
use tarpon_images::{Access, Images};
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Blob, Digest, Document, Manifest, Platform, Source, Verified};
use tarpon_registry::{AccessOptions, Destination, Repository, ResolvedImage};

use crate::{Error, ErrorKind, Result, ResultExt};

/// Layers that the registry is queried about at once: one or two requests each, without any bytes.
const QUESTIONS: usize = 16;
/// Layers streamed at once. Each takes up to 50 MiB for retries of its upload.
const STREAMS: usize = 3;

/// A request to push.
#[derive(Debug, Clone)]
pub struct PushRequest {
    /// The name that it was committed under.
    pub image: Source,
    /// The destination: a registry or an OCI layout, with a tag.
    pub destination: Source,
    /// Access to the destination, and to the base's repository if it is in the same registry.
    pub access: Access,
    /// Access to the base's repository elsewhere.
    pub base_access: Access,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// The name that it was committed under, normalised.
    pub image: String,
    /// Its name at the destination, normalised.
    pub destination: String,
    /// Digest of the manifest that the tag refers to there.
    pub digest: Digest,
    /// Its layers, lowest first.
    pub layers: Vec<PushedLayer>,
    /// Bytes of the layers that were sent, from the store and from elsewhere.
    pub uploaded_bytes: u64,
    /// Bytes received from the base's repository.
    pub downloaded_bytes: u64,
}

/// One layer of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PushedLayer {
    /// Its blob.
    pub digest: Digest,
    /// Size of the blob in bytes.
    pub size: u64,
    /// How it got to the destination.
    pub outcome: PushedOutcome,
}

/// How a layer got to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PushedOutcome {
    /// It already existed.
    WasThere,
    /// The registry mounted it from the base's repository, or had it already.
    Mounted,
    /// It was downloaded from the base's repository and uploaded, because the registry did not mount it.
    Streamed,
    /// It is the new layer, uploaded from the store.
    Uploaded,
}

/// Source and destination of a push.
struct Work {
    destination: Destination,
    base: Repository,
    base_source: Source,
    kept: Repository,
    new_layer: Digest,
    progress: Arc<dyn Progress>,
}

/// Pushes a committed image. Dropping the future stops it: uploaded layers stay as blobs that nothing names.
///
/// # Errors
/// `NotFound` if nothing was committed under the name; `Denied`, `Unavailable` and `Refused` from the registries. Nothing was tagged
/// then.
pub async fn push(images: &Images, request: &PushRequest, progress: Arc<dyn Progress>) -> Result<Pushed> {
    let commits = Commits::of(images.store());
    let held = commits.hold(&request.image)?.ok_or_else(|| unknown(&commits, &request.image))?;
    let destination = access::open_destination(&request.destination, &request.access)?;
    let tag = destination.tag().map(str::to_owned).ok_or_else(|| {
        let cause = "it needs a tag, because its digest depends on the commit";
        Error::new(ErrorKind::Other, "read the destination's name", cause)
    })?;
    let kept = tarpon_registry::open(&held.layout(), &AccessOptions::default()).await;
    let work = Work {
        base: base_repository(&held, request)?,
        base_source: parse(&held.committed.base)?,
        kept: kept.map_err(stored)?,
        new_layer: held.committed.layer,
        destination,
        progress,
    };
    let (manifest, config) = work.documents(&held.committed.digest).await?;
    let failed = |what: &str| {
        let step = format!("push {what}");
        move |error| access::registry(step, error)
    };
    let layers = work.layers(&manifest).await?;
    work.destination.push_bytes(config).await.map_err(failed("the config"))?;
    let bytes = Bytes::clone(&manifest.bytes);
    let digest = work.destination.push_manifest(OCI_MANIFEST, bytes, Some(&tag)).await;
    let digest = digest.map_err(failed(&format!("the manifest as {tag}")))?;
    let noted = commits.note_pushed(&held, &request.destination.to_string());
    noted.context(ErrorKind::Store, "note that it was pushed")?;
    forget_meaning(images, work.destination.name(), &request.access, &digest)?;
    let is_sent = |layer: &&PushedLayer| matches!(layer.outcome, PushedOutcome::Streamed | PushedOutcome::Uploaded);
    Ok(Pushed {
        image: held.committed.image.clone(),
        destination: work.destination.name().to_owned(),
        digest,
        uploaded_bytes: layers.iter().filter(is_sent).map(|layer| layer.size).sum(),
        downloaded_bytes: work.base.stats().bytes,
        layers,
    })
}

/// Updates what the store knows the name to mean: from now on it refers to `digest`.
fn forget_meaning(images: &Images, name: &str, access: &Access, digest: &Digest) -> Result<()> {
    let step = "note what the name means now";
    // An isolated store records nothing about images in no registry.
    let Ok(part) = images.for_image(name, access) else { return Ok(()) };
    let known = part.store().references().context(ErrorKind::Store, step)?;
    for reference in known.iter().filter(|reference| reference.source == name) {
        part.store().set_reference(name, &reference.platform, digest).context(ErrorKind::Store, step)?;
    }
    Ok(())
}

impl Work {
    /// The manifest, and the config that it names, as they were committed.
    async fn documents(&self, digest: &Digest) -> Result<(Manifest, Bytes)> {
        let manifest = match self.kept.root(&Platform::host()).await.map_err(stored)? {
            Document::Manifest(manifest) if manifest.digest() == digest => manifest,
            _ => {
                return Err(Error::new(
                    ErrorKind::Store,
                    "read the committed image",
                    "its manifest is another one than was committed",
                ));
            }
        };
        let image = ResolvedImage { manifest, index_digest: None, name: String::new() };
        let config = self.kept.config(&image).await.map_err(stored)?;
        Ok((image.manifest, Verified::into_inner(config.bytes)))
    }

    /// Transfers all layers: first those that take no bytes, then the others.
    async fn layers(&self, manifest: &Manifest) -> Result<Vec<PushedLayer>> {
        let blobs: Vec<Blob> = manifest.layers.iter().map(|layer| layer.blob()).collect();
        let asked: Vec<BoxFuture<'_, Result<Option<PushedOutcome>>>> =
            blobs.iter().enumerate().map(|(number, blob)| self.without_bytes(number, *blob).boxed()).collect();
        let asked: Vec<Option<PushedOutcome>> = stream::iter(asked).buffered(QUESTIONS).try_collect().await?;
        let plan = |(number, (blob, outcome)): (usize, (&Blob, &Option<PushedOutcome>))| LayerPlan {
            number,
            digest: blob.digest,
            size: blob.size,
            way: if outcome.is_some() { LayerWay::Local } else { LayerWay::Whole },
        };
        let plan: Vec<LayerPlan> = blobs.iter().zip(&asked).enumerate().map(plan).collect();
        self.progress.resolved(manifest.digest(), &plan);
        let moved: Vec<BoxFuture<'_, Result<PushedLayer>>> = blobs
            .iter()
            .zip(asked)
            .enumerate()
            .map(|(number, (blob, outcome))| self.moved(number, *blob, outcome).boxed())
            .collect();
        stream::iter(moved).buffered(STREAMS).try_collect().await
    }

    /// Whether a layer already exists at the destination, or the registry mounts it.
    async fn without_bytes(&self, number: usize, blob: Blob) -> Result<Option<PushedOutcome>> {
        let failed = |error| access::registry(step("look for", number, &blob.digest), error);
        // First, since a registry that can mount it also does when it already has it: one request instead of two.
        if let Source::Registry(from) = &self.base_source
            && blob.digest != self.new_layer
            && self.destination.mount_blob(blob, from).await.map_err(failed)?
        {
            return Ok(Some(PushedOutcome::Mounted));
        }
        let is_there = self.destination.has_blob(blob).await.map_err(failed)?;
        Ok(is_there.then_some(PushedOutcome::WasThere))
    }

    /// Sends a layer, unless it exists at the destination by now.
    async fn moved(&self, number: usize, blob: Blob, outcome: Option<PushedOutcome>) -> Result<PushedLayer> {
        let done = |outcome| PushedLayer { digest: blob.digest, size: blob.size, outcome };
        if let Some(outcome) = outcome {
            return Ok(done(outcome));
        }
        let (source, outcome): (Arc<dyn BlobSource>, _) = match blob.digest == self.new_layer {
            true => (self.kept.blobs(), PushedOutcome::Uploaded),
            false => (self.base.blobs(), PushedOutcome::Streamed),
        };
        let source = counted(source, self.progress.clone(), number);
        let copied = self.destination.copy_blob(blob, source).await;
        copied.map_err(|error| match (outcome, error) {
            (PushedOutcome::Uploaded, error @ tarpon_registry::Error::Source(_)) => {
                stored(error).hint("it is damaged: commit again")
            }
            (_, error) => access::registry(step("push", number, &blob.digest), error),
        })?;
        self.progress.layer_done(number);
        Ok(done(outcome))
    }
}

/// "push layer 3 (sha256:…)", counted from one.
fn step(doing: &str, number: usize, digest: &Digest) -> String {
    format!("{doing} layer {} ({digest})", number + 1)
}

/// The repository of the layers below. No request is made yet.
fn base_repository(held: &HeldCommit, request: &PushRequest) -> Result<Repository> {
    let base = &held.committed.base;
    let is_same = match (parse(base)?, &request.destination) {
        (Source::Registry(from), Source::Registry(to)) => from.registry() == to.registry(),
        _ => false,
    };
    access::open_later(base, if is_same { &request.access } else { &request.base_access })
}

fn parse(image: &str) -> Result<Source> {
    image.parse().context(ErrorKind::Store, "read the base's name")
}

/// The error if the commit itself cannot be read.
fn stored(error: tarpon_registry::Error) -> Error {
    Error::new(ErrorKind::Store, "read the committed image", error)
}

fn unknown(commits: &Commits, image: &Source) -> Error {
    let known: Vec<String> = commits.list().unwrap_or_default().into_iter().map(|found| found.image).collect();
    let error = Error::new(ErrorKind::NotFound, "look in the store", format!("nothing was committed as {image}"));
    match known.is_empty() {
        true => error.hint("`tarpon commit CONTAINER IMAGE` makes an image of what a container wrote"),
        false => error.hint(format!("committed are: {}", known.join(", "))),
    }
}
