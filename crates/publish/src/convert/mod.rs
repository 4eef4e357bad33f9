//! An image in another format: every layer rewritten as eStargz or zstd:chunked on its way from source to destination.
//!
//! ```text
//! choose    what the source names: manifests and configs, all checked
//! layers    whether each layer is copied or rewritten, and the work, several at once
//!   rewrite   download | check | decode | check | write | upload, for one layer
//! document  configs, manifests and the index that name the result
//! toc_image the tables of contents of eStargz layers that keep their diffID
//! ```
//!
//! Blobs go up first. A manifest and its tag follow once everything that they name was checked and uploaded; a conversion that fails or is
//! dropped leaves neither.

mod choose;
mod document;
mod failure;
mod layers;
mod report;
mod request;
mod rewrite;
mod toc_image;

use std::sync::Arc;

use bytes::Bytes;
use tarpon_images::progress::Progress;
use tarpon_images::{Admission, access};
use tarpon_oci::Source;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_registry::Destination;

use self::choose::{Chosen, Image};
use self::failure::outward;
use self::layers::NewLayer;
pub use self::report::{Conversion, ConvertedImage, ConvertedLayer, Outcome, TocImage};
pub use self::request::{ConvertRequest, MAX_CONVERT_JOBS, Platforms};
use crate::{Error, ErrorKind, Result};

/// Converts an image. Dropping the future stops it: uploaded blobs stay, and nothing names them.
///
/// # Errors
/// `Refused` for images and layers that are malformed, unsupported, or contradict their digests, and for contents that the format cannot
/// hold; `NotFound`, `Denied` and `Unavailable` from source and destination. Nothing was tagged then.
pub async fn convert(request: &ConvertRequest, progress: Arc<dyn Progress>) -> Result<Conversion> {
    let recipe = request.recipe()?;
    let destination = access::destination(&request.destination, &request.destination_access)?;
    let tag = destination.tag().map(str::to_owned).ok_or_else(|| {
        Error::new(
            ErrorKind::Other,
            "read the destination's name",
            "it needs a tag, because its digest depends on the result",
        )
    })?;
    let toc_tag = toc_image::tag(&tag, &recipe)?;
    let repository = access::open(&request.source, &request.source_access).await?;
    let source = request
        .source
        .parse()
        .map_err(|error: tarpon_oci::InvalidSource| Error::new(ErrorKind::NotFound, "read the image's name", error))?;
    let admission = Admission::of(&source, &request.source_access)?;
    let chosen = choose::images(&repository, &admission, &request.platforms).await?;
    chosen.notes.iter().for_each(|line| progress.note(line));

    let work = layers::Work {
        source: repository.blobs(),
        mount_from: match source {
            Source::Registry(reference) => Some(reference),
            _ => None,
        },
        destination: &destination,
        recipe,
        format: request.format,
        reuses: request.reuses(),
        jobs: request.jobs(),
        progress,
    };
    let layers = work.convert(&chosen).await?;

    let images = push_images(&destination, &chosen, &layers, &tag).await?;
    let toc_image = toc_image::push(&destination, &chosen, &layers, &toc_tag).await?;
    let digest = name(&destination, &chosen, &images, &tag).await?;
    let notes = chosen.notes.iter().cloned().chain(layers::unmoved(&layers, &request.prioritised)).collect();
    Ok(Conversion {
        source: repository.name().to_owned(),
        source_digest: chosen.digest(),
        destination: destination.name().to_owned(),
        format: request.format.to_string(),
        digest,
        is_index: chosen.index.is_some(),
        external_toc: toc_image,
        images: images.into_iter().map(|image| image.report).collect(),
        notes,
    })
}

/// An image whose config is pushed, and its manifest too unless that gets the tag.
struct PushedImage {
    manifest: Bytes,
    report: ConvertedImage,
}

async fn push_images(
    destination: &Destination,
    chosen: &Chosen,
    layers: &[NewLayer],
    tag: &str,
) -> Result<Vec<PushedImage>> {
    let mut pushed = Vec::with_capacity(chosen.images.len());
    for image in &chosen.images {
        let layers = layers::of(image, layers)?;
        let config = document::config(image, &layers)?;
        let blob = destination.push_bytes(config).await.map_err(|error| outward("push the config", error))?;
        let manifest = document::manifest(image, blob, &layers)?;
        let report = described(image, &manifest, &layers);
        if chosen.index.is_some() {
            let push = destination.push_manifest(OCI_MANIFEST, manifest.clone(), None).await;
            push.map_err(|error| outward(format!("push a manifest for {tag}"), error))?;
        }
        pushed.push(PushedImage { manifest, report });
    }
    Ok(pushed)
}

