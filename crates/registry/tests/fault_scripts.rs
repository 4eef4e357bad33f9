//! Any script of faults (except flipped bits, which digest checks find): a read ends in bounded time and requests, with the right
//! bytes or an error. A healthy registry afterwards is trusted again, and no secret reaches another host.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{World, assert_no_secret, given};
use proptest::prelude::*;
use tarpon_testkit::registry::{Auth, Fault, PASSWORD};

/// Attempts, times the most requests of one attempt: registry, token, registry again, blob host, and both again.
const REQUESTS: usize = 4 * 4 * 6;
/// Four broken bodies, each after a stall and a request's whole deadline.
const SECONDS: u64 = 4 * (10 + 30) + 30;

/// One fault, of all kinds that a source can detect.
fn fault() -> impl Strategy<Value = Fault> {
    use Fault::*;
    prop_oneof![
        Just(Pass),
        Just(Connect),
        Just(Broken),
        Just(Never),
        Just(IgnoreRange),
        Just(Unsatisfiable),
        Just(Overlong),
        Just(Html),
        Just(Text("{}")),
        Just(Multipart),
        prop::sample::select(vec![204, 301, 400, 401, 403, 404, 416, 429, 500, 501, 502, 503, 504]).prop_map(Status),
        prop::sample::select(vec!["0", "1", "20", "86400", "soon"]).prop_map(|when| RetryAfter(429, when)),
        (0..6_000usize).prop_map(BreakAfter),
        (0..6_000usize).prop_map(EndAfter),
        (0..6_000usize).prop_map(StallAfter),
        (1..5_000usize).prop_map(Trickle),
        (0..6u64).prop_map(|seconds| Late(Duration::from_secs(seconds))),
        Just(Header("content-range", "bytes 0-1/2")),
        Just(Header("content-length", "")),
        Just(Header("content-encoding", "gzip")),
        Just(Redirect(307, "https://evil.test/x".to_owned())),
        Just(Redirect(302, "https://cdn.test/blobs/x?sig=0".to_owned())),
    ]
}

fn auth() -> impl Strategy<Value = Auth> {
    prop_oneof![
        Just(Auth::Anonymous),
        Just(Auth::Basic),
        Just(Auth::Bearer { anonymous: false, expires_in: Some(1) }),
        Just(Auth::Bearer { anonymous: true, expires_in: None }),
    ]
}

async fn play(auth: Auth, presigned: bool, script: Vec<Fault>) {
    let world = World::new(auth, presigned.then_some(Duration::from_secs(60)), Some(given(PASSWORD)));
    world.transport.script(script);
    let started = tokio::time::Instant::now();
    let outcome = world.read(1_000..5_000).await;
    assert!(started.elapsed() < Duration::from_secs(SECONDS), "it took {:?}", started.elapsed());
    assert!(world.transport.seen().len() <= REQUESTS, "{} requests", world.transport.seen().len());
    if let Err(error) = &outcome {
        assert_no_secret(&format!("{error} {error:?}"));
        assert!(!error.to_string().contains('\n'));
    }
    for seen in world.transport.seen() {
        let at_home = ["registry.test", "auth.test"].contains(&seen.url.host_str().unwrap());
        assert!(at_home || !seen.headers.contains_key("authorization"), "a secret to {}", seen.url);
    }
    // Let the rest of the script pass, and remembered refusals with it.
    while !matches!(world.read(0..10).await, Ok(())) {
        tokio::time::sleep(Duration::from_secs(301)).await;
        assert!(started.elapsed() < Duration::from_secs(3_600), "never well again: {outcome:?}");
    }
}

proptest! {
    #[test]
    fn every_script_ends_well(auth in auth(), presigned in any::<bool>(), script in prop::collection::vec(fault(), 0..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(play(auth, presigned, script));
    }
}
