//! An image with mirrors: in which order its hosts are asked, what happens when one fails, and who gets which credentials.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::{assert_none_sent, blob, blob_bytes, contents, given};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use tarpon_blob::{Fault as Class, SourceError};
use tarpon_oci::{Platform, Reference};
use tarpon_registry::serve::Contents;
use tarpon_registry::transport::{Request, Response, Transport, TransportError};
use tarpon_registry::{
    AccessOptions, Address, CredentialSource, Endpoint, Error, Header, Repository, open_mirrored_with,
};
use tarpon_testkit::registry::Fault::{self, *};
use tarpon_testkit::registry::{Auth, FakeRegistry, Hosts, PASSWORD};
use tarpon_testkit::transport::ScriptedTransport;
use tokio::time::Instant;

/// A read of a mount ends within this time (docs/guarantees.md).
const PROMISE: Duration = Duration::from_secs(30);

const NAMES: [&str; 3] = ["one.test/app:1", "two.test/app:1", "registry.test/app:1"];

/// Two mirrors and a registry.
struct Mirrored {
    transports: Vec<Arc<ScriptedTransport>>,
    repository: Repository,
}

impl Mirrored {
    fn new() -> Self {
        Self::of([contents(), contents(), contents()], &Auth::Anonymous, &AccessOptions::default())
    }

    fn of(contents: [Contents; 3], auth: &Auth, options: &AccessOptions) -> Self {
        Self::at(&NAMES, contents.into(), auth, options)
    }

    /// The last name is that of the registry.
    fn at(names: &[&str], contents: Vec<Contents>, auth: &Auth, options: &AccessOptions) -> Self {
        let references: Vec<Reference> = names.iter().map(|name| name.parse().unwrap()).collect();
        let transport = |(contents, reference): (Contents, &Reference)| {
            let registry = Arc::new(FakeRegistry::new(contents, auth.clone(), None));
            registry.set_hosts(Hosts { registry: format!("https://{}", reference.registry()), ..registry.hosts() });
            Arc::new(ScriptedTransport::new(registry))
        };
        let transports: Vec<_> = contents.into_iter().zip(&references).map(transport).collect();
        let (image, given) = (references.last().unwrap(), options.credential_source());
        let endpoints: Vec<_> = references.iter().map(|reference| Endpoint::of(reference.clone(), false)).collect();
        let endpoints = transports.iter().enumerate().map(|(number, transport)| {
            let credentials = given.at(number, &endpoints, image);
            (transport.clone() as Arc<dyn Transport>, credentials, endpoints[number].clone())
        });
        let repository = open_mirrored_with(image, endpoints.collect()).unwrap();
        Self { transports, repository }
    }

    /// The requests that each host has received so far.
    fn counts(&self) -> Vec<usize> {
        self.transports.iter().map(|transport| transport.seen().len()).collect()
    }

    fn fails(&self, number: usize, fault: Fault) {
        self.transports[number].attack("", Some(fault));
    }

    async fn tag(&self) -> Result<(), Error> {
        self.repository.resolve(&Platform::host()).await.map(drop)
    }

    /// Reads `range` of the blob, and checks the bytes unless the test expects wrong ones.
    async fn bytes(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        let pieces = self.repository.blobs().read(blob(), range).await?;
        let all = pieces.try_fold(Vec::new(), |mut all, piece| async move {
            all.extend_from_slice(&piece);
            Ok(all)
        });
        all.await.map(Bytes::from)
    }

