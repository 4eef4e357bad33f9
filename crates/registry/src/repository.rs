//! An opened image source: resolves a platform's manifest, reads the config, serves the blobs.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use tarpon_blob::{BlobSource, Fault, SourceError};
use tarpon_oci::{
    Blob, Descriptor, Digest, Document, ImageConfig, InvalidManifest, Manifest, Platform, Reference, Source, Verified,
    limits,
};

use crate::Error;
use crate::credentials::{CredentialSource, Credentials};
use crate::http::{Endpoints, Host, Hosts, Position, Purpose, RemoteBlobs, Session};
use crate::local::{Local, Root};
use crate::options::AccessOptions;
use crate::registries::Endpoint;
use crate::stats::{Counters, EndpointAccount, Stats};
use crate::transport::{HttpsTransport, Transport};

/// An image source that can be resolved and read from. Cheap to share: clone the `Arc` of [`Repository::blobs`], or put the whole
/// in an `Arc`.
pub struct Repository {
    backend: Backend,
    name: String,
    warm_pool: bool,
    credentials: CredentialSource,
}

enum Backend {
    Registry(Arc<Endpoints>),
    Local(Arc<Local>, Arc<Counters>),
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
    if let Backend::Local(local, _) = &repository.backend {
        local.opened().await.map_err(Error::Source)?;
    }
    Ok(repository)
}

/// As [`open`], but a layout or archive is accessed only when it is read: for an image that is already known and may never need its
/// source again.
pub fn open_later(source: &Source, options: &AccessOptions) -> Result<Repository, Error> {
    match source {
        Source::Registry(reference) => {
            let (endpoints, credentials) = (options.endpoints_of(reference), options.credential_source());
            let last = endpoints.len().saturating_sub(1);
            let mut hosts = Vec::with_capacity(endpoints.len());
            for (number, endpoint) in endpoints.iter().enumerate() {
                let transport = match HttpsTransport::at(endpoint, options.cert_dir.as_deref()) {
                    Ok(transport) => transport,
                    // The others serve the image without it.
                    Err(why) if number < last => HttpsTransport::unusable(why),
                    Err(why) => return Err(Error::Options(why)),
                };
                let transport: Arc<dyn Transport> = Arc::new(transport);
                hosts.push((transport, credentials.at(number, &endpoints, reference), endpoint.clone()));
            }
            Ok(open_at(reference, hosts, Hosts::of_this_process())?.with_warm_pool())
        }
        local => {
            let counters = Arc::new(Counters::default());
            let backend = Backend::Local(Arc::new(Local::new(local.clone(), counters.clone())), counters);
            let credentials = CredentialSource::default();
            Ok(Repository { backend, name: source.to_string(), warm_pool: false, credentials })
        }
    }
}

/// As [`open_later`], of an image as its registry shows it to everybody: without credentials of the user, without client certificates and
/// headers that the host configures, and not from a mirror.
pub fn open_anonymously(image: &Reference, options: &AccessOptions) -> Result<Repository, Error> {
    let Some(mut endpoint) = options.endpoints_of(image).pop() else {
        return Err(Error::Options(format!("no host serves {image}")));
    };
    if let Some(address) = &mut endpoint.address {
        address.identities.clear();
        address.headers.clear();
    }
    let transport = HttpsTransport::at(&endpoint, options.cert_dir.as_deref()).map_err(Error::Options)?;
    let transport: Arc<dyn Transport> = Arc::new(transport.without_identity());
    open_at(image, vec![(transport, CredentialSource::default(), endpoint)], Hosts::of_this_process())
}

/// Opens the registry image `reference` over `transport`, for tests.
pub fn open_with(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    credentials: CredentialSource,
    tls_verify: bool,
) -> Result<Repository, Error> {
    let endpoint = Endpoint::of(reference.clone(), !tls_verify);
    open_at(reference, vec![(transport, credentials, endpoint)], Arc::default())
}

/// As [`open_with`], with mirrors: each endpoint has its own transport and credentials, and the registry is the last.
pub fn open_mirrored_with(reference: &Reference, endpoints: Vec<OpenedEndpoint>) -> Result<Repository, Error> {
    open_at(reference, endpoints, Arc::default())
}

/// An endpoint, and how it is reached.
pub type OpenedEndpoint = (Arc<dyn Transport>, CredentialSource, Endpoint);

