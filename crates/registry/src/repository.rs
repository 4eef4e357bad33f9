//! An opened image source: resolves a platform's manifest, reads the config, serves the blobs.

use std::sync::Arc;

use bytes::Bytes;
use tarpon_blob::{BlobSource, Fault};
use tarpon_oci::{
    Blob, Descriptor, Digest, Document, ImageConfig, InvalidManifest, Manifest, Platform, Reference, Source, Verified,
    limits,
};

use crate::Error;
use crate::credentials::{CredentialSource, Credentials};
use crate::http::{Blobs, Hosts, Purpose, RemoteBlobs, Session};
use crate::local::{Local, Root};
use crate::options::AccessOptions;
use crate::stats::{Counters, Stats};
use crate::transport::{HttpsTransport, Transport};

/// An image source that can be resolved and read from. Cheap to share: clone the `Arc` of [`Repository::blobs`], or put the whole
/// in an `Arc`.
pub struct Repository {
    backend: Backend,
    name: String,
    counters: Arc<Counters>,
    warm_pool: bool,
    credentials: CredentialSource,
}

enum Backend {
    Registry { session: Arc<Session>, blobs: Arc<Blobs>, reference: Reference },
    Local(Arc<Local>),
}

/// The result of resolving a reference for one platform, pinned.
#[derive(Debug, Clone)]
pub struct ResolvedImage {
    /// The manifest. Its digest ([`Manifest::digest`]) is the image's name.
    pub manifest: Manifest,
    /// The index that it was chosen from.
    pub index_digest: Option<Digest>,
    /// The name of the source, for messages.
    pub name: String,
}

/// Opens `source`. For a registry nothing is sent yet. An archive is walked once, here.
pub async fn open(source: &Source, options: &AccessOptions) -> Result<Repository, Error> {
    let repository = open_later(source, options)?;
    if let Backend::Local(local) = &repository.backend {
        local.opened().await.map_err(Error::Source)?;
    }
    Ok(repository)
}

/// As [`open`], but a layout or archive is accessed only when it is read: for an image that is already known and may never need its
/// source again.
pub fn open_later(source: &Source, options: &AccessOptions) -> Result<Repository, Error> {
    match source {
        Source::Registry(reference) => {
            let cert_dir = options.cert_dir.as_deref();
            let transport =
                HttpsTransport::new(reference.api_host(), options.tls_verify, cert_dir).map_err(Error::Options)?;
            let credentials = options.credential_source();
            let hosts = Hosts::of_this_process();
            let repository = open_at(reference, Arc::new(transport), credentials, options.tls_verify, hosts)?;
            Ok(repository.with_warm_pool())
        }
        local => {
            let counters = Arc::new(Counters::default());
            let backend = Backend::Local(Arc::new(Local::new(local.clone(), counters.clone())));
            let credentials = CredentialSource::default();
            Ok(Repository { backend, name: source.to_string(), counters, warm_pool: false, credentials })
        }
    }
}

/// Opens the registry image `reference` over `transport`, for tests.
pub fn open_with(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    credentials: CredentialSource,
    tls_verify: bool,
) -> Result<Repository, Error> {
    open_at(reference, transport, credentials, tls_verify, Arc::default())
}

fn open_at(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    credentials: CredentialSource,
    tls_verify: bool,
    hosts: Arc<Hosts>,
) -> Result<Repository, Error> {
    let counters = Arc::new(Counters::default());
    let name = reference.to_string();
    let given = credentials.clone();
    let session = Session::new(transport, reference, tls_verify, given, Purpose::Pull, counters.clone(), hosts)
        .map_err(|error| Error::Options(error.to_string()))?;
    let session = Arc::new(session);
    let blobs = Arc::new(Blobs::new(session.clone()));
    let backend = Backend::Registry { session, blobs, reference: reference.clone() };
    Ok(Repository { backend, name, counters, warm_pool: false, credentials })
}

impl Repository {
    /// Uses these credentials for all later requests.
    pub fn replace_credentials(&self, credentials: Credentials) {
        self.credentials.replace(credentials);
    }

    /// Lets [`Repository::resolve`] open the connections for the config and the layers during the request for the tag, so that they
    /// cost no handshakes later.
    pub fn with_warm_pool(self) -> Self {
        Self { warm_pool: true, ..self }
    }

    /// The image as the user named it, normalised.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pins the image for `platform`: one request for the tag, one more if it is an index. The manifest is checked to be a
    /// container image whose layers can all be read.
    ///
    /// The config is not fetched here, so that the caller can request it and the first bytes of the layers at once: see
    /// [`Repository::config`].
    pub async fn resolve(&self, platform: &Platform) -> Result<ResolvedImage, Error> {
        let (manifest, index_digest) = match self.root(platform).await? {
            Document::Manifest(manifest) => (manifest, None),
            Document::Index(index) => {
                let chosen = index.select(platform);
                let chosen = chosen.map_err(Error::Platform)?;
                let bytes = self.chosen_manifest(chosen).await?;
                (parsed("manifest", Manifest::parse(bytes))?, Some(*index.bytes.digest()))
            }
        };
        parsed("manifest", manifest.check_image())?;
        Ok(ResolvedImage { manifest, index_digest, name: self.name.clone() })
    }