    async fn read(&self, range: Range<usize>) -> Result<(), SourceError> {
        let read = self.bytes(range.start as u64..range.end as u64).await?;
        assert!(read == blob_bytes()[range], "wrong bytes");
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_mirror_gets_all_requests_while_it_answers() {
    let mirrored = Mirrored::new();
    mirrored.tag().await.unwrap();
    mirrored.read(7..5_000).await.unwrap();
    assert_eq!(mirrored.counts(), [2, 0, 0]);
    assert_eq!(mirrored.repository.name(), NAMES[2], "which the image keeps");
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_fails_rests_and_the_next_host_is_asked() {
    for fault in [Connect, Broken, Never, Status(502), Status(401), Certificate, NotTls] {
        let mirrored = Mirrored::new();
        mirrored.fails(0, fault.clone());
        for _ in 0..10 {
            mirrored.read(7..5_000).await.unwrap();
        }
        let counts = mirrored.counts();
        assert_eq!(counts[1..], [10, 0], "{fault:?}");
        assert!(counts[0] <= 2, "{fault:?}: {counts:?}");
        mirrored.transports[0].attack("", None);
        // The longest pause.
        tokio::time::advance(Duration::from_secs(60)).await;
        let before = mirrored.counts()[0];
        mirrored.read(7..5_000).await.unwrap();
        assert!(mirrored.counts()[0] > before, "{fault:?}: it is back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_requests_a_pause_gets_it() {
    let mirrored = Mirrored::new();
    mirrored.fails(0, RetryAfter(429, "60"));
    for _ in 0..50 {
        mirrored.read(7..5_000).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(mirrored.counts(), [1, 50, 0]);
}

#[tokio::test(start_paused = true)]
async fn reads_succeed_while_any_host_answers() {
    for well in 0..3 {
        let mirrored = Mirrored::new();
        for number in (0..3).filter(|number| *number != well) {
            mirrored.fails(number, Connect);
        }
        for _ in 0..20 {
            mirrored.read(7..5_000).await.unwrap();
            tokio::time::advance(Duration::from_millis(700)).await;
        }
        mirrored.tag().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_ends_in_time_whatever_the_mirrors_do() {
    for (one, two, three) in [
        (Never, Never, Pass),
        (Unreachable(Duration::from_secs(4)), Unreachable(Duration::from_secs(4)), Pass),
        (Never, Pass, Never),
        (Never, Never, Never),
        (StallAfter(0), StallAfter(0), Pass),
        (Status(500), Status(500), Never),
    ] {
        let mirrored = Mirrored::new();
        let is_good = [&one, &two, &three].iter().any(|fault| matches!(fault, Pass));
        for (number, fault) in [one, two, three].into_iter().enumerate() {
            mirrored.fails(number, fault);
        }
        let began = Instant::now();
        let read = mirrored.read(0..1_000).await;
        assert!(began.elapsed() <= PROMISE, "{:?}", began.elapsed());
        assert_eq!(read.is_ok(), is_good, "{read:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_is_requested_from_a_dead_mirror_once() {
    let mirrored = Mirrored::new();
    mirrored.fails(0, Never);
    mirrored.fails(1, Never);
    let began = Instant::now();
    for _ in 0..5 {
        assert!(mirrored.repository.referrers(&blob().digest, "application/x").await.unwrap().is_empty());
    }
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn dead_mirrors_leave_the_registry_time_for_a_list() {
    let names = ["one.test/app:1", "two.test/app:1", "three.test/app:1", "four.test/app:1", NAMES[2]];
    let contents = names.map(|_| contents()).into();
    let mirrored = Mirrored::at(&names, contents, &Auth::Anonymous, &AccessOptions::default());
    (0..4).for_each(|number| mirrored.fails(number, Never));
    let began = Instant::now();
    assert!(mirrored.repository.referrers(&blob().digest, "application/x").await.unwrap().is_empty());
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    assert_eq!(mirrored.counts()[2..4], [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_sends_a_list_is_back() {
    let mirrored = Mirrored::new();
    mirrored.fails(0, Connect);
    mirrored.read(7..5_000).await.unwrap();
    mirrored.transports[0].attack("", None);
    tokio::time::advance(Duration::from_secs(60)).await;
    mirrored.repository.referrers(&blob().digest, "application/x").await.unwrap();
    let before = mirrored.counts()[0];
    mirrored.read(7..5_000).await.unwrap();
    assert_eq!(mirrored.counts()[0], before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_breaks_off_is_continued_at_the_next_host() {
    for fault in [BreakAfter(700), EndAfter(700), StallAfter(700)] {
        let mirrored = Mirrored::new();
        mirrored.fails(0, fault.clone());
        mirrored.fails(1, BreakAfter(500));
        mirrored.read(0..5_000).await.unwrap();
        let ranges = mirrored.transports.iter().map(|transport| transport.seen()[0].headers["range"].clone());
        assert_eq!(ranges.collect::<Vec<_>>(), ["bytes=0-4999", "bytes=700-4999", "bytes=1200-4999"], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_without_the_blob_is_asked_for_it_once() {
    let lacking = || {
        let mut contents = Contents::new();
        contents.add_blob(b"another".as_slice());
        contents
    };
    let mirrored = Mirrored::of([lacking(), contents(), contents()], &Auth::Anonymous, &AccessOptions::default());
    for _ in 0..5 {
        mirrored.read(7..5_000).await.unwrap();
    }
    assert_eq!(mirrored.counts(), [1, 5, 0]);
}

#[tokio::test(start_paused = true)]
async fn wrong_bytes_of_mirrors_lead_to_the_registry() {
    let mirrored = Mirrored::new();
    mirrored.fails(0, FlipBit);
    mirrored.fails(1, FlipBit);
    let blobs = mirrored.repository.blobs();
    assert!(mirrored.bytes(0..1_000).await.unwrap() != blob_bytes()[..1_000], "a range is not verified");
    assert!(blobs.distrust(&blob().digest), "another host is asked from now on");
    mirrored.read(0..1_000).await.unwrap();
    assert!(!blobs.distrust(&blob().digest), "there is no other host than the registry");
    // What is requested whole is verified here.
    let mirrored = Mirrored::new();
    mirrored.fails(0, FlipBit);
    mirrored.tag().await.unwrap();
    assert!(mirrored.repository.small_blob(blob()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_error_names_the_registry_and_a_mirror() {
    let mirrored = Mirrored::new();
    (0..3).for_each(|number| mirrored.fails(number, Status(404)));
    let error = mirrored.read(0..10).await.unwrap_err();
    assert_eq!(error.fault, Class::NotFound);
    let text = error.to_string();
    assert!(text.contains("404") && text.contains("before that its mirror: "), "{text}");
}

/// Requests, failures and what is received.
fn counted(mirrored: &Mirrored) -> Vec<(u64, u64, u64)> {
    let accounts = mirrored.repository.accounts();
    accounts.iter().map(|account| (account.counts.requests, account.counts.failures, account.counts.bytes)).collect()
}

#[tokio::test(start_paused = true)]
async fn each_endpoint_has_an_account_of_what_it_sent() {
    let mirrored = Mirrored::new();
    mirrored.read(7..5_000).await.unwrap();
    assert_eq!(counted(&mirrored), [(1, 0, 4_993), (0, 0, 0), (0, 0, 0)]);
    mirrored.fails(0, Broken);
    mirrored.fails(1, BreakAfter(500));
    mirrored.read(0..1_000).await.unwrap();
    assert_eq!(counted(&mirrored), [(2, 1, 4_993), (1, 1, 500), (1, 0, 500)]);
    assert_eq!(mirrored.repository.stats(), tarpon_registry::Stats { requests: 4, bytes: 5_993 });
    let accounts = mirrored.repository.accounts();
    let rests = accounts.iter().map(|account| account.rest).collect::<Vec<_>>();
    assert_eq!(rests, [Some(Duration::from_secs(1)), Some(Duration::from_secs(1)), None]);
    let why = accounts[1].last_failure.as_deref().unwrap();
    assert!(why.contains("bytes 500-999"), "{why}");
    assert_eq!(accounts[2].last_failure, None);
    mirrored.transports.iter().for_each(|transport| transport.attack("", None));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(mirrored.repository.accounts()[0].rest, Some(Duration::ZERO), "the next request tries it");
    mirrored.read(0..1_000).await.unwrap();
    let mirror = &mirrored.repository.accounts()[0];
    assert_eq!(mirror.rest, None);
    assert!(mirror.last_failure.is_some(), "the last failure stays");
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_first_byte_is_counted_for_the_host_that_was_waited_for() {
    let mirrored = Mirrored::new();
    mirrored.fails(0, Never);
    mirrored.fails(1, Unreachable(Duration::from_secs(2)));
    mirrored.read(0..1_000).await.unwrap();
    let waited = mirrored.repository.accounts().iter().map(|account| account.counts.wait_millis).collect::<Vec<_>>();
    assert_eq!(waited, [5_000, 2_000, 0]);
    assert_eq!(counted(&mirrored), [(1, 1, 0), (1, 1, 0), (1, 0, 1_000)], "a request that is given up counts");
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_registry_and_wrong_bytes_are_in_the_account() {
    let mirrored = Mirrored::new();
    (0..3).for_each(|number| mirrored.fails(number, Status(404)));
    mirrored.read(0..10).await.unwrap_err();
    let accounts = mirrored.repository.accounts();
    assert!(accounts.iter().all(|account| account.counts.failures == 1 && account.rest.is_none()), "{accounts:?}");
    assert!(accounts[2].last_failure.as_deref().unwrap().contains("404"), "{accounts:?}");
    let mirrored = Mirrored::new();
    mirrored.bytes(0..10).await.unwrap();
    mirrored.repository.blobs().distrust(&blob().digest);
    let accounts = mirrored.repository.accounts();
    let failures = accounts.iter().map(|account| account.counts.failures).collect::<Vec<_>>();
    assert_eq!(failures, [1, 0, 0], "the others sent nothing");
    assert!(accounts[0].last_failure.as_deref().unwrap().contains("were wrong"), "{accounts:?}");
}

#[tokio::test(start_paused = true)]
async fn given_credentials_are_not_sent_to_mirrors_elsewhere() {
    let options = AccessOptions { credentials: Some(given(PASSWORD)), ..AccessOptions::default() };
    let mirrored = Mirrored::of([contents(), contents(), contents()], &Auth::Basic, &options);
    mirrored.tag().await.unwrap();
    for mirror in &mirrored.transports[..2] {
        assert_none_sent(&mirror.seen());
        assert!(!mirror.seen().is_empty(), "it was asked without credentials");
    }
}

#[tokio::test(start_paused = true)]
async fn each_host_gets_its_own_credentials_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.json");
    let entry = |registry: &str| {
        use base64::Engine as _;
        let pair =
            base64::engine::general_purpose::STANDARD.encode(format!("{}:{PASSWORD}", tarpon_testkit::registry::USER));
        format!(r#"{{"auths":{{"{registry}":{{"auth":"{pair}"}}}}}}"#)
    };
    std::fs::write(&file, entry("two.test")).unwrap();
    let options = AccessOptions { authfiles: vec![file], ..AccessOptions::default() };
    let mirrored = Mirrored::of([contents(), contents(), contents()], &Auth::Basic, &options);
    mirrored.tag().await.unwrap();
    assert_eq!(mirrored.counts()[2], 0, "the second mirror accepted its credentials");
    assert_none_sent(&mirrored.transports[0].seen());
}

#[test]
fn an_image_needs_a_host() {
    let reference: Reference = NAMES[2].parse().unwrap();
    assert!(open_mirrored_with(&reference, Vec::new()).is_err());
}

/// A network on which no host has anything, and which records the requests.
#[derive(Default)]
struct Recorder(Mutex<Vec<(String, http::HeaderMap)>>);

impl Transport for Recorder {
    fn send(&self, request: Request) -> BoxFuture<'_, Result<Response, TransportError>> {
        self.0.lock().unwrap().push((request.url.to_string(), request.headers));
        let (status, headers) = (http::StatusCode::NOT_FOUND, http::HeaderMap::new());
        async move { Ok(Response { status, headers, body: futures::stream::empty().boxed() }) }.boxed()
    }
}

impl Recorder {
    fn urls(&self) -> Vec<String> {
        self.0.lock().unwrap().drain(..).map(|(url, _)| url).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_states_the_root_the_headers_and_the_registry_that_a_host_stands_for() {
    let recorder = Arc::new(Recorder::default());
    let address = |api: &str, namespace: Option<&str>| Address {
        headers: vec![Header::new("x-token", "secret"), Header::new("not valid", "x")],
        namespace: namespace.map(str::to_owned),
        ..Address::at(api.to_owned())
    };
    let endpoint = |number: usize, resolves, address| {
        let endpoint = Endpoint { resolves, address, ..Endpoint::of(NAMES[number].parse().unwrap(), false) };
        (recorder.clone() as Arc<dyn Transport>, CredentialSource::default(), endpoint)
    };
    let endpoints = vec![
        endpoint(0, true, Some(address("http://one.test/cache/v2", Some("registry.test")))),
        endpoint(1, false, Some(address("https://two.test/v2", Some("registry.test")))),
        endpoint(2, true, None),
    ];
    let repository = open_mirrored_with(&NAMES[2].parse().unwrap(), endpoints).unwrap();
    assert!(repository.resolve(&Platform::host()).await.is_err());
    let sent = recorder.0.lock().unwrap().clone();
    assert_eq!(sent[0].1["x-token"], "secret");
    assert!(sent[1].1.get("x-token").is_none(), "they are for their host alone");
    let tag = ["http://one.test/cache/v2/app/manifests/1?ns=registry.test", "https://registry.test/v2/app/manifests/1"];
    assert_eq!(recorder.urls(), tag, "the second host resolves no tags");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(repository.small_blob(blob()).await.is_err());
    let path = format!("app/blobs/{}", blob().digest);
    let digest = [
        format!("http://one.test/cache/v2/{path}?ns=registry.test"),
        format!("https://two.test/v2/{path}?ns=registry.test"),
        format!("https://registry.test/v2/{path}"),
    ];
    assert_eq!(recorder.urls(), digest);
}
