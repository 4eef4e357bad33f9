//! Images read and prepared through a confined worker, from a registry on this machine.
//!
//! This program is also the worker. It has a `main` of its own, because a worker confines itself before it has a second thread.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::ffi::OsString;
use std::io::{BufReader, Cursor, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::StreamExt as _;
use libtest_mimic::{Arguments, Trial};
use parking_lot::Mutex;
use rustix::process::{Signal, kill_process};
use tarpon_blob::Fault;
use tarpon_images::sources::Sources as _;
use tarpon_images::{Access, ErrorKind, ImageRequest, Images, LayerPlan, Progress, RegistriesChoice, Silent};
use tarpon_layer::Codec;
use tarpon_layer::decode::{Decoder as _, InProcess};
use tarpon_oci::{Blob, Compression, Digest, Platform};
use tarpon_registry::serve::Contents;
use tarpon_registry::{Address, Endpoint, EndpointCounts, EndpointCredentials, Header};
use tarpon_testkit::layers::{EstargzOptions, Image, Item, estargz, gzip, zstd};
use tarpon_testkit::processes;
use tarpon_testkit::registry::{Auth, FakeRegistry, PASSWORD, USER};
use tarpon_testkit::server::TestServer;
use tarpon_testkit::source::MemorySource;

use tarpon_worker::{WorkerPreparer, Workers};

const REPOSITORY: &str = "team/app";
/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);

/// The argument with which this program is a worker.
const WORKER: &str = "worker";

/// The command of a worker.
fn command() -> Vec<OsString> {
    vec![std::env::current_exe().unwrap().into(), WORKER.into()]
}

fn main() {
    if std::env::args().nth(1).is_some_and(|first| first == WORKER) {
        return tarpon_worker::serve().unwrap();
    }
    // One at a time: a test kills the workers of this process.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let tests = vec![
        test(
            "a_blob_is_read_with_credentials_that_the_user_looks_up",
            a_blob_is_read_with_credentials_that_the_user_looks_up,
        ),
        test(
            "a_response_goes_on_where_it_was_when_its_worker_is_killed",
            a_response_goes_on_where_it_was_when_its_worker_is_killed,
        ),
        test(
            "what_each_endpoint_was_asked_for_outlives_the_worker_that_asked",
            what_each_endpoint_was_asked_for_outlives_the_worker_that_asked,
        ),
        test(
            "each_endpoint_gets_its_own_credentials_and_headers_through_a_worker",
            each_endpoint_gets_its_own_credentials_and_headers_through_a_worker,
        ),
        test(
            "chunks_spans_and_layers_are_decoded_as_in_this_process",
            chunks_spans_and_layers_are_decoded_as_in_this_process,
        ),
        test(
            "an_image_is_prepared_by_a_worker_that_has_its_errors_and_its_progress",
            an_image_is_prepared_by_a_worker_that_has_its_errors_and_its_progress,
        ),
        test(
            "an_image_is_completed_by_a_worker_that_gets_its_layers_from_this_process",
            an_image_is_completed_by_a_worker_that_gets_its_layers_from_this_process,
        ),
    ];
    libtest_mimic::run(&arguments, tests).exit();
}

fn test<F: Future<Output = ()> + 'static>(name: &str, run: fn() -> F) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.unwrap().block_on(run());
        Ok(())
    })
}

/// A registry with a password, an image and a blob.
struct SoundFixture {
    server: TestServer,
    blob: Blob,
    bytes: Vec<u8>,
}

/// Deterministic bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(byte).take(length).collect()
}

impl SoundFixture {
    async fn new() -> Self {
        let bytes = noise(3 << 20);
        let mut contents = Contents::new();
        let digest = contents.add_blob(bytes.clone());
        let layer = estargz(&[Item::file("hello", b"world")], EstargzOptions::default());
        Image::of([layer]).add_to(&mut contents, REPOSITORY, "1");
        let auth = Auth::Bearer { anonymous: false, expires_in: None };
        let server = TestServer::start(Arc::new(FakeRegistry::new(contents, auth, None))).await.unwrap();
        Self { server, blob: Blob { digest, size: bytes.len() as u64 }, bytes }
    }

