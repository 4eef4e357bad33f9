//! Pushing to a registry, with each fault that an upload can meet, under a paused clock.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{assert_no_secret, blob, blob_bytes, contents, given};
use futures::{StreamExt as _, stream};
use http::Method;
use tarpon_blob::{BlobStream, Fault as Class, SourceError};
use tarpon_oci::{Blob, Digest, Reference};
use tarpon_registry::{CredentialSource, Destination, Error, open_destination_with};
use tarpon_testkit::registry::Fault::{self, *};
use tarpon_testkit::registry::{Auth, FakeRegistry, Locations, PASSWORD};
use tarpon_testkit::transport::ScriptedTransport;

struct Push {
    registry: Arc<FakeRegistry>,
    transport: Arc<ScriptedTransport>,
    destination: Destination,
}

impl Push {
    fn new(auth: Auth) -> Self {
        let registry = Arc::new(FakeRegistry::new(contents(), auth, None));
        let transport = Arc::new(ScriptedTransport::new(registry.clone()));
        let reference: Reference = "registry.test/app:1".parse().unwrap();
        let credentials = CredentialSource::new(Some(given(PASSWORD)), Vec::new())
            .with_token_services(vec![common::TOKEN_SERVICES.into()]);
        let destination = open_destination_with(&reference, transport.clone(), credentials, true).unwrap();
        Self { registry, transport, destination }
    }

    fn open() -> Self {
        Self::new(Auth::Anonymous)
    }

    fn token() -> Self {
        Self::new(Auth::Bearer { anonymous: false, expires_in: Some(60) })
    }

    /// The methods of all requests so far.
    fn methods(&self) -> String {
        let methods: Vec<String> = self.transport.seen().iter().map(|seen| seen.method.to_string()).collect();
        methods.join(" ")
    }

    async fn has(&self, bytes: &Bytes) -> bool {
        self.destination.has_blob(Blob { digest: Digest::of(bytes), size: bytes.len() as u64 }).await.unwrap()
    }
}

/// 50,000 bytes that the registry does not have.
fn fresh() -> Bytes {
    Bytes::from(blob_bytes().iter().take(50_000).map(|byte| !byte).collect::<Vec<u8>>())
}

