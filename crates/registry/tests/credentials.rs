//! Secrets are sent to the registry and its token service only, and refused credentials are not sent again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{World, assert_no_secret, given, sent};
use tarpon_blob::Fault as Class;
use tarpon_registry::{CredentialSource, Credentials, Secret};
use tarpon_testkit::registry::{Auth, Fault, IDENTITY, PASSWORD, USER};
use tarpon_testkit::transport::Seen;

const STATUSES: [u16; 5] = [301, 302, 303, 307, 308];

/// Where a registry may send a client, from near to far.
const TARGETS: [&str; 7] = [
    "https://cdn.test/elsewhere",
    "https://registry.test:8443/other-port",
    "https://blobs.registry.test/subdomain",
    "https://registry.test.evil.test/suffix",
    "http://registry.test/downgrade",
    "https://registry.test@evil.test/user-part",
    "//evil.test/scheme-relative",
];

fn worlds() -> Vec<(&'static str, World)> {
    let bearer = |anonymous| Auth::Bearer { anonymous, expires_in: Some(60) };
    vec![
        ("anonymous", World::new(Auth::Anonymous, None, Some(given(PASSWORD)))),
        ("basic", World::new(Auth::Basic, None, Some(given(PASSWORD)))),
        ("bearer", World::new(bearer(false), None, Some(given(PASSWORD)))),
        ("identity", World::new(bearer(false), None, Some(Credentials::IdentityToken(Secret::new(IDENTITY))))),
        ("public token", World::new(bearer(true), None, None)),
    ]
}

