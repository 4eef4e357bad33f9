//! A mounted image whose registry is scripted.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_oci::{Digest, Reference};
use tarpon_registry::serve::Contents;
use tarpon_registry::{CredentialSource, open_with};
use tarpon_testkit::registry::{Auth, FakeRegistry, Fault, Hosts};
use tarpon_testkit::source::{Form, MemoryStore, PackedLayer, Packer, table_of};
use tarpon_testkit::transport::ScriptedTransport;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A mounted image and its registry.
pub(crate) struct Mounted {
    pub(crate) transports: Vec<Arc<ScriptedTransport>>,
    pub(crate) fetcher: Fetcher,
    pub(crate) files: Files,
    _images: Vec<ImageHandle>,
}

/// The files of an image, by digest.
pub(crate) type Files = Arc<Vec<(Digest, Bytes)>>;

/// This many files, each of which needs a request of its own.
pub(crate) fn layer(count: usize) -> (PackedLayer, Files) {
    let mut packer = Packer::new(Form::Raw);
    let file = |number: usize| {
        let content: Vec<u8> =
            (0..600_u32).flat_map(|at| (at * 7 + u32::try_from(number).unwrap()).to_le_bytes()).collect();
        packer.gap(1);
        (packer.object(&content, 4096), Bytes::from(content))
    };
    let files = (0..count).map(file).collect();
    (packer.finish(), Arc::new(files))
}

impl Mounted {
    pub(crate) async fn new(layer: &PackedLayer, files: &Files) -> Self {
        Self::of(layer, files, &Auth::Anonymous, 1)
    }

    /// This many images at registries of their own, all with this layer.
    pub(crate) fn of(layer: &PackedLayer, files: &Files, auth: &Auth, registries: usize) -> Self {
        let config = Config { coalesce_gap: 0, ..Config::default() };
        let fetcher = Fetcher::new(Arc::new(MemoryStore::default()), Handle::current(), config);
        let image = |number: usize| {
            let mut contents = Contents::new();
            contents.add_blob(layer.bytes.clone());
            let registry = Arc::new(FakeRegistry::new(contents, auth.clone(), None));
            let host = if number == 0 { "registry.test".to_owned() } else { format!("registry{number}.test") };
            registry.set_hosts(Hosts { registry: format!("https://{host}"), ..registry.hosts() });
            let transport = Arc::new(ScriptedTransport::new(registry));
            let name = format!("{host}/app:1");
            let reference: Reference = name.parse().unwrap();
            let repository = open_with(&reference, transport.clone(), CredentialSource::default(), true).unwrap();
            (transport, fetcher.add_image(table_of(&[layer]), repository.blobs(), name))
        };
        let (transports, images) = (0..registries).map(image).unzip();
        Self { transports, fetcher, files: files.clone(), _images: images }
    }

    /// From now on this happens to all requests whose path contains `part`, at each of the registries.
    pub(crate) fn attack(&self, part: &'static str, fault: Option<&Fault>) {
        self.transports.iter().for_each(|transport| transport.attack(part, fault.cloned()));
    }

    /// Reads like a process that reads through the kernel: an error is followed by a second request for the same bytes. Returns how
    /// long it took, and whether there was an answer.
    pub(crate) async fn read(&self, number: usize) -> (Duration, bool) {
        let began = Instant::now();
        for _request in 0..2 {
            let (object, content) = &self.files[number];
            if let Ok(bytes) = self.fetcher.read(object, 0, 4096).await {
                assert_eq!(bytes.into_bytes(), content, "wrong bytes of file {number}");
                return (began.elapsed(), true);
            }
        }
        (began.elapsed(), false)
    }
}