/// The report on `image`.
fn described(image: &Image, manifest: &Bytes, layers: &[&NewLayer]) -> ConvertedImage {
    let layers: Vec<ConvertedLayer> = layers
        .iter()
        .zip(&image.manifest.layers)
        .map(|(new, old)| ConvertedLayer {
            source_digest: old.digest,
            digest: new.descriptor.digest,
            source_size: old.size,
            size: new.descriptor.size,
            outcome: new.outcome,
        })
        .collect();
    ConvertedImage {
        platform: image.config.platform.to_string(),
        source_digest: *image.manifest.digest(),
        digest: tarpon_oci::Digest::of(manifest),
        source_size: image.manifest.layers_size(),
        size: layers.iter().map(|layer| layer.size).sum(),
        layers,
    }
}

/// Pushes the document that gets the tag: the last step, which makes the result visible.
async fn name(
    destination: &Destination,
    chosen: &Chosen,
    images: &[PushedImage],
    tag: &str,
) -> Result<tarpon_oci::Digest> {
    let (media_type, bytes) = match (&chosen.index, images) {
        (None, [image]) => (OCI_MANIFEST, image.manifest.clone()),
        (None, _) => return Err(Error::new(ErrorKind::Other, "push the manifest", "there is none")),
        (Some(index), images) => {
            let manifests: Vec<&Bytes> = images.iter().map(|image| &image.manifest).collect();
            (tarpon_oci::media_type::OCI_INDEX, document::index(index, chosen, &manifests)?)
        }
    };
    let push = destination.push_manifest(media_type, bytes, Some(tag)).await;
    push.map_err(|error| outward(format!("push the manifest as {tag}"), error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tarpon_images::progress::Silent;
    use tarpon_images::{Access, PolicyChoice};
    use tarpon_layer::toc::Format;
    use tarpon_oci::{Digest, Document, Platform};
    use tarpon_testkit::fixture::Fixture;
    use tarpon_testkit::layers::{Image, Item, Layer};

    use super::*;

    const SOCI: &str = "com.amazon.soci.index-digest";

    /// An image with this change to its manifest.
    fn image(change: impl FnOnce(&mut Value)) -> Image {
        let image = Image::of([Layer::gzip(&[Item::file("file", "text")])]);
        let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
        change(&mut manifest);
        Image { manifest: manifest.to_string().into_bytes(), ..image }
    }

    fn request(fixture: &Fixture, from: &str, to: &str) -> ConvertRequest {
        let access = Access { tls_verify: Some(false), ..Access::default() };
        ConvertRequest {
            source_access: access.clone(),
            destination_access: access,
            ..ConvertRequest::new(fixture.name(from), fixture.name(to), Format::ZstdChunked)
        }
    }

    async fn annotations(fixture: &Fixture, name: &str) -> Value {
        let access = Access { tls_verify: Some(false), ..Access::default() };
        let repository = access::open_later(&fixture.name(name), &access).unwrap();
        let Document::Manifest(manifest) = repository.root(&Platform::host()).await.unwrap() else {
            panic!("an index")
        };
        serde_json::from_slice::<Value>(&manifest.bytes).unwrap()["annotations"].take()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_soci_index_of_the_old_layers_is_not_named() {
        let image = image(|manifest| {
            manifest["annotations"] = json!({ SOCI: Digest::of(b"an index").to_string(), "odd": "kept" });
        });
        let fixture = Fixture::with_image(&image).await;
        convert(&request(&fixture, "app:v1", "new:v1"), Arc::new(Silent)).await.unwrap();
        assert_eq!(annotations(&fixture, "new:v1").await, json!({ "odd": "kept" }));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_that_a_manifest_names_is_fetched_before_the_policy_accepts_it() {
        let missing = image(|manifest| manifest["config"]["digest"] = json!(Digest::of(b"missing").to_string()));
        let fixture = Fixture::with_image(&missing).await;
        let key = crate::index::tests::public_key(&crate::index::tests::key());
        std::fs::write(fixture.path("key.pub"), key).unwrap();
        let policy = json!({"default": [{
            "type": "sigstoreSigned",
            "keyPath": fixture.path("key.pub"),
            "signedIdentity": {"type": "matchRepository"},
        }]});
        std::fs::write(fixture.path("policy.json"), policy.to_string()).unwrap();
        let mut request = request(&fixture, "app:v1", "new:v1");
        request.source_access.policy = PolicyChoice::File(fixture.path("policy.json"));
        let refused = convert(&request, Arc::new(Silent)).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Forbidden, "{refused}");
    }
}
