//! Endpoints of tarpon's own configuration: which credentials and headers each of them gets, how long it is waited for, and that reads
//! succeed whatever they do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{assert_none_sent, blob, blob_bytes, contents, given, sent};
use futures::TryStreamExt as _;
use tarpon_blob::SourceError;
use tarpon_oci::{Platform, Reference};
use tarpon_registry::transport::Transport;
use tarpon_registry::{
    AccessOptions, Address, CredentialSource, Endpoint, EndpointCredentials, Registries, Repository, open_later,
    open_mirrored_with,
};
use tarpon_testkit::registry::Fault::{self, *};
use tarpon_testkit::registry::{Auth, FakeRegistry, Hosts, PASSWORD, USER};
use tarpon_testkit::server::TestServer;
use tarpon_testkit::transport::{ScriptedTransport, Seen};
use tokio::time::Instant;

/// A read of a mount ends within this time (docs/guarantees.md).
const PROMISE: Duration = Duration::from_secs(30);

const IMAGE: &str = "registry.test/app:1";

/// The value of a header.
const TENANT: &str = "tenant-t0ken";

const BEARER: Auth = Auth::Bearer { anonymous: false, expires_in: Some(60) };

/// An image whose hosts are its endpoints and its registry, each with a network of its own.
struct Served {
    transports: Vec<Arc<ScriptedTransport>>,
    registries: Vec<Arc<FakeRegistry>>,
    repository: Repository,
    endpoints: Vec<Endpoint>,
}

impl Served {
    /// `lines` state the endpoints.
    fn new(lines: &[&str], auth: &Auth, credentials: CredentialSource) -> Self {
        let stated: String = lines.iter().map(|line| format!("[[registry.endpoint]]\n{line}\n")).collect();
        let text = format!("[[registry]]\nprefix = 'registry.test'\n{stated}");
        let all = Registries::default().with_endpoints(&text).unwrap();
        Self::of(all.endpoints(&IMAGE.parse().unwrap()).unwrap(), auth, credentials)
    }

    fn of(endpoints: Vec<Endpoint>, auth: &Auth, credentials: CredentialSource) -> Self {
        let model = |endpoint: &Endpoint| {
            let registry = Arc::new(FakeRegistry::new(contents(), auth.clone(), None));
            let api = endpoint.address.as_ref().map(|address| address.api.trim_end_matches("/v2").to_owned());
            let at = api.unwrap_or_else(|| format!("https://{}", endpoint.reference.registry()));
            registry.set_hosts(Hosts { registry: at, ..registry.hosts() });
            registry
        };
        let registries: Vec<_> = endpoints.iter().map(model).collect();
        let transports: Vec<_> =
            registries.iter().map(|registry| Arc::new(ScriptedTransport::new(registry.clone()))).collect();
        let image: Reference = IMAGE.parse().unwrap();
        let opened = endpoints.iter().enumerate().map(|(number, endpoint)| {
            let transport = transports[number].clone() as Arc<dyn Transport>;
            (transport, credentials.at(number, &endpoints, &image), endpoint.clone())
        });
        let repository = open_mirrored_with(&image, opened.collect()).unwrap();
        Self { transports, registries, repository, endpoints }
    }

    async fn read(&self) -> Result<(), SourceError> {
        read(&self.repository).await
    }

    async fn tag(&self) -> Result<(), tarpon_registry::Error> {
        self.repository.resolve(&Platform::host()).await.map(drop)
    }

    fn seen(&self, number: usize) -> Vec<Seen> {
        self.transports[number].seen()
    }

    fn fails(&self, number: usize, fault: Fault) {
        self.transports[number].attack("", Some(fault));
    }

    /// The hosts of the endpoint's network that got the password, as a user and password.
    fn got_password(&self, number: usize) -> Vec<String> {
        let pair = STANDARD.encode(format!("{USER}:{PASSWORD}"));
        let seen = self.seen(number).into_iter().filter(|seen| sent(seen).contains(&pair));
        let mut hosts: Vec<_> = seen.map(|seen| seen.url.host_str().unwrap().to_owned()).collect();
        hosts.dedup();
        hosts
    }
}