    /// The config of `image`, checked to describe its layers.
    pub async fn config(&self, image: &ResolvedImage) -> Result<ImageConfig, Error> {
        let bytes = self.verified_blob(image.manifest.config.blob()).await?;
        let config = parsed("config", ImageConfig::parse(bytes))?;
        parsed("config", image.manifest.check_config(&config))?;
        Ok(config)
    }

    /// The manifest or index `digest`, of any kind. Its bytes are checked, not parsed.
    pub async fn manifest(&self, digest: &Digest) -> Result<Verified<Bytes>, Error> {
        let found = match &self.backend {
            Backend::Registry { session, .. } => {
                session.manifest(&digest.to_string(), Some(digest)).await.map(|(bytes, _)| bytes)
            }
            Backend::Local(local) => local.manifest(digest).await,
        };
        found.map_err(Error::Source)
    }

    /// The manifest under a tag of the image's repository; `None` if there is none. Layouts and archives have no attachments.
    pub async fn attached(&self, tag: &str) -> Result<Option<Verified<Bytes>>, Error> {
        let Backend::Registry { session, .. } = &self.backend else { return Ok(None) };
        match session.manifest(tag, None).await {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.fault == Fault::NotFound => Ok(None),
            Err(error) => Err(Error::Source(error)),
        }
    }

    /// A whole blob of the image's repository. The caller bounds its size.
    pub async fn small_blob(&self, blob: Blob) -> Result<Bytes, Error> {
        self.verified_blob(blob).await.map(Verified::into_inner)
    }

    async fn verified_blob(&self, blob: Blob) -> Result<Verified<Bytes>, Error> {
        let bytes = match &self.backend {
            Backend::Registry { blobs, .. } => blobs.small_blob(blob).await,
            Backend::Local(local) => local.opened().await.map_err(Error::Source)?.blobs.small_blob(blob).await,
        };
        bytes.map_err(Error::Source)
    }

    /// The artifacts of kind `artifact_type` (a media type) whose subject is the manifest `subject`: from the registry's list, or
    /// else from the index under the tag `sha256-…`, or from the manifests of a layout. An empty result is no error.
    ///
    /// The list is not verified: a caller needs another reason to trust an artifact.
    pub async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>, Error> {
        match &self.backend {
            Backend::Registry { session, .. } => session.referrers(subject, artifact_type).await,
            Backend::Local(local) => local.referrers(subject, artifact_type).await.map_err(Error::Source),
        }
    }

    /// The blobs, readable by range.
    pub fn blobs(&self) -> Arc<dyn BlobSource> {
        match &self.backend {
            Backend::Registry { blobs, .. } => Arc::new(RemoteBlobs { blobs: blobs.clone(), name: self.name.clone() }),
            Backend::Local(local) => local.clone(),
        }
    }

    /// Requests and bytes so far.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Whether the registry recently answered a ranged request with the whole blob: then every read of a range costs all bytes
    /// before it.
    pub fn ignores_ranges(&self) -> bool {
        match &self.backend {
            Backend::Registry { blobs, .. } => blobs.ignores_ranges(),
            _ => false,
        }
    }

    /// The document that the reference or tag names, of any kind. `platform` selects one where a layout without a tag has several images.
    pub async fn root(&self, platform: &Platform) -> Result<Document, Error> {
        match &self.backend {
            Backend::Registry { session, reference, .. } => {
                if self.warm_pool {
                    let session = session.clone();
                    tokio::spawn(async move { session.warm_up().await });
                }
                let by_digest = reference.digest().map(ToString::to_string);
                let what = by_digest.as_deref().or(reference.tag()).unwrap_or(tarpon_oci::DEFAULT_TAG);
                let found = session.manifest(what, reference.digest()).await;
                let (bytes, content_type) = found.map_err(Error::Source)?;
                parsed("manifest", Document::parse(bytes, content_type.as_deref()))
            }
            Backend::Local(local) => match &local.opened().await.map_err(Error::Source)?.root {
                Root::Layout(index) => {
                    let chosen = index.select(platform).map_err(Error::Source)?;
                    let bytes = self.chosen_manifest(chosen).await?;
                    parsed("manifest", Document::parse(bytes, None))
                }
                Root::Docker(manifest) => parsed("manifest", Document::parse(manifest.clone(), None)),
            },
        }
    }

    /// The manifest that an index names.
    async fn chosen_manifest(&self, chosen: &Descriptor) -> Result<Verified<Bytes>, Error> {
        if chosen.size > limits::MANIFEST_BYTES {
            return parsed("manifest", Err(InvalidManifest::TooLarge { size: chosen.size }));
        }
        let found = match &self.backend {
            Backend::Registry { .. } => return self.manifest(&chosen.digest).await,
            Backend::Local(local) => local.opened().await.map_err(Error::Source)?.blobs.small_blob(chosen.blob()).await,
        };
        found.map_err(Error::Source)
    }
}

fn parsed<T>(what: &'static str, result: Result<T, InvalidManifest>) -> Result<T, Error> {
    result.map_err(|error| Error::Manifest { what, error })
}
