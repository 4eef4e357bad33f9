//! A registry that serves wrong data, breaks off, stalls and refuses, under readers of a mounted image: no wrong byte, no wait
//! longer than promised, a small log, and when the registry is healthy again everything can be read.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::mounted::{Mounted, layer};
use futures::future::join_all;
use tarpon_oci::Platform;
use tarpon_testkit::matrix;
use tarpon_testkit::registry::Fault;
use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::span;

/// The promise of docs/guarantees.md to a reader.
const PROMISE: Duration = Duration::from_secs(30);
/// Limit of the log of a server while it is attacked.
const LOG_BYTES: u64 = 10 << 20;
/// Lines of one cause that are written at once; after them one a minute.
const LINES_AT_ONCE: u64 = 5;
/// Bytes of log under one fault, which is one cause: a dozen lines from each of two places.
const ATTACK_LOG_BYTES: u64 = 16 << 10;
const CROWD: usize = 2_000;
const FEW: usize = 40;

/// Counts the lines that a log would have, by the place in the code, and their bytes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Logged>>);

#[derive(Default)]
struct Logged {
    bytes: u64,
    lines: HashMap<String, u64>,
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        // About the length of time, level and module.
        const HEAD: u64 = 64;
        let mut line = Line(HEAD);
        event.record(&mut line);
        let mut logged = self.0.lock().unwrap();
        logged.bytes += line.0;
        *logged.lines.entry(event.metadata().name().to_owned()).or_default() += 1;
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(u64);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += (field.name().len() + format!("{value:?}").len() + 2) as u64;
    }
}

/// The longest wait of this many readers at once, and of some more that arrive in the minute after.
async fn longest_wait(mounted: &Mounted, readers: usize) -> Duration {
    let at_once = join_all((0..readers).map(|number| mounted.read(number))).await;
    let later = (0..FEW).map(|number| async move {
        sleep(Duration::from_millis(1500) * u32::try_from(number).unwrap()).await;
        mounted.read(number).await
    });
    let later = join_all(later).await;
    at_once.iter().chain(&later).map(|(waited, _)| *waited).max().unwrap()
}

/// All wrong answers to a request for a blob.
fn blob_faults() -> Vec<Fault> {
    let seconds = Duration::from_secs;
    let statuses = [
        400, 401, 402, 403, 404, 405, 406, 408, 410, 413, 416, 418, 425, 429, 451, 500, 501, 502, 503, 504, 507, 511,
        204, 304,
    ];
    let mut faults: Vec<Fault> = statuses.map(Fault::Status).into();
    faults.extend([
        Fault::Connect,
        Fault::Unreachable(seconds(4)),
        Fault::NotTls,
        Fault::Certificate,
        Fault::Broken,
        Fault::Never,
        Fault::Late(seconds(4)),
        Fault::Late(seconds(6)),
        Fault::Late(seconds(60)),
        Fault::RetryAfter(429, "1"),
        Fault::RetryAfter(503, "29"),
        Fault::RetryAfter(503, "86400"),
        Fault::RetryAfter(503, "-1"),
        Fault::Redirect(302, "http://registry.test/downgrade".to_owned()),
        Fault::Redirect(307, "https://nowhere.test/blobs/".to_owned()),
        Fault::Redirect(307, "/v2/app/blobs/again".to_owned()),
        Fault::Header("content-range", ""),
        Fault::Header("content-range", "bytes 0-1/2"),
        Fault::Header("content-encoding", "gzip"),
        Fault::Header("content-length", "1"),
        Fault::IgnoreRange,
        Fault::Unsatisfiable,
        Fault::BreakAfter(0),
        Fault::BreakAfter(100),
        Fault::EndAfter(0),
        Fault::EndAfter(100),
        Fault::StallAfter(0),
        Fault::StallAfter(100),
        Fault::Trickle(10),
        Fault::FlipBit,
        Fault::Overlong,
        Fault::Html,
        Fault::Text("no blob"),
        Fault::Multipart,
    ]);
    faults
}

/// Readers under one fault, and after it. Returns the bytes of log.
async fn attack(mounted: &Mounted, fault: &Fault, readers: usize) -> u64 {
    let (log, began) = (Log::default(), Instant::now());
    let guard = tracing::subscriber::set_default(log.clone());
    mounted.attack("/blobs/", Some(fault));
    let longest = longest_wait(mounted, readers).await;
    assert!(longest <= PROMISE, "{longest:?} under {fault:?}");
    mounted.attack("/blobs/", None);
    // A registry may have requested a pause of minutes.
    sleep(Duration::from_secs(310)).await;
    for (number, (_, healed)) in join_all((0..readers).map(|number| mounted.read(number))).await.iter().enumerate() {
        assert!(healed, "file {number} cannot be read after {fault:?}");
    }
    drop(guard);
    let logged = log.0.lock().unwrap();
    let most = LINES_AT_ONCE + began.elapsed().as_secs() / 60;
    for (place, lines) in &logged.lines {
        assert!(*lines <= most, "{lines} lines of {place} under {fault:?}");
    }
    assert!(logged.bytes <= ATTACK_LOG_BYTES, "{} bytes of log under {fault:?}", logged.bytes);
    logged.bytes
}