    fn name(&self) -> String {
        format!("{}/{REPOSITORY}:1", self.server.host())
    }

    fn request(&self, password: &str) -> ImageRequest {
        let access = Access { creds: Some(format!("{USER}:{password}")), tls_verify: Some(false), ..Access::default() };
        ImageRequest { access, ..ImageRequest::new(self.name(), self.name().parse().unwrap(), Platform::host()) }
    }
}

async fn a_blob_is_read_with_credentials_that_the_user_looks_up() {
    let fixture = SoundFixture::new().await;
    let workers = Workers::new(command());
    let image = workers.open_later(&fixture.name(), &fixture.request(PASSWORD).access).unwrap();
    let read = image.blobs();
    let mut stream = read.read(fixture.blob, 5..2_000_000).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert!(bytes == fixture.bytes[5..2_000_000]);
    let stats = image.stats();
    assert!(stats.bytes >= bytes.len() as u64 && stats.requests >= 3, "a challenge, a token, a range: {stats:?}");

    let denied = workers.open_later(&fixture.name(), &fixture.request("wrong").access).unwrap();
    let error = denied.blobs().read(fixture.blob, 0..1).await.err().unwrap();
    assert_eq!(error.fault, Fault::Denied, "{error}");
}

async fn a_response_goes_on_where_it_was_when_its_worker_is_killed() {
    let fixture = SoundFixture::new().await;
    let workers = Workers::new(command());
    let image = workers.open_later(&fixture.name(), &fixture.request(PASSWORD).access).unwrap();
    let read = image.blobs();
    let mut stream = read.read(fixture.blob, 0..fixture.blob.size).await.unwrap();
    let (mut bytes, mut kills) = (Vec::new(), 0);
    while let Some(piece) = tokio::time::timeout(HUNG, stream.next()).await.unwrap() {
        bytes.extend_from_slice(&piece.unwrap());
        if bytes.len() > kills * 700_000 {
            kills += 1;
            for worker in processes::workers_of(rustix::process::getpid()) {
                kill_process(worker, Signal::KILL).unwrap();
            }
        }
    }
    assert!(bytes == fixture.bytes && kills >= 4, "{kills} kills");
}

/// A registry without a password that has one blob.
async fn open_registry(bytes: &[u8]) -> TestServer {
    let mut contents = Contents::new();
    contents.add_blob(bytes.to_vec());
    TestServer::start(Arc::new(FakeRegistry::new(contents, Auth::Anonymous, None))).await.unwrap()
}

async fn what_each_endpoint_was_asked_for_outlives_the_worker_that_asked() {
    let bytes = noise(100_000);
    let blob = Blob { digest: Digest::of(&bytes), size: bytes.len() as u64 };
    let (mirror, registry) = (open_registry(&bytes).await, open_registry(&bytes).await);
    let hosts = [mirror.host(), registry.host()];
    let endpoint = |host: &String| Endpoint::of(format!("{host}/{REPOSITORY}:1").parse().unwrap(), true);
    let registries = RegistriesChoice::Settled(hosts.iter().map(endpoint).collect());
    let access = Access { registries, ..Access::default() };
    let workers = Workers::new(command());
    let image = workers.open_later(&format!("{}/{REPOSITORY}:1", hosts[1]), &access).unwrap();
    let read = async || {
        let mut stream = image.blobs().read(blob, 0..blob.size).await.unwrap();
        while let Some(piece) = stream.next().await {
            piece.unwrap();
        }
        image.accounts()
    };
    let accounts = read().await;
    assert_eq!(accounts.iter().map(|account| account.host.clone()).collect::<Vec<_>>(), hosts);
    let before = accounts[0].counts;
    assert!(before.bytes >= blob.size && before.failures == 0, "{accounts:?}");
    assert_eq!((accounts[1].counts, accounts[0].rest), (EndpointCounts::default(), None));

    for worker in processes::workers_of(rustix::process::getpid()) {
        kill_process(worker, Signal::KILL).unwrap();
    }
    drop(mirror);
    let accounts = read().await;
    let [mirror, registry] = &accounts[..] else { panic!("{accounts:?}") };
    assert_eq!((mirror.counts.bytes, mirror.counts.failures), (before.bytes, 1), "{accounts:?}");
    assert!(mirror.counts.requests > before.requests, "{accounts:?}");
    assert!(mirror.rest.is_some() && registry.rest.is_none(), "{accounts:?}");
    assert!(mirror.last_failure.as_ref().is_some_and(|why| why.contains("cannot connect")), "{accounts:?}");
    assert!(registry.counts.bytes >= blob.size, "{accounts:?}");
}