/// Fails if `seen` carried a secret to a host that must not have it.
fn assert_well_kept(seen: &Seen) {
    let pair = STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let text = sent(seen);
    let origin = seen.url.origin().ascii_serialization();
    for (secret, may_have) in [
        (PASSWORD, &[][..]),
        (&pair, &["https://registry.test", "https://auth.test"][..]),
        (IDENTITY, &["https://auth.test"][..]),
        ("token-", &["https://registry.test"][..]),
    ] {
        let own_field = secret == "token-" && origin == "https://auth.test";
        assert!(own_field || may_have.contains(&&*origin) || !text.contains(secret), "{secret} sent to {origin}");
    }
    if !["https://registry.test", "https://auth.test"].contains(&&*origin) {
        assert!(!seen.headers.contains_key("authorization"), "an Authorization header sent to {origin}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_redirect_carries_a_secret_to_another_host() {
    let mut checked = 0;
    for status in STATUSES {
        for target in TARGETS {
            for (kind, world) in worlds() {
                world.tag().await.unwrap_or_else(|error| panic!("{kind}: {error}"));
                world.registry.redirect_blobs(status, target);
                let error = world.read(0..100).await.unwrap_err();
                assert_no_secret(&format!("{error} {error:?}"));
                world.transport.seen().iter().for_each(assert_well_kept);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 175);
}

#[tokio::test(start_paused = true)]
async fn presigned_addresses_work_beside_every_kind_of_credentials() {
    let presigned = Some(Duration::from_secs(600));
    for (auth, credentials) in [
        (Auth::Basic, Some(given(PASSWORD))),
        (Auth::Bearer { anonymous: false, expires_in: Some(60) }, Some(given(PASSWORD))),
        (Auth::Bearer { anonymous: true, expires_in: None }, None),
    ] {
        // The blob host refuses requests that carry an Authorization header.
        let world = World::new(auth, presigned, credentials);
        world.tag().await.unwrap();
        world.read(10..100).await.unwrap();
        world.transport.seen().iter().for_each(assert_well_kept);
    }
}

#[tokio::test(start_paused = true)]
async fn a_redirect_within_the_registry_keeps_the_authorization() {
    let world = World::basic(Some(PASSWORD));
    world.tag().await.unwrap();
    world.transport.script([Fault::Redirect(307, format!("/v2/app/blobs/{}?here=1", common::blob().digest))]);
    world.read(0..10).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_login_is_retried_less_and_less_often_until_the_credentials_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.json");
    let write = |password: &str| {
        let pair = STANDARD.encode(format!("{USER}:{password}"));
        std::fs::write(&file, format!(r#"{{"auths":{{"registry.test":{{"auth":"{pair}"}}}}}}"#)).unwrap();
    };
    write("wrong");
    for auth in [Auth::Basic, Auth::Bearer { anonymous: false, expires_in: Some(60) }] {
        write("wrong");
        let world = World::with_source(auth, None, CredentialSource::new(None, vec![file.clone()]));
        assert_eq!(world.tag().await.unwrap_err().fault, Class::Denied);
        let sent = || world.transport.seen().len();
        let before = sent();
        for _ in 0..10 {
            assert_eq!(world.read(0..10).await.unwrap_err().fault, Class::Denied);
        }
        // The first two wait a moment and retry, each with one request or two.
        let after = sent();
        assert!(after - before <= 4, "{} requests with a wrong password", after - before);
        for _ in 0..10 {
            assert_eq!(world.read(0..10).await.unwrap_err().fault, Class::Denied);
        }
        assert_eq!(sent(), after, "nothing is sent while nothing has changed");
        write(PASSWORD);
        world.read(0..10).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_password_is_read_again_when_the_old_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth.json");
    let write = |password: &str| {
        let text = format!(r#"{{"auths":{{"registry.test/app":{{"username":"{USER}","password":"{password}"}}}}}}"#);
        std::fs::write(&file, text).unwrap();
    };
    write(PASSWORD);
    let world = World::with_source(Auth::Basic, None, CredentialSource::new(None, vec![file.clone()]));
    world.read(0..10).await.unwrap();
    world.registry.change_password("new");
    write("new");
    world.read(0..10).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_hint_for_anonymous_users_is_to_log_in() {
    let error = World::basic(None).tag().await.unwrap_err();
    assert_eq!(error.fault, Class::Denied);
    assert!(error.to_string().contains("--creds"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_token_service_on_plain_http_gets_no_password() {
    let world = World::token(Some(PASSWORD));
    let mut hosts = world.registry.hosts();
    hosts.tokens = "http://auth.test".to_owned();
    world.registry.set_hosts(hosts);
    assert_eq!(world.tag().await.unwrap_err().fault, Class::Refused);
    assert_eq!(world.transport.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn connections_are_opened_ahead_without_credentials() {
    let World { registry, transport, repository } = World::basic(Some(PASSWORD));
    let world = World { registry, transport, repository: repository.with_warm_pool() };
    world.tag().await.unwrap();
    let seen = world.transport.seen();
    let ahead: Vec<_> = seen.iter().filter(|seen| seen.url.path() == "/v2/").collect();
    assert_eq!(ahead.len(), 5);
    assert!(ahead.iter().all(|seen| !seen.headers.contains_key("authorization")));
}

#[tokio::test(start_paused = true)]
async fn one_401_too_many_fails_one_request_and_closes_nothing() {
    // A request, a new token where there are tokens, and the request once more.
    let tokens = [Fault::Status(401), Fault::Pass, Fault::Status(401)];
    let basic = [Fault::Status(401), Fault::Status(401)];
    for (world, script) in [(World::token(Some(PASSWORD)), &tokens[..]), (World::basic(Some(PASSWORD)), &basic)] {
        world.tag().await.unwrap();
        for _ in 0..20 {
            world.transport.script(script.to_vec());
            assert_eq!(world.read(0..10).await.unwrap_err().fault, Class::Denied);
            let began = tokio::time::Instant::now();
            world.read(0..10).await.unwrap();
            assert!(began.elapsed() <= Duration::from_secs(1), "{:?}", began.elapsed());
            world.read(0..10).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_with_a_refused_login_send_one_request_for_each_pause() {
    let world = World::token(Some(PASSWORD));
    world.tag().await.unwrap();
    world.registry.change_password("new");
    world.registry.revoke_tokens();
    let before = world.transport.seen().len();
    let reads = (0..200).map(|_| world.read(0..10));
    assert!(futures::future::join_all(reads).await.iter().all(Result::is_err));
    let seen = world.transport.seen();
    let tokens = seen[before..].iter().filter(|seen| seen.url.host_str() == Some("auth.test")).count();
    assert!(tokens <= 3, "the wrong password was sent {tokens} times");
}

#[tokio::test(start_paused = true)]
async fn a_token_service_on_another_host_gets_no_password_unless_a_file_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("services");
    let bearer = Auth::Bearer { anonymous: true, expires_in: Some(60) };
    for credentials in [given(PASSWORD), Credentials::IdentityToken(Secret::new(IDENTITY))] {
        std::fs::write(&file, "registry.test other.test\nother.test auth.test\n").unwrap();
        let source = CredentialSource::new(Some(credentials), Vec::new()).with_token_services(vec![file.clone()]);
        let world = World::with_strict_source(bearer.clone(), None, source);
        let error = world.tag().await.unwrap_err();
        assert_eq!(error.fault, Class::Refused);
        let hint = format!("add the line \"registry.test auth.test\" to {}", file.display());
        assert!(error.to_string().contains(&hint), "{error}");
        assert_no_secret(&error.to_string());
        assert!(world.transport.seen().iter().all(|seen| seen.url.host_str() != Some("auth.test")));
        std::fs::write(&file, "registry.test other.test auth.test\n").unwrap();
        world.tag().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_service_on_the_registry_itself_gets_the_password_and_any_other_serves_anonymous_users() {
    let source = |credentials| CredentialSource::new(credentials, Vec::new());
    let closed = Auth::Bearer { anonymous: false, expires_in: Some(60) };
    let world = World::with_strict_source(closed, None, source(Some(given(PASSWORD))));
    let mut hosts = world.registry.hosts();
    hosts.tokens = "https://registry.test:5001".to_owned();
    world.registry.set_hosts(hosts);
    world.tag().await.unwrap();
    let open = Auth::Bearer { anonymous: true, expires_in: Some(60) };
    World::with_strict_source(open, None, source(None)).tag().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_that_needs_good_credentials_ends_the_pauses_after_refusals() {
    // A status that is retried occurs four times.
    for (status, times, ends) in [
        (400, 1, false),
        (403, 1, false),
        (405, 1, false),
        (418, 1, false),
        (429, 4, false),
        (500, 4, false),
        (503, 4, false),
        (404, 1, true),
    ] {
        let world = World::basic(Some(PASSWORD));
        world.tag().await.unwrap();
        let refused = || async {
            world.transport.script([Fault::Status(401), Fault::Status(401)]);
            assert_eq!(world.read(0..10).await.unwrap_err().fault, Class::Denied);
        };
        refused().await;
        world.transport.script((0..times).map(|_| Fault::Status(status)));
        assert!(world.read(0..10).await.is_err());
        refused().await;
        let began = tokio::time::Instant::now();
        world.read(0..10).await.unwrap();
        let pause = Duration::from_secs(if ends { 1 } else { 2 });
        assert_eq!(began.elapsed().as_secs(), pause.as_secs(), "after {status}");
    }
}