fn open_at(reference: &Reference, endpoints: Vec<OpenedEndpoint>, hosts: Arc<Hosts>) -> Result<Repository, Error> {
    let last = endpoints.len().saturating_sub(1);
    let given = endpoints.last().map(|(_, credentials, _)| credentials.clone()).unwrap_or_default();
    let mut opened = Vec::with_capacity(endpoints.len());
    for (number, (transport, credentials, endpoint)) in endpoints.into_iter().enumerate() {
        let session = Session::new(transport, &endpoint, credentials, Purpose::Pull, Arc::default(), hosts.clone())
            .map_err(|error| Error::Options(error.to_string()))?;
        let position = match number {
            _ if last == 0 => Position::Only,
            number if number == last => Position::AfterMirrors,
            _ => Position::Mirror,
        };
        opened.push(Host::new(session.at_position(position), endpoint));
    }
    let Some(registry) = opened.pop() else {
        return Err(Error::Options(format!("no host serves {reference}")));
    };
    let backend = Backend::Registry(Arc::new(Endpoints::new(opened, registry)));
    Ok(Repository { backend, name: reference.to_string(), warm_pool: false, credentials: given })
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

    /// Connects and logs in ahead of the first `requests` requests, which are made at once, so that they take one round trip. Errors
    /// show with these requests.
    pub async fn get_ready(&self, requests: usize) {
        if let Backend::Registry(endpoints) = &self.backend {
            endpoints.get_ready(requests).await;
        }
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
            Backend::Registry(endpoints) => endpoints.manifest(digest).boxed().await,
            Backend::Local(local, _) => local.manifest(digest).await,
        };
        found.map_err(Error::Source)
    }

    /// The manifest under a tag of the image's repository; `None` if there is none. Layouts and archives have no attachments.
    pub async fn attached(&self, tag: &str) -> Result<Option<Verified<Bytes>>, Error> {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.attached(tag).boxed().await.map_err(Error::Source),
            Backend::Local(..) => Ok(None),
        }
    }

    /// A whole blob of the image's repository. The caller bounds its size.
    pub async fn small_blob(&self, blob: Blob) -> Result<Bytes, Error> {
        self.verified_blob(blob).await.map(Verified::into_inner)
    }

    async fn verified_blob(&self, blob: Blob) -> Result<Verified<Bytes>, Error> {
        let bytes = match &self.backend {
            Backend::Registry(endpoints) => endpoints.small_blob(blob).boxed().await,
            Backend::Local(local, _) => local.opened().await.map_err(Error::Source)?.blobs.small_blob(blob).await,
        };
        bytes.map_err(Error::Source)
    }

    /// The artifacts of kind `artifact_type` (a media type) whose subject is the manifest `subject`: from the registry's list, or
    /// else from the index under the tag `sha256-…`, or from the manifests of a layout. An empty result is no error.
    ///
    /// The list is not verified: a caller needs another reason to trust an artifact.
    pub async fn referrers(&self, subject: &Digest, artifact_type: &str) -> Result<Vec<Descriptor>, Error> {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.referrers(subject, artifact_type).boxed().await,
            Backend::Local(local, _) => local.referrers(subject, artifact_type).await.map_err(Error::Source),
        }
    }

    /// The tags of the image's repository.
    ///
    /// # Errors
    /// The registry does not list them, or the source is no registry.
    pub async fn tags(&self) -> Result<Vec<String>, Error> {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.tags().await.map_err(Error::Source),
            Backend::Local(..) => {
                Err(Error::Source(SourceError::new(Fault::Refused, "only the tags of a registry can be listed")))
            }
        }
    }

    /// The blobs, readable by range.
    pub fn blobs(&self) -> Arc<dyn BlobSource> {
        match &self.backend {
            Backend::Registry(endpoints) => {
                Arc::new(RemoteBlobs { endpoints: endpoints.clone(), name: self.name.clone() })
            }
            Backend::Local(local, _) => local.clone(),
        }
    }

    /// Requests and bytes so far.
    pub fn stats(&self) -> Stats {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.stats(),
            Backend::Local(_, counters) => counters.read(),
        }
    }

    /// The account of each endpoint, in the order in which they are asked: its mirrors, then the registry. None for a layout or an
    /// archive.
    pub fn accounts(&self) -> Vec<EndpointAccount> {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.accounts(),
            Backend::Local(..) => Vec::new(),
        }
    }

    /// Whether the registry recently answered a ranged request with the whole blob: then every read of a range costs all bytes
    /// before it.
    pub fn ignores_ranges(&self) -> bool {
        match &self.backend {
            Backend::Registry(endpoints) => endpoints.ignores_ranges(),
            _ => false,
        }
    }

    /// The document that the reference or tag names, of any kind. `platform` selects one where a layout without a tag has several images.
    pub async fn root(&self, platform: &Platform) -> Result<Document, Error> {
        match &self.backend {
            Backend::Registry(endpoints) => {
                if self.warm_pool {
                    endpoints.warm_up();
                }
                let (bytes, content_type) = endpoints.root().boxed().await.map_err(Error::Source)?;
                parsed("manifest", Document::parse(bytes, content_type.as_deref()))
            }
            Backend::Local(local, _) => match &local.opened().await.map_err(Error::Source)?.root {
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
            Backend::Registry(_) => return self.manifest(&chosen.digest).await,
            Backend::Local(local, _) => {
                local.opened().await.map_err(Error::Source)?.blobs.small_blob(chosen.blob()).await
            }
        };
        found.map_err(Error::Source)
    }
}

fn parsed<T>(what: &'static str, result: Result<T, InvalidManifest>) -> Result<T, Error> {
    result.map_err(|error| Error::Manifest { what, error })
}
