//! What a server reports about a real mount: metrics over HTTP, and why it was slow. Needs root and /dev/fuse, and is skipped without.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use support::{EngineFixture, mount_request};
use tarpon_engine::oci::Compression;
use tarpon_engine::{
    Engine, Event, Mode, ModeChoice, MountRequest, PermanentServer, Server, ServerOptions, Silent, Topic,
};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::kernel::can_mount;
use tarpon_testkit::layers::{Dialect, Image, Item, Layer, tar};

const BYTES: usize = 300_000;

fn image() -> Image {
    let items = [Item::directory("etc"), Item::file("etc/large", vec![7; BYTES]), Item::file("etc/small", "small\n")];
    Image::of([Layer::estargz(&items)])
}

/// A registry with one image, and mounts of it by one engine.
struct MetricsFixture {
    fixture: Fixture,
    engine: Engine,
}

impl MetricsFixture {
    async fn new() -> Self {
        Self::with(image()).await
    }

    async fn with(image: Image) -> Self {
        let fixture = Fixture::with_image(&image).await;
        Self { engine: fixture.engine("store"), fixture }
    }

    fn name(&self) -> String {
        self.fixture.name("app:v1")
    }

    /// A mount of the image, in mode `fuse`, with metrics at this address.
    async fn request(&self, place: &str, metrics: Option<SocketAddr>) -> MountRequest {
        let prepared = self.engine.prepare(&self.fixture.request("app:v1"), &Silent).await.unwrap();
        MountRequest { metrics, ..mount_request(&prepared, &self.fixture.directory(place), Mode::Fuse) }
    }
}

