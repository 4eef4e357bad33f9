//! A scripted network with one image on it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod mounted;

use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use tarpon_blob::SourceError;
use tarpon_oci::{Blob, Compression, Digest, Platform, Reference, media_type};
use tarpon_registry::serve::Contents;
use tarpon_registry::{CredentialSource, Credentials, Repository, open_with};
use tarpon_testkit::registry::{Auth, FakeRegistry, IDENTITY, PASSWORD, USER};
use tarpon_testkit::transport::{ScriptedTransport, Seen};

/// Configures the registry's token service on another host.
pub(crate) const TOKEN_SERVICES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/token-services");

pub(crate) const PASSWORD_GIVEN: Option<&str> = Some(PASSWORD);

/// 100,000 bytes, none like its neighbours.
pub(crate) fn blob_bytes() -> Bytes {
    static BYTES: LazyLock<Bytes> =
        LazyLock::new(|| (0..100_000u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect());
    BYTES.clone()
}

/// `app:1`: an image whose one layer is the blob.
pub(crate) fn contents() -> Contents {
    let mut contents = Contents::new();
    let layer = contents.add_blob(blob_bytes());
    let config = format!(
        r#"{{"os":"linux","architecture":"{}","rootfs":{{"type":"layers","diff_ids":["{layer}"]}}}}"#,
        Platform::host().architecture()
    );
    let size = config.len();
    let config = contents.add_blob(config);
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{}","config":{{"mediaType":"{}","digest":"{config}","size":{size}}},"layers":[{{"mediaType":"{}","digest":"{layer}","size":100000}}]}}"#,
        media_type::OCI_MANIFEST,
        media_type::OCI_CONFIG,
        Compression::Gzip.layer_media_type(),
    );
    contents.add_manifest(Some(("app", "1")), media_type::OCI_MANIFEST, manifest);
    contents
}

pub(crate) fn blob() -> Blob {
    Blob { digest: Digest::of(&blob_bytes()), size: 100_000 }
}

pub(crate) struct World {
    pub(crate) registry: Arc<FakeRegistry>,
    pub(crate) transport: Arc<ScriptedTransport>,
    pub(crate) repository: Repository,
}

impl World {
    pub(crate) fn open() -> Self {
        Self::new(Auth::Anonymous, None, None)
    }

    pub(crate) fn basic(password: Option<&str>) -> Self {
        Self::new(Auth::Basic, None, password.map(given))
    }

    pub(crate) fn token(password: Option<&str>) -> Self {
        Self::new(Auth::Bearer { anonymous: false, expires_in: Some(60) }, None, password.map(given))
    }

    pub(crate) fn presigned() -> Self {
        Self::new(Auth::Anonymous, Some(Duration::from_secs(600)), None)
    }

    pub(crate) fn new(auth: Auth, presigned: Option<Duration>, credentials: Option<Credentials>) -> Self {
        Self::with_source(auth, presigned, CredentialSource::new(credentials, Vec::new()))
    }

    pub(crate) fn with_source(auth: Auth, presigned: Option<Duration>, source: CredentialSource) -> Self {
        Self::with_strict_source(auth, presigned, source.with_token_services(vec![TOKEN_SERVICES.into()]))
    }

    /// As [`World::with_source`], without a configured token service.
    pub(crate) fn with_strict_source(auth: Auth, presigned: Option<Duration>, source: CredentialSource) -> Self {
        let registry = Arc::new(FakeRegistry::new(contents(), auth, presigned));
        let transport = Arc::new(ScriptedTransport::new(registry.clone()));
        let reference: Reference = "registry.test/app:1".parse().unwrap();
        let repository = open_with(&reference, transport.clone(), source, true).unwrap();
        Self { registry, transport, repository }
    }

    /// Resolves the tag.
    pub(crate) async fn tag(&self) -> Result<(), SourceError> {
        match self.repository.resolve(&Platform::host()).await {
            Ok(image) => {
                assert_eq!(image.manifest.layers[0].blob(), blob());
                Ok(())
            }
            Err(tarpon_registry::Error::Source(error)) => Err(error),
            Err(other) => panic!("{other}"),
        }
    }

    /// Reads `range` of the blob and checks the bytes.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<(), SourceError> {
        let pieces = self.repository.blobs().read(blob(), range.clone()).await?;
        let read: Vec<u8> = pieces
            .try_fold(Vec::new(), |mut all, piece| async move {
                all.extend_from_slice(&piece);
                Ok(all)
            })
            .await?;
        let (start, end) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
        assert!(read == blob_bytes()[start..end], "wrong bytes: {} of {}", read.len(), end - start);
        Ok(())
    }
}

pub(crate) fn given(password: &str) -> Credentials {
    Credentials::parse(&format!("{USER}:{password}")).unwrap()
}

/// What a request sent, as text. `Debug` hides the values of some headers.
pub(crate) fn sent(seen: &Seen) -> String {
    let headers = seen.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or_default()));
    let headers = headers.collect::<Vec<_>>().join("\n");
    format!("{} {}\n{headers}\n{}", seen.method, seen.url, String::from_utf8_lossy(&seen.body))
}

/// Fails if a request sent a secret that only the registry may have.
pub(crate) fn assert_none_sent(seen: &[Seen]) {
    seen.iter().for_each(|seen| assert_no_secret(&sent(seen)));
}

/// Fails if `text` contains a secret that only the registry may have.
pub(crate) fn assert_no_secret(text: &str) {
    use base64::Engine as _;
    let pair = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    for secret in [PASSWORD, IDENTITY, &pair, "token-", "signature-"] {
        assert!(!text.contains(secret), "a secret in {text}");
    }
}