async fn each_endpoint_gets_its_own_credentials_and_headers_through_a_worker() {
    let fixture = SoundFixture::new().await;
    let host = fixture.server.host();
    // One host under one name, with different rules.
    let (empty, request) = first_request();
    let endpoint = |host: &str, credentials| {
        let headers = vec![Header::new("x-tenant", "t0ken")];
        let address = Address { credentials, headers, ..Address::at(format!("http://{host}/v2")) };
        Endpoint { address: Some(address), ..Endpoint::of(format!("{host}/{REPOSITORY}:1").parse().unwrap(), false) }
    };
    let image = format!("registry.invalid/{REPOSITORY}:1");
    let registry = Endpoint::of(image.parse().unwrap(), false);
    let hosts = vec![
        endpoint(&empty, EndpointCredentials::Own),
        endpoint(&host, EndpointCredentials::None),
        endpoint(&host, EndpointCredentials::Registry),
        registry,
    ];
    let access = Access { registries: RegistriesChoice::Settled(hosts), ..fixture.request(PASSWORD).access };
    let workers = Workers::new(command());
    let opened = workers.open_later(&image, &access).unwrap();
    let mut stream = opened.blobs().read(fixture.blob, 0..1_000).await.unwrap();
    while let Some(piece) = stream.next().await {
        piece.unwrap();
    }
    let accounts = opened.accounts();
    let [_, without, with, registry] = &accounts[..] else { panic!("{accounts:?}") };
    assert_eq!((without.counts.failures, with.counts.failures), (1, 0), "{accounts:?}");
    assert!(with.counts.bytes >= 1_000 && registry.counts == EndpointCounts::default(), "{accounts:?}");
    let request = request.join().unwrap();
    assert!(request.contains("\r\nx-tenant: t0ken\r\n"), "{request}");
}

/// A host without any blob, and the first request to it.
fn first_request() -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let request = std::thread::spawn(move || {
        let (mut stream, mut head) = (listener.accept().unwrap().0, Vec::new());
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
        String::from_utf8(head).unwrap()
    });
    (host, request)
}