async fn read(repository: &Repository) -> Result<(), SourceError> {
    let pieces = repository.blobs().read(blob(), 7..5_000).await?;
    let read: Vec<u8> = pieces.map_ok(|piece| piece.to_vec()).try_concat().await?;
    assert!(read == blob_bytes()[7..5_000], "wrong bytes");
    Ok(())
}

/// The password of the command line, and a file in which the registry's token service is its own.
fn password() -> CredentialSource {
    CredentialSource::new(Some(given(PASSWORD)), Vec::new()).with_token_services(vec![common::TOKEN_SERVICES.into()])
}

fn auth_file(folder: &tempfile::TempDir, registry: &str) -> PathBuf {
    let file = folder.path().join("auth.json");
    let pair = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    std::fs::write(&file, format!(r#"{{"auths":{{"{registry}":{{"auth":"{pair}"}}}}}}"#)).unwrap();
    file
}

#[tokio::test(start_paused = true)]
async fn the_credentials_of_the_registry_reach_an_endpoint_only_if_its_entry_states_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = auth_file(&folder, "registry.test");
    let files = || {
        let source = CredentialSource::new(None, vec![file.clone()]);
        source.with_token_services(vec![common::TOKEN_SERVICES.into()])
    };
    for source in [&password as &dyn Fn() -> CredentialSource, &files] {
        for line in ["", "credentials = 'own'", "credentials = 'none'"] {
            for auth in [Auth::Basic, BEARER] {
                let served = Served::new(&[&format!("url = 'https://cache.test'\n{line}")], &auth, source());
                served.tag().await.unwrap();
                served.read().await.unwrap();
                assert!(!served.seen(0).is_empty(), "it was asked");
                assert_none_sent(&served.seen(0));
                assert!(!served.seen(1).is_empty(), "the registry answered");
            }
        }
    }
    let line = "url = 'https://cache.test'\ncredentials = 'registry'";
    for (auth, gets) in [(Auth::Basic, "cache.test"), (BEARER, "auth.test")] {
        let served = Served::new(&[line], &auth, password());
        served.tag().await.unwrap();
        served.read().await.unwrap();
        assert_eq!(served.got_password(0), [gets]);
        assert!(served.seen(1).is_empty(), "the endpoint answered");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_gets_the_credentials_under_its_own_name_unless_it_may_see_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = auth_file(&folder, "cache.test");
    let source = || CredentialSource::new(None, vec![file.clone()]);
    let served = Served::new(&["url = 'https://cache.test'"], &Auth::Basic, source());
    served.read().await.unwrap();
    assert_eq!(served.got_password(0), ["cache.test"]);
    let served = Served::new(&["url = 'https://cache.test'\ncredentials = 'none'"], &Auth::Basic, source());
    served.read().await.unwrap_err();
    assert_none_sent(&[served.seen(0), served.seen(1)].concat());
}

#[tokio::test(start_paused = true)]
async fn the_token_service_of_an_endpoint_for_the_registry_is_the_registrys_or_its_own() {
    let line = "url = 'https://cache.test'\ncredentials = 'registry'";
    let with_tokens_at = |at: &str| {
        let served = Served::new(&[line], &BEARER, password());
        served.registries[0].set_hosts(Hosts { tokens: at.to_owned(), ..served.registries[0].hosts() });
        served
    };
    for (at, host) in [("https://auth.test", "auth.test"), ("https://cache.test:5001", "cache.test")] {
        let served = with_tokens_at(at);
        served.read().await.unwrap();
        assert_eq!(served.got_password(0), [host]);
    }
    for at in ["https://evil.test", "http://auth.test", "http://cache.test"] {
        let served = with_tokens_at(at);
        served.read().await.unwrap();
        assert_none_sent(&served.seen(0));
        assert!(!served.seen(1).is_empty(), "the registry answered instead");
    }
}

#[tokio::test(start_paused = true)]
async fn the_credentials_of_the_registry_are_sent_over_plain_http_on_this_machine_only() {
    let local = || Served::new(&["url = 'http://127.0.0.1:5001'\ncredentials = 'registry'"], &Auth::Basic, password());
    let served = local();
    served.read().await.unwrap();
    assert_eq!(served.got_password(0), ["127.0.0.1"]);
    // Its token service is another machine.
    let served = Served::new(&["url = 'http://127.0.0.1:5001'\ncredentials = 'registry'"], &BEARER, password());
    served.registries[0].set_hosts(Hosts { tokens: "http://auth.test".into(), ..served.registries[0].hosts() });
    served.read().await.unwrap();
    assert_none_sent(&served.seen(0));
    // No file can state this.
    let address = Address { credentials: EndpointCredentials::Registry, ..Address::at("http://cache.test/v2".into()) };
    let exposed = Endpoint { address: Some(address), ..Endpoint::of("cache.test/app:1".parse().unwrap(), false) };
    let registry = Endpoint::of(IMAGE.parse().unwrap(), false);
    let served = Served::of(vec![exposed, registry], &Auth::Basic, password());
    served.read().await.unwrap();
    assert_none_sent(&served.seen(0));
    // The registry's own name, which has its credentials.
    for credentials in ["own", "none"] {
        let line = format!("url = 'http://registry.test'\ncredentials = '{credentials}'");
        let served = Served::new(&[&line], &Auth::Basic, password());
        served.read().await.unwrap();
        assert_none_sent(&served.seen(0));
    }
}

#[tokio::test(start_paused = true)]
async fn neither_credentials_nor_headers_follow_a_redirect_to_another_host() {
    let line = format!("url = 'https://cache.test'\ncredentials = 'registry'\nheaders = {{ X-Tenant = '{TENANT}' }}");
    for target in
        ["https://cdn.test/x", "https://cache.test:8443/x", "https://a.cache.test/x", "https://registry.test/x"]
    {
        for status in [301, 302, 303, 307, 308] {
            let served = Served::new(&[&line], &Auth::Basic, password());
            served.tag().await.unwrap();
            served.registries[0].redirect_blobs(status, target);
            served.read().await.unwrap();
            let origin = |seen: &Seen| seen.url.origin().ascii_serialization();
            let elsewhere = served.seen(0).into_iter().filter(|seen| origin(seen) != "https://cache.test");
            let elsewhere: Vec<_> = elsewhere.collect();
            assert!(!elsewhere.is_empty(), "it was followed to {target}");
            assert_none_sent(&elsewhere);
            let shown: String = elsewhere.iter().map(sent).collect();
            assert!(!shown.contains("authorization") && !shown.contains("x-tenant"), "{shown}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn headers_are_sent_to_their_endpoint_and_to_no_other_host() {
    let first = format!("url = 'https://one.test'\nheaders = {{ X-Tenant = '{TENANT}', x-other = 'a b' }}");
    let lines = [&*first, "url = 'https://two.test'\nheaders = { X-Tenant = 'second' }"];
    let public = Auth::Bearer { anonymous: true, expires_in: Some(60) };
    let served = Served::new(&lines, &public, CredentialSource::default());
    served.tag().await.unwrap();
    served.read().await.unwrap();
    let seen = served.seen(0);
    assert!(seen.iter().any(|seen| seen.url.host_str() == Some("auth.test")), "a token was fetched");
    for seen in seen {
        let is_its = seen.url.host_str() == Some("one.test");
        assert_eq!(seen.headers.get("x-tenant").is_some_and(|value| value == TENANT), is_its, "{seen:?}");
        assert_eq!(seen.headers.get("x-other").is_some_and(|value| value == "a b"), is_its, "{seen:?}");
    }
    served.fails(0, Connect);
    served.read().await.unwrap();
    served.fails(1, Connect);
    served.read().await.unwrap();
    assert!(
        served
            .seen(1)
            .iter()
            .all(|seen| seen.url.host_str() != Some("two.test") || seen.headers["x-tenant"] == "second")
    );
    let registry = served.seen(2);
    assert!(!registry.is_empty() && registry.iter().all(|seen| !seen.headers.contains_key("x-tenant")));
}

#[tokio::test(start_paused = true)]
async fn no_error_account_or_debug_text_shows_the_value_of_a_header() {
    let line = format!("url = 'https://cache.test'\nheaders = {{ X-Tenant = '{TENANT}' }}");
    for fault in [Connect, Broken, Never, Status(400), Status(502), Certificate, NotTls, Html] {
        let served = Served::new(&[&line], &Auth::Anonymous, CredentialSource::default());
        served.fails(0, fault.clone());
        served.fails(1, fault);
        let error = served.read().await.unwrap_err();
        let shown = format!("{error} {error:?} {:?} {:?}", served.repository.accounts(), served.endpoints);
        assert!(!shown.contains(TENANT), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_is_left_after_its_own_time_limit() {
    for (line, limit) in [("timeout = '800ms'", 800), ("timeout = '3s'", 3_000), ("", 5_000)] {
        for fault in [Never, Late(Duration::from_secs(20)), Unreachable(Duration::from_secs(20))] {
            let served = Served::new(&[&format!("url = 'https://cache.test'\n{line}")], &Auth::Anonymous, password());
            served.fails(0, fault.clone());
            let began = Instant::now();
            served.read().await.unwrap();
            let took = began.elapsed().as_millis();
            assert!((limit..limit + 100).contains(&took), "{line} {fault:?}: {took} ms");
            let why = served.repository.accounts()[0].last_failure.clone().unwrap();
            let seconds = Duration::from_millis(u64::try_from(limit).unwrap()).as_secs_f64();
            assert!(why.contains(&format!("no response within {seconds} s")), "{why}");
        }
    }
    // With the challenge and the token.
    let line = "url = 'https://cache.test'\ntimeout = '2s'\ncredentials = 'registry'";
    let served = Served::new(&[line], &BEARER, password());
    served.fails(0, Late(Duration::from_millis(900)));
    let began = Instant::now();
    served.read().await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(2_100), "{:?}", began.elapsed());
    assert_eq!(served.repository.accounts()[0].counts.failures, 1);
}

#[tokio::test(start_paused = true)]
async fn reads_succeed_in_time_while_any_endpoint_answers() {
    let lines = ["url = 'https://one.test'\ntimeout = '2s'", "url = 'https://two.test'", "url = 'http://three.test'"];
    for well in 0..4 {
        for fault in [Connect, Never, Status(500), Status(401), StallAfter(100), Certificate] {
            let served = Served::new(&lines, &Auth::Anonymous, CredentialSource::default());
            for number in (0..4).filter(|number| *number != well) {
                served.fails(number, fault.clone());
            }
            let began = Instant::now();
            served.read().await.unwrap_or_else(|error| panic!("{well} {fault:?}: {error}"));
            assert!(began.elapsed() <= PROMISE, "{well} {fault:?}: {:?}", began.elapsed());
        }
    }
}

#[tokio::test]
async fn an_endpoint_whose_certificates_cannot_be_read_is_passed_over_and_its_account_has_the_reason() {
    let registry = Arc::new(FakeRegistry::new(contents(), Auth::Anonymous, None));
    let server = TestServer::start(registry).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let invalid = folder.path().join("invalid.crt");
    std::fs::write(&invalid, "-----BEGIN CERTIFICATE-----\nnonsense").unwrap();
    for file in [folder.path().join("missing.crt"), invalid] {
        let text = format!(
            "[[registry]]\nprefix='{}'\nendpoint=[{{url='https://127.0.0.1:1',ca='{}'}}]",
            server.host(),
            file.display()
        );
        let image = format!("{}/app:1", server.host());
        let all = Registries::default().with_endpoints(&text).unwrap();
        let endpoints = all.endpoints(&image.parse().unwrap()).unwrap();
        let authfiles = vec![folder.path().join("auth.json")];
        let options = AccessOptions { endpoints, authfiles, ..AccessOptions::default() };
        let repository = open_later(&image.parse().unwrap(), &options).unwrap();
        read(&repository).await.unwrap();
        let accounts = repository.accounts();
        assert_eq!((accounts[0].host.as_str(), accounts[0].counts.failures), ("127.0.0.1:1", 1));
        let why = accounts[0].last_failure.clone().unwrap();
        assert!(why.contains(&file.display().to_string()), "{why}");
    }
}