/// Reads on a thread of its own: the server runs on ours.
async fn read(path: PathBuf, offset: u64, length: usize) -> Vec<u8> {
    let read = move || {
        let mut bytes = vec![0; length];
        std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// Sends `request` and returns the response, read until the end.
async fn ask(address: SocketAddr, request: &str) -> String {
    let request = request.to_owned();
    let asked = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A connection refused in the middle of its request may be reset.
        let _end = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    };
    tokio::task::spawn_blocking(asked).await.unwrap()
}

/// The samples of a scrape, after checking everything that the format demands.
async fn scrape(address: SocketAddr) -> BTreeMap<String, f64> {
    let answer = ask(address, "GET /metrics HTTP/1.0\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let (mut samples, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} is described twice");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            let stem = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let kind = kinds.get(name).or_else(|| kinds.get(stem)).unwrap_or_else(|| panic!("{line} has no type"));
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} twice");
        }
    }
    samples
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_reports_what_was_read_and_why_it_waited() {
    if !can_mount() {
        return;
    }
    let fixture = MetricsFixture::new().await;
    let server = Server::start(&fixture.engine).await.unwrap();
    assert_eq!(server.metrics(), None, "nobody has asked for any");
    let request = fixture.request("one", Some(([127, 0, 0, 1], 0).into())).await;
    let (point, manifest) = (request.mountpoint.clone(), request.manifest);
    let mounted = server.mount(request).await.unwrap();
    let address = mounted.metrics.unwrap();
    assert!(address.ip().is_loopback());
    assert_eq!(read(point.join("etc/large"), 100, 1000).await, vec![7; 1000]);
    assert_eq!(read(point.join("etc/small"), 0, 6).await, b"small\n");

    let samples = scrape(address).await;
    let label = format!("image=\"{}\",digest=\"{manifest}\"", fixture.name());
    let counted = |name: &str| samples[&name.replace("IMAGE", &label)];
    assert_eq!(counted("tarpon_mounts{mode=\"fuse\"}"), 1.0);
    assert!(counted("tarpon_fetch_bytes_total{IMAGE,lane=\"demand\"}") > 0.0);
    assert_eq!(counted("tarpon_fetch_bytes_total{IMAGE,lane=\"backfill\"}"), 0.0);
    let stalls = counted("tarpon_read_stall_seconds_count{IMAGE}");
    assert!(stalls >= 2.0);
    assert_eq!(counted("tarpon_read_stall_seconds_bucket{IMAGE,le=\"+Inf\"}"), stalls);
    assert!(counted("tarpon_read_stall_seconds_bucket{IMAGE,le=\"10\"}") <= stalls);
    assert_eq!(counted("tarpon_host_read_stall_seconds_count"), stalls, "there is one image");

    let (engine, at) = (fixture.engine.clone(), point.clone());
    let explained = tokio::task::spawn_blocking(move || engine.why(&at)).await.unwrap().unwrap();
    assert_eq!(explained.stalls as f64, stalls);
    let paths: Vec<&str> = explained.slowest.iter().filter_map(|read| read.path.as_deref()).collect();
    assert!(paths.contains(&"/etc/large") && paths.contains(&"/etc/small"), "{paths:?}");
    let layer = explained.mount.verification[0].digest;
    assert!(explained.slowest.iter().all(|read| read.file_layer == Some(layer)));
    assert!(explained.waits.iter().any(|wait| wait.layer == Some(layer)));
    assert!(explained.bytes.demand > 0 && explained.bytes.pack == 0 && !explained.has_pack);
    assert_eq!(explained.mount.mountpoint, point);

    let engine = fixture.engine.clone();
    let nowhere = tokio::task::spawn_blocking(move || engine.why("/nowhere".as_ref())).await.unwrap().unwrap_err();
    assert!(nowhere.cause().to_string().contains("no image is mounted at /nowhere"), "{nowhere}");
    server.stop(true).await;
    assert!(TcpStream::connect(address).is_err(), "the endpoint ends with its server");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_fetched_to_prepare_an_image_is_shown_for_each_of_its_mounts() {
    if !can_mount() {
        return;
    }
    let items = [Item::file("etc/large", vec![7; BYTES])];
    let layer = Layer::plain(&tar(&items, Dialect::Pax), Compression::None);
    let size = layer.blob.len() as u64;
    let fixture = MetricsFixture::with(Image::of([layer])).await;
    let server = Server::start(&fixture.engine).await.unwrap();
    let first = server.mount(fixture.request("one", Some(([127, 0, 0, 1], 0).into())).await).await.unwrap();
    let second = server.mount(fixture.request("two", None).await).await.unwrap();
    assert!(first.prepared_bytes >= size, "{} of {size}", first.prepared_bytes);
    assert_eq!((first.fetched_bytes, second.prepared_bytes), (0, first.prepared_bytes), "all of it is here");
    let label = format!("image=\"{}\",digest=\"{}\"", fixture.name(), first.manifest);
    let told = scrape(first.metrics.unwrap()).await[&format!("tarpon_prepare_bytes_total{{{label}}}")];
    assert_eq!(told, first.prepared_bytes as f64);
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_keeps_its_address_for_metrics_and_refuses_another() {
    if !can_mount() {
        return;
    }
    let fixture = MetricsFixture::new().await;
    let server = Server::start(&fixture.engine).await.unwrap();
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    server.mount(fixture.request("one", None).await).await.unwrap();
    assert_eq!(server.metrics(), None);
    let second = server.mount(fixture.request("two", Some(any)).await).await.unwrap();
    let address = second.metrics.unwrap();
    assert_eq!(server.status()[0].metrics, Some(address), "all mounts are told of there");
    server.mount(fixture.request("three", Some(address)).await).await.unwrap();
    let other: SocketAddr = ([127, 0, 0, 2], address.port()).into();
    let refused = server.mount(fixture.request("four", Some(other)).await).await.unwrap_err();
    assert!(refused.cause().to_string().contains(&format!("serves them at {address} already")), "{refused}");
    assert_eq!(server.status().len(), 3, "nothing was mounted");
    assert_eq!(scrape(address).await["tarpon_mounts{mode=\"fuse\"}"], 3.0);
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_server_serves_while_its_address_for_metrics_is_taken_and_offers_metrics_later() {
    if !can_mount() {
        return;
    }
    let fixture = MetricsFixture::new().await;
    let first = Server::start(&fixture.engine).await.unwrap();
    first.mount(fixture.request("one", None).await).await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let equipment = ServerOptions { metrics: Some(address), ..ServerOptions::default() };
    let mut second = PermanentServer::start(&fixture.engine, equipment, None).await.unwrap();
    let observer = second.observer();
    assert!(!second.serves(), "the first one has mounts");
    first.suspend().await;
    tokio::select! {
        ended = second.until_signal() => panic!("nobody told it: {ended:?}"),
        served = tokio::time::timeout(Duration::from_secs(30), observer.changes()) => assert!(served.unwrap().is_some()),
    }
    let mounts = || {
        let engine = fixture.engine.clone();
        async move { tokio::task::spawn_blocking(move || engine.mounts().unwrap()).await.unwrap() }
    };
    let mount = mounts().await.remove(0);
    assert_eq!((mount.alive, mount.metrics), (true, None));
    drop(taken);
    tokio::select! {
        biased;
        ended = second.until_signal() => panic!("nobody told it: {ended:?}"),
        () = std::future::ready(()) => {}
    }
    assert_eq!(mounts().await.remove(0).metrics, Some(address));
    assert_eq!(scrape(address).await["tarpon_mounts{mode=\"fuse\"}"], 1.0);
    second.suspend().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_asked_to_end_serves_a_mount_that_is_bound_elsewhere() {
    if !can_mount() {
        return;
    }
    for mode in [Mode::Fuse, Mode::Native] {
        let fixture = MetricsFixture::new().await;
        let server = Server::start(&fixture.engine).await.unwrap();
        let request = MountRequest { mode: ModeChoice::Only(mode), ..fixture.request("one", None).await };
        let (place, bound) = (request.mountpoint.clone(), fixture.fixture.path("bound"));
        server.mount(request).await.unwrap();
        assert_eq!(server.in_use().await, Vec::<PathBuf>::new(), "{mode}");
        std::fs::create_dir(&bound).unwrap();
        rustix::mount::mount_bind(place.join("etc"), &bound).unwrap();
        assert_eq!(server.in_use().await, std::slice::from_ref(&place), "{mode}");
        let retiring = tokio::spawn(server.retire());
        assert_eq!(read(bound.join("large"), 0, BYTES).await, vec![7; BYTES], "{mode}");
        assert!(!retiring.is_finished() && place.join("etc").exists(), "{mode}");
        for path in [bound, place] {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).unwrap();
        }
        tokio::time::timeout(Duration::from_secs(60), retiring).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_scrapes_are_answered_and_no_request_without_end_is_read() {
    if !can_mount() {
        return;
    }
    let fixture = MetricsFixture::new().await;
    let server = Server::start(&fixture.engine).await.unwrap();
    let mounted = server.mount(fixture.request("one", Some(([127, 0, 0, 1], 0).into())).await).await.unwrap();
    let address = mounted.metrics.unwrap();
    for (request, status) in [
        ("GET / HTTP/1.0\r\n\r\n".to_owned(), "404"),
        ("POST /metrics HTTP/1.0\r\n\r\n".to_owned(), "405"),
        (format!("GET /metrics HTTP/1.0\r\nx: {}\r\n\r\n", "x".repeat(64 << 10)), "431"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let answer = ask(address, &request).await;
        // The connection may be reset before the refusal is read.
        assert!(answer.is_empty() || answer.contains(&format!(" {status} ")), "{answer}");
        assert!(!answer.contains("tarpon_mounts"));
    }
    server.stop(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_is_reported_with_what_to_do() {
    if !can_mount() {
        return;
    }
    let mut fixture = MetricsFixture::new().await;
    let server = Server::start(&fixture.engine).await.unwrap();
    let request = fixture.request("one", None).await;
    let point = request.mountpoint.clone();
    server.mount(request).await.unwrap();
    fixture.fixture.stop_registry();
    let file = point.join("etc/large");
    let read = tokio::task::spawn_blocking(move || std::fs::read(file)).await.unwrap();
    assert!(read.is_err());
    let engine = fixture.engine.clone();
    let explained = tokio::task::spawn_blocking(move || engine.why(&point)).await.unwrap().unwrap();
    assert!(explained.events.iter().any(|noted| matches!(noted.event, Event::SourceFailed { .. })), "{explained:?}");
    assert!(explained.advice.iter().any(|advice| advice.about == Topic::Source), "{:?}", explained.advice);
    assert!(explained.slowest.iter().any(|read| read.stall.failed));
    server.stop(true).await;
}