async fn chunks_spans_and_layers_are_decoded_as_in_this_process() {
    let workers = Workers::new(command());
    let plain = noise(300_000);
    let decode = move || {
        let decoder = workers.decoder();
        for (codec, compression, encoded) in
            [(Codec::Gzip, Compression::Gzip, gzip(&plain)), (Codec::Zstd, Compression::Zstd, zstd(&plain))]
        {
            let mut out = Vec::new();
            decoder.chunk(codec, &encoded, 1_000, 200_000, &mut out).unwrap();
            assert!(out == plain[1_000..201_000]);
            let error = decoder.chunk(codec, &encoded[..encoded.len() / 2], 0, 300_000, &mut out).unwrap_err();
            let here = InProcess.chunk(codec, &encoded[..encoded.len() / 2], 0, 300_000, &mut out).unwrap_err();
            assert_eq!(error.to_string(), here.to_string());

            let mut layer = Vec::new();
            let input = Box::new(Cursor::new(encoded.clone()));
            decoder.layer(compression, input).unwrap().read_to_end(&mut layer).unwrap();
            assert!(layer == plain);
            let broken = Box::new(Cursor::new(encoded[..encoded.len() / 2].to_vec()));
            assert!(decoder.layer(compression, broken).unwrap().read_to_end(&mut layer).is_err());
            let failing = Box::new(BufReader::new(Cursor::new(encoded[..99].to_vec()).chain(Failing)));
            let error = decoder.layer(compression, failing).unwrap().read_to_end(&mut layer).unwrap_err();
            assert_eq!(error.to_string(), "the source failed");
        }
    };
    tokio::task::spawn_blocking(decode).await.unwrap();
}

/// A source that fails.
struct Failing;

impl std::io::Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the source failed"))
    }
}

async fn an_image_is_prepared_by_a_worker_that_has_its_errors_and_its_progress() {
    let fixture = SoundFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let images = Images::open(folder.path()).unwrap();
    let images = images.prepared_by(Arc::new(WorkerPreparer::new(command())));
    let denied = images.prepare(&fixture.request("wrong"), &Silent).await.unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied, "{denied}");
    assert!(denied.hint.is_some_and(|hint| hint.contains("--creds")));

    let seen = Seen::default();
    let prepared = images.prepare(&fixture.request(PASSWORD), &seen).await.unwrap();
    assert_eq!(*seen.resolved.lock(), [*prepared.manifest()]);
    let tree = images.open_tree(&prepared).unwrap();
    assert!(tree.find(b"hello").is_ok());
    let described = images.inspect(&fixture.request(PASSWORD)).await.unwrap();
    assert_eq!((described.manifest_digest, described.layers.len()), (*prepared.manifest(), 1));
    let elsewhere = tempfile::tempdir().unwrap();
    let others = Images::open(elsewhere.path()).unwrap();
    let others = others.prepared_by(Arc::new(WorkerPreparer::new(command())));
    let remote = others.inspect(&fixture.request(PASSWORD)).await.unwrap();
    assert_eq!((remote.manifest_digest, remote.in_store), (*prepared.manifest(), false));
    let pulled = images.pull(&fixture.request(PASSWORD), &Silent).await.unwrap();
    assert!(pulled.fetched.bytes > 0);
}

async fn an_image_is_completed_by_a_worker_that_gets_its_layers_from_this_process() {
    let fixture = SoundFixture::new().await;
    let folder = tempfile::tempdir().unwrap();
    let images = Images::open(folder.path()).unwrap();
    let request = fixture.request(PASSWORD);
    let prepared = images.prepare(&request, &Silent).await.unwrap();
    assert!(!prepared.is_verified());
    let workers = Workers::new(command());
    let source = workers.open_later(&request.text, &request.access).unwrap().blobs();
    let completion = workers.complete(images.store().clone(), *prepared.manifest(), source).await.unwrap();
    assert_eq!((completion.layers().len(), completion.was_seen()), (1, false));
    completion.layer(0).await.unwrap();
    assert!(completion.install().await.unwrap());
    let record = images.store().image(prepared.manifest()).unwrap().unwrap();
    assert_eq!(record.layers[0].verification.to_string(), "diffID-verified");

    let failing = Arc::new(MemorySource::new([]));
    let completion = workers.complete(images.store().clone(), Digest::of(b"unknown"), failing).await;
    assert!(completion.err().unwrap().to_string().contains("not in the store"));
}

/// The manifests that were resolved.
#[derive(Default)]
struct Seen {
    resolved: Mutex<Vec<Digest>>,
}

impl Progress for Seen {
    fn resolved(&self, manifest: &Digest, _: &[LayerPlan]) {
        self.resolved.lock().push(*manifest);
    }
}
