//! Writes an image to its destination: blobs first, then the manifests that name them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tarpon_blob::{BlobSource, BlobStream, Fault, SourceError};
use tarpon_oci::{Blob, DEFAULT_TAG, Digest, Document, NewDescriptor, Reference, Source, Verified, is_tag};

use crate::Error;
use crate::credentials::CredentialSource;
use crate::http::{Feed, Hosts, Purpose, Session, read_on};
use crate::local::LayoutWriter;
use crate::options::AccessOptions;
use crate::registries::Endpoint;
use crate::stats::{Counters, Stats};
use crate::transport::{HttpsTransport, Transport};

/// An image source that can be written to: a repository or an OCI layout. Cheap to share in an `Arc`. Blobs may be pushed at the
/// same time.
///
/// Pushed content is verified: a returned digest names the bytes that are stored.
pub struct Destination {
    backend: Backend,
    name: String,
    tag: Option<String>,
    counters: Arc<Counters>,
}

enum Backend {
    Registry { session: Arc<Session>, reference: Reference, mounts: Mounts },
    Layout(LayoutWriter),
}

/// Sessions with the right to mount, by the repository they mount from. A token for that may be refused, which must not break
/// everything else.
#[derive(Default)]
struct Mounts(Mutex<HashMap<String, Arc<Session>>>);

/// Opens `source` for writing. Nothing is sent or written yet. An archive is an error.
pub fn open_destination(source: &Source, options: &AccessOptions) -> Result<Destination, Error> {
    match source {
        Source::Registry(reference) => {
            let cert_dir = options.cert_dir.as_deref();
            let transport = HttpsTransport::new(reference.api_host(), options.verifies_registry(), cert_dir)
                .map_err(Error::Options)?;
            let (credentials, hosts) = (options.credential_source(), Hosts::of_this_process());
            open_destination_at(reference, Arc::new(transport), credentials, options.verifies_registry(), hosts)
        }
        Source::OciLayout { directory, tag } => {
            // As a registry would: the default tag is the latest. A pin is not a name.
            let tag = tag.clone().unwrap_or_else(|| DEFAULT_TAG.to_owned());
            let tag = Some(tag).filter(|tag| !tag.starts_with('@'));
            let backend = Backend::Layout(LayoutWriter::new(directory.clone()));
            Ok(Destination { backend, name: source.to_string(), tag, counters: Arc::default() })
        }
        archive @ (Source::OciArchive { .. } | Source::DockerArchive { .. }) => {
            Err(Error::ReadOnly(archive.to_string()))
        }
    }
}

/// Opens the repository of `reference` over `transport`: for tests.
pub fn open_destination_with(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    credentials: CredentialSource,
    tls_verify: bool,
) -> Result<Destination, Error> {
    open_destination_at(reference, transport, credentials, tls_verify, Arc::default())
}

fn open_destination_at(
    reference: &Reference,
    transport: Arc<dyn Transport>,
    credentials: CredentialSource,
    tls_verify: bool,
    hosts: Arc<Hosts>,
) -> Result<Destination, Error> {
    let counters = Arc::new(Counters::default());
    let endpoint = Endpoint::of(reference.clone(), !tls_verify);
    let session = Session::new(transport, &endpoint, credentials, Purpose::Push, counters.clone(), hosts)
        .map_err(|error| Error::Options(error.to_string()))?;
    let session = Arc::new(session);
    let backend = Backend::Registry { session, reference: reference.clone(), mounts: Mounts::default() };
    Ok(Destination { backend, name: reference.to_string(), tag: reference.tag().map(str::to_owned), counters })
}

impl Destination {
    /// The destination as the user named it, normalised.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag that the user named, `latest` if none; `None` if it was a digest instead.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Requests and bytes so far. Nothing is counted for layouts.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Whether `blob` exists there. An unclear answer of a registry counts as no.
    pub async fn has_blob(&self, blob: Blob) -> Result<bool, Error> {
        let found = match &self.backend {
            Backend::Registry { session, .. } => session.has_blob(blob).await,
            Backend::Layout(layout) => layout.has_blob(blob).await,
        };
        found.map_err(Error::Push)
    }

    /// Mounts `blob` from the repository of `from`, without transferring its bytes. `false` if that fails for any reason: then it has
    /// to be pushed.
    pub async fn mount_blob(&self, blob: Blob, from: &Reference) -> Result<bool, Error> {
        match &self.backend {
            Backend::Registry { session, reference, mounts } if reference.registry() == from.registry() => {
                let session = mounts.session(session, from.repository());
                session.mount(blob, from.repository()).await.map_err(Error::Push)
            }
            _ => Ok(false),
        }
    }

    /// Pushes `bytes` and returns their digest and size.
    pub async fn push_bytes(&self, bytes: Bytes) -> Result<Blob, Error> {
        let pushed = match &self.backend {
            Backend::Registry { session, .. } => {
                let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
                session.push_bytes(blob, &bytes).await.map(|()| blob)
            }
            Backend::Layout(layout) => layout.push_bytes(bytes).await,
        };
        pushed.map_err(Error::Push)
    }

