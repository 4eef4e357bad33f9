//! Counts the round trips of a start, one after the other: until an image with an index is prepared, and until the first requests for its
//! boot pack are answered. The tables of docs/design/indexes.md have these numbers.
//!
//! The clock of a test stands still but for the network, which takes one unit of time for each round trip. So the time that has passed is
//! the number of round trips that had to wait for each other. Connections are counted as HTTP/1.1 has them: one request at a time.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flate2::write::GzEncoder;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use support::{EngineFixture as _, request};
use tarpon_engine::oci::{Blob, Compression, Digest, Reference, Source};
use tarpon_engine::registry::Contents;
use tarpon_engine::trace::{Header, Touch, Trace};
use tarpon_engine::{Access, ImageRequest, IndexChoice, Silent};
use tarpon_images::index::pack::PackListener;
use tarpon_images::index::places::IndexPlaces;
use tarpon_images::sources::READY_CONNECTIONS;
use tarpon_registry::transport::{Request, Response, Transport, TransportError};
use tarpon_registry::{CredentialSource, Credentials, Repository, open_destination_with, open_with};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, Referrers, USER};
use tarpon_testkit::transport::ScriptedTransport;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// A round trip. Short against all timeouts.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Round trips of a handshake: TCP, TLS 1.3.
const HANDSHAKES: u32 = 2;

/// The idle connections of a process.
#[derive(Default)]
struct Pool {
    /// How many there are to each host.
    idle: Mutex<HashMap<String, usize>>,
    /// Notified when there is one more.
    changed: Notify,
}

impl Pool {
    /// Takes an idle connection, or else the first that is free: one whose response ends, or a new one.
    async fn connection(&self, host: &str) {
        let connected = sleep(ROUND_TRIP * HANDSHAKES);
        tokio::pin!(connected);
        while !self.take(host) {
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = &mut connected => return,
            }
        }
    }

    fn take(&self, host: &str) -> bool {
        match self.idle.lock().get_mut(host) {
            Some(connections @ 1..) => {
                *connections -= 1;
                true
            }
            _ => false,
        }
    }

    fn give_back(&self, host: &str) {
        *self.idle.lock().entry(host.to_owned()).or_default() += 1;
        self.changed.notify_waiters();
    }
}

/// A network on which each round trip takes [`ROUND_TRIP`], and nothing else takes any time. Each process has a pool of its own.
struct Distant {
    network: Arc<ScriptedTransport>,
    pool: Arc<Pool>,
}

impl Distant {
    fn new(network: &Arc<ScriptedTransport>) -> Arc<Self> {
        Arc::new(Self { network: network.clone(), pool: Arc::default() })
    }

    async fn round_trips(&self, request: Request) -> Result<Response, TransportError> {
        let host = request.url.authority().to_owned();
        self.pool.connection(&host).await;
        sleep(ROUND_TRIP).await;
        let response = self.network.send(request).await?;
        let length =
            response.headers.get("content-length").and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let (pool, mut left) = (self.pool.clone(), length.expect("the model states it"));
        let body = response.body.inspect(move |piece| {
            let bytes = piece.as_ref().map_or(0, |piece| piece.len() as u64);
            left = left.saturating_sub(bytes);
            // The connection is free once the body was read to its end.
            if left == 0 && bytes > 0 {
                pool.give_back(&host);
            }
        });
        Ok(Response { body: body.boxed(), ..response })
    }
}

impl Transport for Distant {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.round_trips(request).boxed()
    }
}

/// A server that sends its first requests for the pack as soon as it knows its place.
struct Server {
    repository: Arc<Repository>,
    began: Instant,
    /// When all of them are being answered.
    answered: Arc<Mutex<Option<Duration>>>,
}

impl PackListener for Server {
    fn requested(&self) {
        let repository = self.repository.clone();
        tokio::spawn(async move { repository.get_ready(READY_CONNECTIONS).await });
    }

