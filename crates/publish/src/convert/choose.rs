//! Which images a source names, and which of them are converted.

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tarpon_images::Admission;
use tarpon_oci::{Descriptor, Digest, Document, ImageConfig, ImageIndex, Manifest, MediaType, Platform, Verified};
use tarpon_registry::{Repository, ResolvedImage};

use super::failure::{advised, outward};
use super::request::Platforms;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Images of an index whose documents are fetched at the same time: most indexes have fewer.
const DOCUMENTS: usize = 8;

/// The images to convert.
pub(super) struct Chosen {
    /// The index on which the result's index is based; `None`: the result is a single manifest.
    pub(super) index: Option<ImageIndex>,
    /// In the order of the index.
    pub(super) images: Vec<Image>,
    /// Notes for the user, one line each.
    pub(super) notes: Vec<String>,
    digest: Digest,
}

/// One image of the source.
pub(super) struct Image {
    /// Its place in the index.
    pub(super) entry: Option<usize>,
    pub(super) manifest: Manifest,
    pub(super) config: ImageConfig,
}

impl Chosen {
    /// Digest of the manifest or index that the source's name refers to.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }
}

/// Resolves the source and reads the requested manifests and configs. The policy must accept each image, and the index that the result is
/// based on, before what it leads to is fetched.
pub(super) async fn images(repository: &Repository, admission: &Admission, platforms: &Platforms) -> Result<Chosen> {
    let host = Platform::host();
    let hint = match platforms {
        Platforms::These(these) => these.first().unwrap_or(&host),
        _ => &host,
    };
    match repository.root(hint).await.map_err(|error| outward("resolve", error))? {
        Document::Manifest(manifest) => {
            let digest = *manifest.digest();
            admission.check(repository, &digest).await?;
            let image = image(repository, None, manifest).await?;
            check_platform(&image.config, platforms)?;
            Ok(Chosen { index: None, images: vec![image], notes: Vec::new(), digest })
        }
        Document::Index(index) => of_index(repository, admission, index, platforms).await,
    }
}

async fn of_index(
    repository: &Repository,
    admission: &Admission,
    index: ImageIndex,
    platforms: &Platforms,
) -> Result<Chosen> {
    let entries = match platforms {
        Platforms::Host => vec![select(&index, &Platform::host())?],
        Platforms::These(these) => {
            let mut entries = these.iter().map(|platform| select(&index, platform)).collect::<Result<Vec<_>>>()?;
            entries.sort_unstable();
            entries.dedup();
            entries
        }
        Platforms::All => all(&index)?,
    };
    let digest = *index.bytes.digest();
    let keeps_index = match platforms {
        Platforms::Host => false,
        Platforms::These(_) => entries.len() > 1,
        Platforms::All => true,
    };
    if keeps_index {
        admission.check(repository, &digest).await?;
    }
    // Collected: otherwise the compiler rejects the returned future as not `Send`.
    let images: Vec<BoxFuture<'_, Result<Image>>> = entries
        .iter()
        .map(|entry| listed(repository, admission, *entry, index.manifests[*entry].digest).boxed())
        .collect();
    let images = stream::iter(images).buffered(DOCUMENTS).try_collect().await?;
    let notes = if keeps_index { left_out(&index) } else { Vec::new() };
    Ok(Chosen { index: keeps_index.then_some(index), images, notes, digest })
}

/// The image at a place of the index.
async fn listed(repository: &Repository, admission: &Admission, entry: usize, digest: Digest) -> Result<Image> {
    admission.check(repository, &digest).await?;
    let bytes = repository.manifest(&digest).await.map_err(|error| outward("resolve", error))?;
    image(repository, Some(entry), parse(bytes)?).await
}

fn parse(bytes: Verified<Bytes>) -> Result<Manifest> {
    Manifest::parse(bytes).map_err(|error| Error::new(ErrorKind::Refused, "resolve", format!("manifest: {error}")))
}

/// Position of the manifest for `platform`.
fn select(index: &ImageIndex, platform: &Platform) -> Result<usize> {
    let found = index.select(platform).map_err(|error| {
        Error::new(ErrorKind::NotFound, "resolve", error).hint("choose with --platform, or take --all-platforms")
    })?;
    place(index, found)
}

fn all(index: &ImageIndex) -> Result<Vec<usize>> {
    if let Some(inner) = index.manifests.iter().find(|entry| entry.media_type == MediaType::Index) {
        let cause = format!("index {} inside of the index is not supported", inner.digest);
        return Err(Error::new(ErrorKind::Refused, "resolve", cause));
    }
    let places: Vec<usize> = index.images().map(|entry| place(index, entry)).collect::<Result<_>>()?;
    match places.is_empty() {
        true => Err(Error::new(ErrorKind::NotFound, "resolve", "the index names no image")),
        false => Ok(places),
    }
}

fn place(index: &ImageIndex, found: &Descriptor) -> Result<usize> {
    let place = index.manifests.iter().position(|entry| std::ptr::eq(entry, found));
    place.ok_or_else(|| Error::new(ErrorKind::Other, "resolve", "an entry of the index was lost"))
}

/// Notes on omitted entries: attestations, signatures and the like name the digests of manifests, which change.
fn left_out(index: &ImageIndex) -> Vec<String> {
    match index.manifests.len() - index.images().count() {
        0 => Vec::new(),
        count => {
            vec![format!("left out {count} manifests of the index that are no images (attestations and the like)")]
        }
    }
}

async fn image(repository: &Repository, entry: Option<usize>, manifest: Manifest) -> Result<Image> {
    manifest.check_image().context(ErrorKind::Refused, format!("read manifest {}", manifest.digest()))?;
    let resolved = ResolvedImage { manifest, index_digest: None, name: String::new() };
    let config = tarpon_images::access::config(repository, &resolved).await.map_err(advised)?;
    Ok(Image { entry, manifest: resolved.manifest, config })
}

/// An error if a single image is not for a requested platform.
fn check_platform(config: &ImageConfig, platforms: &Platforms) -> Result<()> {
    match platforms {
        Platforms::These(these) if !these.iter().any(|platform| platform.distance(&config.platform).is_some()) => {
            let cause = format!("the image is for {} only", config.platform);
            Err(Error::new(ErrorKind::NotFound, "choose the platform", cause))
        }
        _ => Ok(()),
    }
}