fn pieces(bytes: &Bytes) -> BlobStream {
    let pieces: Vec<_> = bytes.chunks(7_000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

#[tokio::test(start_paused = true)]
async fn bytes_and_streams_arrive_at_any_upload_location() {
    for locations in [Locations::Relative, Locations::Absolute, Locations::Elsewhere] {
        for auth in [Auth::Anonymous, Auth::Basic, Auth::Bearer { anonymous: false, expires_in: Some(60) }] {
            // The model panics if credentials reach the other host, and requires the query of each location.
            let push = Push::new(auth);
            push.registry.set_locations(locations);
            let small = push.destination.push_bytes(Bytes::from_static(b"{}")).await.unwrap();
            assert_eq!(small, tarpon_oci::empty_config());
            let streamed = push.destination.push_stream(pieces(&fresh())).await.unwrap();
            assert_eq!(streamed, Blob { digest: Digest::of(&fresh()), size: 50_000 });
            assert!(push.has(&fresh()).await, "{locations:?}");
            assert_eq!(push.registry.open_uploads(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_nothing_is_the_empty_blob() {
    let push = Push::open();
    let pushed = push.destination.push_stream(stream::empty().boxed()).await.unwrap();
    assert_eq!(pushed, Blob { digest: Digest::of(b""), size: 0 });
    assert_eq!(push.methods(), "POST PUT");
}

#[tokio::test(start_paused = true)]
async fn only_a_clear_answer_means_that_a_blob_exists() {
    let push = Push::open();
    assert!(push.destination.has_blob(blob()).await.unwrap());
    assert!(!push.has(&fresh()).await);
    assert!(!push.destination.has_blob(Blob { size: 99_999, ..blob() }).await.unwrap());
    for doubtful in [Status(206), Status(204), Header("content-length", ""), Header("content-length", "5")] {
        push.transport.script([doubtful]);
        assert!(!push.destination.has_blob(blob()).await.unwrap());
    }
    push.transport.script([Status(500)]);
    assert!(push.destination.has_blob(blob()).await.unwrap());
    push.transport.script([Status(403)]);
    assert_eq!(push.destination.has_blob(blob()).await.unwrap_err().fault(), Class::Denied);
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_not_done_leaves_no_upload_open() {
    let from: Reference = "registry.test/base:1".parse().unwrap();
    let push = Push::token();
    assert!(!push.destination.mount_blob(blob(), &from).await.unwrap());
    assert!(push.methods().ends_with("POST DELETE"), "{}", push.methods());
    push.registry.allow_mounts();
    assert!(push.destination.mount_blob(blob(), &from).await.unwrap());
    let elsewhere: Reference = "other.test/base:1".parse().unwrap();
    let sent = push.transport.seen().len();
    assert!(!push.destination.mount_blob(blob(), &elsewhere).await.unwrap());
    assert_eq!(push.transport.seen().len(), sent, "no other registry can be mounted from");
}

#[tokio::test(start_paused = true)]
async fn a_mount_that_is_denied_does_not_end_the_push() {
    let push = Push::token();
    push.registry.allow_mounts();
    push.registry.refuse_scope("repository:secret:pull");
    let from: Reference = "registry.test/secret:1".parse().unwrap();
    assert!(!push.destination.mount_blob(blob(), &from).await.unwrap());
    push.destination.push_bytes(fresh()).await.unwrap();
}

/// The pushed content.
#[derive(Debug, Clone, Copy)]
enum What {
    Bytes,
    Stream,
    Copy,
}

type Case = (&'static str, What, Vec<Fault>, Result<(), Class>, &'static str, f64);

fn cases() -> Vec<Case> {
    use What::*;
    let denied = "sha256:0000000000000000000000000000000000000000000000000000000000000000";
    let there = || "https://cdn.test/x".to_owned();
    vec![
        ("bytes are two requests", Bytes, vec![], Ok(()), "POST PUT", 0.0),
        ("a stream is three", Stream, vec![], Ok(()), "POST PATCH PUT", 0.0),
        ("a copy is three", Copy, vec![], Ok(()), "POST PATCH PUT", 0.0),
        // Opening the upload.
        ("a broken POST is sent again", Stream, vec![Broken], Ok(()), "POST POST PATCH PUT", 0.3),
        ("an unanswered POST is sent again", Bytes, vec![Never], Ok(()), "POST POST PUT", 5.3),
        ("500 to a POST is asked again", Stream, vec![Status(500)], Ok(()), "POST POST PATCH PUT", 0.3),
        ("429 to a POST is waited for", Bytes, vec![RetryAfter(429, "3")], Ok(()), "POST POST PUT", 3.75),
        ("403 to a POST is final", Stream, vec![Status(403)], Err(Class::Denied), "POST", 0.0),
        ("404 to a POST is final", Bytes, vec![Status(404)], Err(Class::NotFound), "POST", 0.0),
        ("405 to a POST is final", Bytes, vec![Status(405)], Err(Class::Refused), "POST", 0.0),
        ("an upload nowhere is refused", Stream, vec![Header("location", "")], Err(Class::Refused), "POST", 0.0),
        (
            "an upload on plain HTTP is refused",
            Stream,
            vec![Header("location", "http://cdn.test/x")],
            Err(Class::Refused),
            "POST",
            0.0,
        ),
        (
            "an upload with a password in its address is refused",
            Bytes,
            vec![Header("location", "https://a:b@cdn.test/x")],
            Err(Class::Refused),
            "POST",
            0.0,
        ),
        ("a redirected POST is refused", Bytes, vec![Redirect(307, there())], Err(Class::Refused), "POST", 0.0),
        ("200 to a POST is no upload", Bytes, vec![Html, Html], Err(Class::BadData), "POST POST", 0.3),
        // The stream.
        ("a broken PATCH continues", Stream, vec![Pass, TakeAndBreak(20_000)], Ok(()), "POST PATCH GET PATCH PUT", 0.3),
        ("a broken copy continues", Copy, vec![Pass, TakeAndBreak(20_000)], Ok(()), "POST PATCH GET PATCH PUT", 0.3),
        (
            "a PATCH of which nothing arrived starts anew",
            Stream,
            vec![Pass, TakeAndBreak(0)],
            Ok(()),
            "POST PATCH GET POST PATCH PUT",
            0.3,
        ),
        (
            "a PATCH that arrived whole is not sent again",
            Stream,
            vec![Pass, DoAndBreak],
            Ok(()),
            "POST PATCH GET PUT",
            0.3,
        ),
        (
            "a PATCH that hangs continues",
            Stream,
            vec![Pass, TakeAndHang(9_000)],
            Ok(()),
            "POST PATCH GET PATCH PUT",
            120.3,
        ),
        ("500 to a PATCH continues", Stream, vec![Pass, Status(500)], Ok(()), "POST PATCH GET POST PATCH PUT", 0.3),
        (
            "a lost session starts anew",
            Stream,
            vec![Pass, Status(404), Status(404)],
            Ok(()),
            "POST PATCH GET POST PATCH PUT",
            0.3,
        ),
        ("416 asks what is there", Copy, vec![Pass, Status(416)], Ok(()), "POST PATCH GET POST PATCH PUT", 0.3),
        (
            "a broken status is asked again",
            Stream,
            vec![Pass, TakeAndBreak(20_000), Broken],
            Ok(()),
            "POST PATCH GET GET PATCH PUT",
            0.6,
        ),
        ("403 to a PATCH is final", Stream, vec![Pass, Status(403)], Err(Class::Denied), "POST PATCH DELETE", 0.0),
        ("413 to a PATCH is final", Copy, vec![Pass, Status(413)], Err(Class::Refused), "POST PATCH DELETE", 0.0),
        (
            "less than was sent is noticed",
            Stream,
            vec![Pass, Header("range", "0-9")],
            Ok(()),
            "POST PATCH GET PUT",
            0.3,
        ),
        (
            "more than was sent is an error",
            Stream,
            vec![Pass, Broken, Header("range", "0-99999")],
            Err(Class::BadData),
            "POST PATCH GET DELETE",
            0.3,
        ),
        // The end.
        ("a broken PUT is sent again", Bytes, vec![Pass, Broken], Ok(()), "POST PUT DELETE POST PUT", 0.3),
        (
            "a broken end of a stream is sent again",
            Stream,
            vec![Pass, Pass, Broken],
            Ok(()),
            "POST PATCH PUT HEAD PUT",
            0.3,
        ),
        (
            "an end whose answer was lost is found out",
            Stream,
            vec![Pass, Pass, DoAndBreak],
            Ok(()),
            "POST PATCH PUT HEAD",
            0.3,
        ),
        (
            "another digest than was sent",
            Bytes,
            vec![Pass, Header("docker-content-digest", denied)],
            Err(Class::BadData),
            "POST PUT DELETE",
            0.0,
        ),
        (
            "another digest of a stream",
            Stream,
            vec![Pass, Pass, Header("docker-content-digest", denied)],
            Err(Class::BadData),
            "POST PATCH PUT DELETE",
            0.0,
        ),
        ("400 to a PUT is final", Bytes, vec![Pass, Status(400)], Err(Class::Refused), "POST PUT DELETE", 0.0),
        (
            "202 to a PUT is not done",
            Stream,
            vec![Pass, Pass, Status(202), Pass, Status(202)],
            Err(Class::BadData),
            "POST PATCH PUT HEAD PUT DELETE",
            0.3,
        ),
    ]
}

async fn run((name, what, script, expect, methods, seconds): Case) -> Result<(), String> {
    let push = Push::open();
    push.transport.script(script);
    let started = tokio::time::Instant::now();
    let outcome = match what {
        What::Bytes => push.destination.push_bytes(fresh()).await.map(drop),
        What::Stream => push.destination.push_stream(pieces(&fresh())).await.map(drop),
        What::Copy => {
            let source = common::World::open().repository.blobs();
            push.destination.copy_blob(blob(), source).await
        }
    };
    let elapsed = started.elapsed().as_secs_f64();
    let class = outcome.as_ref().copied().map_err(Error::fault);
    let seen = push.methods();
    if class != expect || seen != methods || elapsed > seconds + 0.05 {
        return Err(format!(
            "{name}: got {outcome:?}, {seen}, {elapsed:.1} s; want {expect:?}, {methods}, {seconds} s"
        ));
    }
    if let Err(error) = outcome {
        let text = error.to_string();
        assert_no_secret(&text);
        assert!(!text.contains('\n') && !text.contains("secret"), "{text}");
        assert!(text.starts_with("pushing: "), "{text}");
    } else if !matches!(what, What::Copy) {
        assert!(push.has(&fresh()).await, "{name}");
    }
    Ok(())
}

#[test]
fn every_fault_of_an_upload_has_its_outcome_its_requests_and_its_time() {
    let mut wrong = Vec::new();
    for case in cases() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        wrong.extend(runtime.block_on(run(case)).err());
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expires_within_an_upload_is_renewed() {
    let push = Push::token();
    push.destination.has_blob(blob()).await.unwrap();
    let registry = push.registry.clone();
    let slow = pieces(&fresh()).then(move |piece| {
        let registry = registry.clone();
        async move {
            // After the POST, before the PATCH arrives.
            registry.revoke_tokens();
            tokio::time::sleep(Duration::from_secs(30)).await;
            piece
        }
    });
    push.destination.push_stream(slow.boxed()).await.unwrap();
    assert!(push.has(&fresh()).await);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_ends_the_upload_and_is_named() {
    let push = Push::open();
    let broken = stream::iter([
        Ok(Bytes::from_static(b"some")),
        Err(SourceError::new(Class::Unavailable, "GET other/blobs/x: reset")),
    ]);
    let error = push.destination.push_stream(broken.boxed()).await.unwrap_err();
    assert!(matches!(error, Error::Source(_)), "{error:?}");
    assert_eq!(error.to_string(), "GET other/blobs/x: reset");
    assert_eq!(push.registry.open_uploads(), 0, "the upload was cancelled");
}

#[tokio::test(start_paused = true)]
async fn what_a_registry_lost_of_a_long_stream_cannot_be_had_again() {
    let push = Push::open();
    let megabyte = Bytes::from(vec![7; 1 << 20]);
    let long = stream::iter((0..40).map(move |_| Ok(megabyte.clone())));
    push.transport.script([Pass, TakeAndBreak(30 << 20), Header("range", "0-999")]);
    let error = push.destination.push_stream(long.boxed()).await.unwrap_err();
    assert!(error.to_string().contains("cannot be had again"), "{error}");
    assert_eq!(error.fault(), Class::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_always_breaks_ends_the_upload() {
    let push = Push::open();
    push.transport.script([Pass, Broken, Pass, Pass, Broken, Pass, Pass, Broken, Pass, Pass, Broken]);
    let error = push.destination.push_stream(pieces(&fresh())).await.unwrap_err();
    assert_eq!(error.fault(), Class::Unavailable);
    assert!(error.to_string().contains("4 attempts"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_push_asks_for_the_right_to_push() {
    let push = Push::token();
    push.destination.push_bytes(fresh()).await.unwrap();
    let asked: Vec<String> = push
        .transport
        .seen()
        .iter()
        .filter(|seen| seen.method == Method::GET)
        .filter_map(|seen| {
            seen.url.query_pairs().find(|(name, _)| name == "scope").map(|(_, scope)| scope.into_owned())
        })
        .collect();
    assert_eq!(asked, ["repository:app:pull,push"]);
}
