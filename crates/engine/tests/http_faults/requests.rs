//! The kinds of requests that a start makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tarpon_engine::oci::Digest;
use url::Url;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A token, from the token service.
    Token,
    /// The image index that the tag names.
    List,
    /// The manifest of the platform.
    Manifest,
    /// The config.
    Config,
    /// The list of referrers.
    Referrers,
    /// The manifest of the index artifact.
    Artifact,
    /// The places of files: the blob of the index artifact, or the layers' own tables of contents.
    Index,
    /// The boot pack: its index, and its frames.
    Pack,
    /// Parts of layers, while files are read.
    Chunk,
}

/// All kinds, in the order of a start.
pub(crate) const PHASES: [Phase; 9] = [
    Phase::Token,
    Phase::List,
    Phase::Manifest,
    Phase::Config,
    Phase::Referrers,
    Phase::Artifact,
    Phase::Index,
    Phase::Pack,
    Phase::Chunk,
];

/// The digests by which requests are recognised.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) manifest: Digest,
    pub(crate) config: Digest,
    pub(crate) artifact: Digest,
    /// The blob with indexes of layers, if it has any.
    pub(crate) index: Option<Digest>,
    /// Index and frames of the boot pack.
    pub(crate) pack: Vec<Digest>,
    pub(crate) layers: Vec<Digest>,
}

impl Names {
    /// Recognises the requests of a phase. `is_reading`: files are being read. `host`: only requests to this host.
    pub(crate) fn recogniser(
        &self,
        phase: Phase,
        is_reading: Arc<AtomicBool>,
        host: Option<&'static str>,
    ) -> impl Fn(&Url) -> bool + Send + use<> {
        let manifest = |digest: Digest| format!("/manifests/{digest}");
        let blob = |digest: &Digest| format!("/blobs/{digest}");
        let layers = || self.layers.iter().map(blob).collect::<Vec<_>>();
        let (parts, while_reading) = match phase {
            Phase::Token => (vec!["/token".to_owned()], None),
            Phase::List => (vec!["/manifests/v1".to_owned()], None),
            Phase::Manifest => (vec![manifest(self.manifest)], None),
            Phase::Config => (vec![blob(&self.config)], None),
            Phase::Referrers => (vec!["/referrers/".to_owned()], None),
            Phase::Artifact => (vec![manifest(self.artifact)], None),
            Phase::Index => match &self.index {
                Some(index) => (vec![blob(index)], None),
                None => (layers(), Some(false)),
            },
            Phase::Pack => (self.pack.iter().map(blob).collect(), None),
            Phase::Chunk => (layers(), Some(true)),
        };
        move |url| {
            parts.iter().any(|part| url.path().contains(part.as_str()))
                && host.is_none_or(|host| url.host_str() == Some(host))
                && while_reading.is_none_or(|wanted| wanted == is_reading.load(Ordering::Relaxed))
        }
    }
}

impl Phase {
    /// Whether its requests are for blobs, which may be at another host.
    pub(crate) fn is_of_blobs(self) -> bool {
        matches!(self, Self::Config | Self::Index | Self::Pack | Self::Chunk)
    }
}