    /// Pushes all of `pieces`, whose length and digest are known only at their end, and returns both. `pieces` must end or fail in
    /// bounded time. Their error is [`Error::Source`], and nothing is left of the blob.
    ///
    /// The last 16 MiB are kept, so that an upload continues where a connection broke. If the registry kept less, that is an
    /// error: [`Destination::copy_blob`] is for content that can be read again.
    pub async fn push_stream(&self, pieces: BlobStream) -> Result<Blob, Error> {
        match &self.backend {
            Backend::Registry { session, .. } => Ok(session.push_feed(&Feed::once(pieces)).await?),
            Backend::Layout(layout) => Ok(layout.push_stream(pieces, None).await?),
        }
    }

    /// Pushes `blob` from `source`, reading it again from where an upload broke. Bytes that do not match `blob` are [`Error::Source`].
    pub async fn copy_blob(&self, blob: Blob, source: Arc<dyn BlobSource>) -> Result<(), Error> {
        match &self.backend {
            Backend::Registry { session, .. } => {
                let feed = Feed::of(blob, source).await.map_err(Error::Source)?;
                session.push_feed(&feed).await?;
            }
            Backend::Layout(layout) => {
                let pieces = read_on(&*source, blob, 0).await.map_err(Error::Source)?;
                layout.push_stream(pieces, Some(blob)).await?;
            }
        }
        Ok(())
    }

    /// Pushes a manifest or index of type `media_type`, under `tag` if there is one, and returns its digest. Everything that it
    /// names must exist. If it has a `subject`, it can be found by [`crate::Repository::referrers`] afterwards.
    ///
    /// In a layout, `index.json` lists only manifests with a tag or a subject.
    pub async fn push_manifest(&self, media_type: &str, bytes: Bytes, tag: Option<&str>) -> Result<Digest, Error> {
        let invalid = |error| Error::Manifest { what: "manifest", error };
        let document = Document::parse(Verified::seal(bytes.clone()), Some(media_type)).map_err(invalid)?;
        let described = Described::new(media_type, &document);
        match &self.backend {
            Backend::Registry { session, .. } => put(session, &described, &bytes, tag).await?,
            Backend::Layout(layout) => {
                layout.push_bytes(bytes).await.map_err(Error::Push)?;
                if tag.is_some() || described.subject.is_some() {
                    layout.add(described.entry.clone(), tag.map(str::to_owned)).await.map_err(Error::Push)?;
                }
            }
        }
        Ok(described.entry.digest)
    }
}

impl Destination {
    /// Deletes the manifest `digest`, and its entry in the list of referrers of `subject` where clients keep that. `false`: there was none.
    ///
    /// Of a layout, its blobs are deleted too, unless something else in the layout names them. A registry deletes them when it collects
    /// garbage.
    pub async fn delete_manifest(&self, digest: &Digest, subject: Option<&Digest>) -> Result<bool, Error> {
        match &self.backend {
            Backend::Registry { session, .. } => {
                let deleting = session.for_purpose(Purpose::Delete);
                let was_there = deleting.delete_manifest(digest).await.map_err(Error::Push)?;
                if let Some(subject) = subject {
                    session.remove_referrer(subject, digest).await?;
                }
                Ok(was_there)
            }
            Backend::Layout(layout) => layout.remove(*digest).await.map_err(Error::Push),
        }
    }
}

/// The descriptor of a manifest, and its subject.
struct Described {
    entry: NewDescriptor,
    subject: Option<Digest>,
}

impl Described {
    fn new(media_type: &str, document: &Document) -> Self {
        let (bytes, artifact_type, annotations, subject) = match document {
            Document::Manifest(it) => (&it.bytes, &it.artifact_type, &it.annotations, &it.subject),
            Document::Index(it) => (&it.bytes, &it.artifact_type, &it.annotations, &it.subject),
        };
        let blob = Blob { digest: *bytes.digest(), size: bytes.len() as u64 };
        let mut entry = NewDescriptor::new(media_type, blob);
        entry.artifact_type.clone_from(artifact_type);
        if subject.is_some() {
            // As required in the list of referrers.
            entry.annotations.clone_from(annotations);
        }
        Self { entry, subject: subject.as_ref().map(|subject| subject.digest) }
    }
}

async fn put(session: &Session, described: &Described, bytes: &Bytes, tag: Option<&str>) -> Result<(), Error> {
    let digest = &described.entry.digest;
    let name = match tag {
        Some(tag) if !is_tag(tag) => {
            let message = format!("{tag:?} cannot be a tag");
            return Err(Error::Push(SourceError::new(Fault::Refused, message)));
        }
        Some(tag) => tag.to_owned(),
        None => digest.to_string(),
    };
    let put = session.put_manifest(&name, &described.entry.media_type, digest, bytes).await;
    let keeps_referrers = put.map_err(Error::Push)?;
    match &described.subject {
        Some(subject) if !keeps_referrers => session.add_referrer(subject, &described.entry).await,
        _ => Ok(()),
    }
}

impl Mounts {
    fn session(&self, session: &Session, from: &str) -> Arc<Session> {
        let mut sessions = self.0.lock();
        let make = || Arc::new(session.for_purpose(Purpose::Mount(from.to_owned())));
        sessions.entry(from.to_owned()).or_insert_with(make).clone()
    }
}