    fn found(&self, pack: Blob, place: Option<usize>) {
        assert_eq!(place, None);
        let (blobs, began, answered) = (self.repository.blobs(), self.began, self.answered.clone());
        tokio::spawn(async move {
            let first_bytes = (0..READY_CONNECTIONS as u64).map(|at| blobs.read(pack, at..at + 1));
            let bodies = futures::future::try_join_all(first_bytes).await.unwrap();
            for mut body in bodies {
                body.next().await.unwrap().unwrap();
            }
            *answered.lock() = Some(began.elapsed());
        });
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

/// An image with an index and a boot pack, in a registry.
struct Published {
    registry: Arc<FakeRegistry>,
    fixture: Fixture,
}

impl Published {
    async fn new(auth: Auth, referrers: Referrers) -> Self {
        let content: Vec<u8> = (0_u32..200_000).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let tar = tar(&[Item::file("tool", content.clone())], Dialect::Pax);
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&tar).unwrap();
        let layer = Layer { blob: encoder.finish().unwrap(), ..Layer::plain(&tar, Compression::Gzip) };
        let image = Image::of([layer]);
        let fixture = Fixture::with_layout(&image);
        let (maker, made_from) = (fixture.engine("maker"), request(&fixture.layout_name()));
        let made = maker.make_index(&made_from, &[start(&content)], &Silent).await.unwrap();
        assert_eq!(made.boots.len(), 1);
        let mut contents = Contents::new();
        image.add_to(&mut contents, "app", "v1");
        let registry = Arc::new(FakeRegistry::new(contents, auth, None));
        registry.set_referrers(referrers);
        let published = Self { registry, fixture };
        let layout = Source::OciLayout { directory: published.fixture.layout(), tag: None };
        maker.publish_index(&made, &layout, &Access::default(), None).await.unwrap();
        published.push_from_layout(&made.index_digest).await;
        published
    }

    /// Copies the artifact from the layout to the registry.
    async fn push_from_layout(&self, artifact: &Digest) {
        let network = Arc::new(ScriptedTransport::new(self.registry.clone()));
        let destination = open_destination_with(&name(), network, credentials(self.fixture.folder()), true).unwrap();
        let blob =
            |digest: &Digest| std::fs::read(self.fixture.layout().join("blobs/sha256").join(digest.hex())).unwrap();
        let manifest = blob(artifact);
        let parsed: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        let descriptors = parsed["layers"].as_array().unwrap().iter().chain([&parsed["config"]]);
        for descriptor in descriptors {
            let digest = descriptor["digest"].as_str().unwrap().parse().unwrap();
            destination.push_bytes(blob(&digest).into()).await.unwrap();
        }
        let media_type = tarpon_engine::oci::media_type::OCI_MANIFEST;
        destination.push_manifest(media_type, manifest.into(), None).await.unwrap();
    }

    /// Round trips until the image is prepared, and until the first requests for its pack are answered.
    async fn start(&self) -> (u128, u128) {
        let network = Arc::new(ScriptedTransport::new(self.registry.clone()));
        let open = || open_with(&name(), Distant::new(&network), credentials(self.fixture.folder()), true).unwrap();
        let (client, server) = (open().with_warm_pool(), Arc::new(open()));
        let profile = Some("default".to_owned());
        let request = ImageRequest { index: IndexChoice::Registry, profile, ..request(&name().to_string()) };
        let engine = self.fixture.engine("store");
        let places = IndexPlaces::of(&request).unwrap();
        let (began, answered) = (Instant::now(), Arc::new(Mutex::new(None)));
        let server = Server { repository: server, began, answered: answered.clone() };
        // As `Images::prepare_with` does before it opens the repository.
        server.requested();
        engine.images().prepare_from(&request, &client, &places, Some(&server), &Silent).await.unwrap();
        let prepared = began.elapsed();
        while answered.lock().is_none() {
            sleep(ROUND_TRIP / 10).await;
        }
        let answered = answered.lock().unwrap();
        (rounds(prepared), rounds(answered))
    }
}

fn rounds(time: Duration) -> u128 {
    assert_eq!(time.as_micros() % ROUND_TRIP.as_micros(), 0, "something else took time: {time:?}");
    time.as_micros() / ROUND_TRIP.as_micros()
}

fn name() -> Reference {
    "registry.test/app:v1".parse().unwrap()
}

fn credentials(folder: &Path) -> CredentialSource {
    let services = folder.join("token-services");
    std::fs::write(&services, "registry.test auth.test\n").unwrap();
    let given = Credentials::parse(&format!("{USER}:{PASSWORD}"));
    CredentialSource::new(given, Vec::new()).with_token_services(vec![services])
}

fn start(content: &[u8]) -> Trace {
    let touch = Touch {
        object: Digest::of(content),
        size: content.len() as u64,
        range: 0..50_000,
        at: Duration::ZERO,
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    };
    Trace { header: Header::new("app", Digest::of(b"some image"), "default"), touches: vec![touch] }
}

const LISTS: Referrers = Referrers::Kept { page: 10, filters: true };
const TOKENS: Auth = Auth::Bearer { anonymous: false, expires_in: Some(600) };

/// The handshakes (2), the manifest, the list, the index with its blobs.
#[tokio::test(start_paused = true)]
async fn a_start_by_an_index_takes_three_round_trips_after_the_handshakes_with_a_list_and_without() {
    for referrers in [LISTS, Referrers::Unknown] {
        let published = Published::new(Auth::Anonymous, referrers).await;
        assert_eq!(published.start().await, (5, 5), "{referrers:?}");
    }
}

/// The refusal, the handshakes of the token service (2), the token.
#[tokio::test(start_paused = true)]
async fn a_token_takes_four_more_round_trips_and_that_of_the_server_does_not_delay_the_pack() {
    for referrers in [LISTS, Referrers::Unknown] {
        let published = Published::new(TOKENS, referrers).await;
        assert_eq!(published.start().await, (9, 9), "{referrers:?}");
    }
}