#[tokio::test(start_paused = true)]
async fn no_fault_of_a_blob_gives_a_wrong_byte_a_long_wait_or_a_lasting_error() {
    let (layer, files) = layer(FEW);
    let faults = blob_faults();
    assert!(faults.len() >= 43);
    let mut logged = 0;
    for fault in &faults {
        logged += attack(&Mounted::new(&layer, &files).await, fault, FEW).await;
    }
    assert!(logged <= LOG_BYTES, "{logged} bytes of log");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_of_two_thousand_is_answered_in_time_and_writes_a_small_log() {
    let (layer, files) = layer(CROWD);
    let faults = [Fault::Never, Fault::FlipBit, Fault::Connect, Fault::Status(500)];
    let tested = if matrix::is_full() { &faults[..] } else { &faults[..2] };
    for fault in tested {
        attack(&Mounted::new(&layer, &files).await, fault, CROWD).await;
    }
}

/// All wrong answers to a request for a document.
fn document_faults() -> Vec<Fault> {
    vec![
        Fault::Connect,
        Fault::Broken,
        Fault::Never,
        Fault::Late(Duration::from_secs(60)),
        Fault::Status(401),
        Fault::Status(403),
        Fault::Status(418),
        Fault::Status(429),
        Fault::Status(500),
        Fault::RetryAfter(503, "86400"),
        Fault::Redirect(302, "http://registry.test/downgrade".to_owned()),
        Fault::Redirect(307, "/v2/app/manifests/again".to_owned()),
        Fault::Header("content-encoding", "gzip"),
        Fault::Header("content-length", "99999999999"),
        Fault::BreakAfter(10),
        Fault::EndAfter(10),
        Fault::StallAfter(10),
        Fault::Trickle(1),
        Fault::FlipBit,
        Fault::Overlong,
        Fault::Html,
        Fault::Text("{\"schemaVersion\":2}"),
        Fault::Typed("application/vnd.oci.image.index.v1+json", "{\"schemaVersion\":2,\"manifests\":[{}]}"),
    ]
}

/// A request with all its attempts, and the time in which the last body may stall.
const DOCUMENT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn no_fault_of_a_manifest_gives_another_manifest_or_hangs() {
    let faults = document_faults();
    assert!(faults.len() >= 18);
    for fault in faults {
        let world = common::World::open();
        let right = world.repository.resolve(&Platform::host()).await.unwrap();
        for by_digest in [false, true] {
            world.transport.attack("/manifests/", Some(fault.clone()));
            let began = Instant::now();
            if by_digest {
                let digest = *right.manifest.digest();
                if let Ok(bytes) = world.repository.manifest(&digest).await {
                    assert_eq!(bytes.digest(), &digest, "{fault:?}");
                }
            } else if let Ok(image) = world.repository.resolve(&Platform::host()).await {
                assert_eq!(image.manifest.digest(), right.manifest.digest(), "{fault:?}");
            }
            assert!(began.elapsed() <= DOCUMENT, "{:?} under {fault:?}", began.elapsed());
            world.transport.attack("/manifests/", None);
            sleep(Duration::from_secs(310)).await;
            world.tag().await.unwrap_or_else(|error| panic!("{error} after {fault:?}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_fault_of_a_list_of_referrers_names_an_artifact_or_hangs() {
    let faults = document_faults();
    assert!(faults.len() >= 20);
    for fault in faults {
        let world = common::World::open();
        let subject = common::blob().digest;
        world.transport.attack("/referrers/", Some(fault.clone()));
        let began = Instant::now();
        if let Ok(found) = world.repository.referrers(&subject, "application/vnd.test").await {
            assert!(found.is_empty(), "{found:?} under {fault:?}");
        }
        assert!(began.elapsed() <= DOCUMENT * 2, "{:?} under {fault:?}", began.elapsed());
        world.transport.attack("/referrers/", None);
        sleep(Duration::from_secs(310)).await;
        let found = world.repository.referrers(&subject, "application/vnd.test").await;
        assert!(found.unwrap_or_else(|error| panic!("{error} after {fault:?}")).is_empty());
    }
}
