//! All faults of a registry and the network to it, one numbered case each, under a paused clock: the outcome, the number of
//! requests, and the time.
//!
//! A case starts with a repository that is open and has answered once where `before` requires it. All reads must return the right
//! bytes: that is checked in every case.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{PASSWORD_GIVEN, World, blob_bytes};
use tarpon_blob::Fault as Class;
use tarpon_testkit::registry::Fault::{self, *};

/// The authentication of the registry.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Open,
    Basic,
    Token,
    Presigned,
}

/// The actions before the script starts.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    Read,
    ReadAndWait(u64),
    ReadAndExpire,
    ReadAndRevoke,
}

/// The requested content.
#[derive(Clone, Copy, PartialEq)]
enum Ask {
    /// The manifest by its tag.
    Tag,
    /// Bytes 1,000 to 4,999 of the blob.
    Range,
    /// The first 500 bytes.
    Start,
    /// The last 500 bytes.
    End,
    /// All of the blob, 100,000 bytes.
    Whole,
    /// The range, by four readers at once.
    RangeByFour,
}

struct Case {
    number: u32,
    name: &'static str,
    kind: Kind,
    before: Before,
    ask: Ask,
    script: Vec<Fault>,
    expect: Result<(), Class>,
    requests: usize,
    seconds: f64,
}

macro_rules! cases {
    ($($number:literal $name:literal $kind:ident $before:expr, $ask:ident [$($fault:expr),*] => $expect:expr, $requests:literal, $seconds:literal;)*) => {
        vec![$(Case {
            number: $number,
            name: $name,
            kind: Kind::$kind,
            before: { use Before::*; $before },
            ask: Ask::$ask,
            script: vec![$($fault),*],
            expect: $expect,
            requests: $requests,
            seconds: $seconds,
        }),*]
    };
}

fn cases() -> Vec<Case> {
    let there = || "https://cdn.test/blobs/x?sig=0".to_owned();
    let here = || "https://registry.test/v2/app/manifests/1".to_owned();
    cases! {
        // In good health: the requests to compare all other cases with.
        1 "a tag is one request" Open Nothing, Tag [] => Ok(()), 1, 0.0;
        2 "a range is one request" Open Nothing, Range [] => Ok(()), 1, 0.0;
        3 "a whole blob is one request" Open Nothing, Whole [] => Ok(()), 1, 0.0;
        4 "the last bytes are one request" Open Nothing, End [] => Ok(()), 1, 0.0;
        5 "a presigned range is two" Presigned Nothing, Range [] => Ok(()), 2, 0.0;
        6 "a known presigned address is one" Presigned Read, Range [] => Ok(()), 1, 0.0;
        7 "a token costs two requests more, once" Token Nothing, Tag [] => Ok(()), 3, 0.0;
        8 "a live token costs nothing" Token Read, Range [] => Ok(()), 1, 0.0;
        9 "a password costs one request more, once" Basic Nothing, Tag [] => Ok(()), 2, 0.0;
        // Tokens.
        10 "an expired token is renewed before it is used" Token ReadAndWait(120), Range [] => Ok(()), 2, 0.0;
        11 "a token near its end is renewed" Token ReadAndWait(55), Range [] => Ok(()), 2, 0.0;
        12 "a revoked token is renewed once" Token ReadAndRevoke, Range [] => Ok(()), 3, 0.0;
        13 "four readers share one new token" Token ReadAndRevoke, RangeByFour [] => Ok(()), 9, 0.0;
        14 "401 with a fresh token is final" Token Read, Range [Status(401), Pass, Status(401)] => Err(Class::Denied), 3, 0.0;
        15 "a token service in trouble is asked again" Token Nothing, Tag [Pass, Status(503)] => Ok(()), 4, 0.3;
        16 "a token service that says when is waited for" Token Nothing, Tag [Pass, RetryAfter(429, "2")] => Ok(()), 4, 2.5;
        17 "a token service that denies is final" Token Nothing, Tag [Pass, Status(403)] => Err(Class::Denied), 2, 0.0;
        18 "a token that is no JSON is requested once more" Token Nothing, Tag [Pass, Html] => Ok(()), 4, 0.3;
        19 "a token service without token is bad data" Token Nothing, Tag [Pass, Text("{}"), Text("{}")] => Err(Class::BadData), 3, 0.3;
        20 "a token of line breaks is bad data" Token Nothing, Tag [Pass, Text(r#"{"token":"a\r\nb"}"#), Text(r#"{"token":"a\nb"}"#)] => Err(Class::BadData), 3, 0.3;
        21 "a token service that redirects is refused" Token Nothing, Tag [Pass, Redirect(302, there())] => Err(Class::Refused), 2, 0.0;
        22 "a token service that hangs is asked again" Token Nothing, Tag [Pass, Never] => Ok(()), 4, 5.3;
        23 "a token service that breaks is asked again" Token Nothing, Tag [Pass, Broken, Broken] => Ok(()), 5, 0.8;
        24 "a challenge to plain HTTP is refused" Open Nothing, Tag [Redirect(401, there())] => Err(Class::Denied), 1, 0.0;
        // Presigned addresses.
        25 "an expired address is requested again" Presigned ReadAndExpire, Range [] => Ok(()), 3, 0.0;
        26 "an address that timed out is requested again" Presigned ReadAndWait(700), Range [] => Ok(()), 3, 0.0;
        27 "four readers ask for one new address" Presigned ReadAndExpire, RangeByFour [] => Ok(()), 9, 0.0;
        28 "400 for an expired session is requested again" Presigned Read, Range [Status(400)] => Ok(()), 3, 0.0;
        29 "401 from the blob host is requested again" Presigned Read, Range [Status(401)] => Ok(()), 3, 0.0;
        30 "a new address that is refused is final" Presigned Read, Range [Status(403), Pass, Status(403)] => Err(Class::Denied), 3, 0.0;
        31 "a blob host in trouble is asked again, at a new address" Presigned Read, Range [Status(500), Pass, Status(503)] => Ok(()), 5, 0.8;
        32 "a blob host that hangs is asked again, at a new address" Presigned Read, Range [Never] => Ok(()), 3, 5.3;
        33 "a blob that the blob host lacks is not found" Presigned Read, Range [Status(404)] => Err(Class::NotFound), 1, 0.0;
        // Redirects.
        34 "a redirect from HTTPS to HTTP is refused" Open Nothing, Range [Redirect(307, "http://cdn.test/x".into())] => Err(Class::Refused), 1, 0.0;
        35 "a redirect to a file is refused" Open Nothing, Range [Redirect(302, "file:///etc/passwd".into())] => Err(Class::Refused), 1, 0.0;
        36 "a redirect to nowhere is refused" Open Nothing, Range [Status(307)] => Err(Class::Refused), 1, 0.0;
        37 "a redirect with a password is refused" Open Nothing, Range [Redirect(302, "https://a:b@cdn.test/x".into())] => Err(Class::Refused), 1, 0.0;
        38 "a redirect loop ends" Presigned Nothing, Range [Pass, Redirect(307, there()), Redirect(307, there()), Redirect(307, there())] => Err(Class::Refused), 4, 0.0;
        39 "a manifest is wherever the registry sends us" Open Nothing, Tag [Redirect(307, here())] => Ok(()), 2, 0.0;
        // Too many requests, or a server out of order.
        40 "429 with a time is waited for" Open Nothing, Range [RetryAfter(429, "3")] => Ok(()), 2, 3.75;
        41 "503 with a time is waited for" Open Nothing, Tag [RetryAfter(503, "7")] => Ok(()), 2, 8.75;
        42 "429 without a time backs off" Open Nothing, Range [Status(429), Status(429)] => Ok(()), 3, 0.8;
        43 "429 with a date backs off" Open Nothing, Range [RetryAfter(429, "Fri, 31 Dec 1999 23:59:59 GMT")] => Ok(()), 2, 0.3;
        44 "429 beyond the deadline ends at once" Open Nothing, Range [RetryAfter(429, "60")] => Err(Class::Unavailable), 1, 0.0;
        45 "429 for ever ends" Open Nothing, Range [Status(429), Status(429), Status(429), Status(429)] => Err(Class::Unavailable), 4, 2.0;
        46 "500 is asked again" Open Nothing, Range [Status(500)] => Ok(()), 2, 0.3;
        47 "502 and 504 are asked again" Open Nothing, Tag [Status(502), Status(504)] => Ok(()), 3, 0.8;
        48 "500 for ever ends" Open Nothing, Tag [Status(500), Status(500), Status(500), Status(500)] => Err(Class::Unavailable), 4, 2.0;
        49 "404 is final" Open Nothing, Tag [Status(404)] => Err(Class::NotFound), 1, 0.0;
        50 "403 is final" Open Nothing, Range [Status(403)] => Err(Class::Denied), 1, 0.0;
        51 "405 is final" Open Nothing, Range [Status(405)] => Err(Class::Refused), 1, 0.0;
        52 "204 is asked once more" Open Nothing, Range [Status(204), Status(204)] => Err(Class::BadData), 2, 0.3;
        // The network.
        53 "a reset before the answer is asked again" Open Nothing, Range [Broken] => Ok(()), 2, 0.3;
        54 "a refused connection is tried again" Open Nothing, Range [Connect, Connect] => Ok(()), 3, 0.8;
        55 "a registry that is gone ends" Open Nothing, Tag [Connect, Connect, Connect, Connect] => Err(Class::Unavailable), 4, 2.0;
        56 "an untrusted certificate is final" Open Nothing, Tag [Certificate] => Err(Class::Refused), 1, 0.0;
        57 "no TLS is final where plain HTTP is not allowed" Open Nothing, Tag [NotTls] => Err(Class::Refused), 1, 0.0;
        58 "no answer is asked again" Open Nothing, Range [Never] => Ok(()), 2, 5.3;
        59 "no answer ever ends" Open Nothing, Range [Never, Never, Never, Never] => Err(Class::Timeout), 3, 30.0;
        60 "a late answer is an answer" Open Nothing, Range [Late(Duration::from_secs(4))] => Ok(()), 1, 4.1;
        // Bodies.
        61 "a body that breaks is continued" Open Nothing, Range [BreakAfter(1_000)] => Ok(()), 2, 0.3;
        62 "a body that breaks at its start is continued" Open Nothing, Whole [BreakAfter(0), BreakAfter(0)] => Ok(()), 3, 0.8;
        63 "a body that ends early is continued" Open Nothing, Range [EndAfter(3_999)] => Ok(()), 2, 0.3;
        64 "a body that breaks three times is continued" Open Nothing, Whole [BreakAfter(10), BreakAfter(10), BreakAfter(10)] => Ok(()), 4, 2.0;
        65 "a body that always breaks ends" Open Nothing, Whole [BreakAfter(9), BreakAfter(9), BreakAfter(9), BreakAfter(9)] => Err(Class::Unavailable), 4, 2.0;
        66 "a stalled body is continued" Open Nothing, Range [StallAfter(1_000)] => Ok(()), 2, 10.3;
        67 "a trickling body is given up and continued" Open Nothing, Range [Trickle(100)] => Ok(()), 2, 11.3;
        68 "a slow body that moves is left alone" Open Nothing, Whole [Trickle(2_000)] => Ok(()), 1, 51.0;
        69 "a body that is too long is bad data" Open Nothing, Range [Overlong] => Err(Class::BadData), 1, 0.0;
        70 "a whole blob that is too long is bad data" Open Nothing, Whole [Overlong] => Err(Class::BadData), 1, 0.0;
        71 "a truncated manifest is requested again" Open Nothing, Tag [EndAfter(20)] => Ok(()), 2, 0.3;
        72 "a broken manifest is requested again" Open Nothing, Tag [BreakAfter(20)] => Ok(()), 2, 0.3;
        73 "a stalled manifest is requested again" Open Nothing, Tag [StallAfter(20)] => Ok(()), 2, 10.3;
        74 "a manifest with a flipped bit is requested again" Open Nothing, Tag [FlipBit] => Ok(()), 2, 0.3;
        75 "a manifest that stays wrong is bad data" Open Nothing, Tag [FlipBit, FlipBit] => Err(Class::BadData), 2, 0.3;
        // Ranges.
        76 "the whole blob for its start is cut off" Open Nothing, Start [IgnoreRange] => Ok(()), 1, 0.0;
        77 "the whole blob for its middle is skipped to" Open Nothing, Range [IgnoreRange] => Ok(()), 1, 0.0;
        78 "the whole blob for its end is skipped to" Open Nothing, End [IgnoreRange] => Ok(()), 1, 0.0;
        79 "the whole blob that breaks before the range" Open Nothing, Range [BreakAfter(10), IgnoreRange] => Ok(()), 2, 0.3;
        80 "another range than requested" Open Nothing, Range [Header("content-range", "bytes 0-3999/100000")] => Ok(()), 2, 0.3;
        81 "another range twice" Open Nothing, Range [Header("content-range", "bytes 0-3999/100000"), Header("content-range", "bytes 0-3999/100000")] => Err(Class::BadData), 2, 0.3;
        82 "a shorter range than requested" Open Nothing, Range [Header("content-range", "bytes 1000-4998/100000")] => Ok(()), 2, 0.3;
        83 "another total than promised" Open Nothing, Range [Header("content-range", "bytes 1000-4999/100001")] => Ok(()), 2, 0.3;
        84 "an unknown total is fine" Open Nothing, Range [Header("content-range", "bytes 1000-4999/*")] => Ok(()), 1, 0.0;
        85 "206 without a range" Open Nothing, Range [Header("content-range", "")] => Ok(()), 2, 0.3;
        86 "206 with nonsense" Open Nothing, Range [Header("content-range", "items 1-2")] => Ok(()), 2, 0.3;
        87 "206 in parts" Open Nothing, Range [Multipart, Multipart] => Err(Class::BadData), 2, 0.3;
        88 "206 of another length" Open Nothing, Range [Header("content-length", "3999")] => Ok(()), 2, 0.3;
        89 "200 with a range" Open Nothing, Whole [Header("content-range", "bytes 0-99999/100000")] => Ok(()), 2, 0.3;
        90 "200 of another length" Open Nothing, Whole [Header("content-length", "99999")] => Ok(()), 2, 0.3;
        91 "416 is not waited for" Open Nothing, Range [Unsatisfiable] => Ok(()), 2, 0.3;
        92 "416 twice is bad data" Open Nothing, Range [Unsatisfiable, Unsatisfiable] => Err(Class::BadData), 2, 0.3;
        93 "a packed body is not taken" Open Nothing, Range [Header("content-encoding", "gzip"), Header("content-encoding", "br")] => Err(Class::BadData), 2, 0.3;
        94 "identity is no packing" Open Nothing, Range [Header("content-encoding", "identity")] => Ok(()), 1, 0.0;
        95 "a page of HTML instead of a blob" Open Nothing, Range [Html, Html] => Err(Class::BadData), 2, 0.3;
        96 "a manifest under a digest that is not its own" Open Nothing, Tag [Header("docker-content-digest", "sha256:0000000000000000000000000000000000000000000000000000000000000000")] => Ok(()), 2, 0.3;
        97 "429 with a date is waited for" Open Nothing, Range [RetryAt(429, "Sun, 06 Nov 1994 08:49:40 GMT", "Sun, 06 Nov 1994 08:49:37 GMT")] => Ok(()), 2, 3.75;
        98 "429 with a date beyond the deadline ends at once" Open Nothing, Range [RetryAt(429, "Mon, 07 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 GMT")] => Err(Class::Unavailable), 1, 0.0;
    }
}

async fn run(case: &Case) -> Result<(), String> {
    let world = match case.kind {
        Kind::Open => World::open(),
        Kind::Basic => World::basic(PASSWORD_GIVEN),
        Kind::Token => World::token(PASSWORD_GIVEN),
        Kind::Presigned => World::presigned(),
    };
    if case.before != Before::Nothing {
        world.read(0..10).await.map_err(|error| format!("before: {error}"))?;
    }
    match case.before {
        Before::ReadAndWait(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
        Before::ReadAndExpire => world.registry.expire_signatures(),
        Before::ReadAndRevoke => world.registry.revoke_tokens(),
        _ => {}
    }
    let sent = world.transport.seen().len();
    world.transport.script(case.script.clone());
    let started = tokio::time::Instant::now();
    let outcome = match case.ask {
        Ask::Tag => world.tag().await,
        Ask::Range => world.read(1_000..5_000).await,
        Ask::Start => world.read(0..500).await,
        Ask::End => world.read(99_500..100_000).await,
        Ask::Whole => world.read(0..100_000).await,
        Ask::RangeByFour => {
            let reads = futures::future::join_all((0..4).map(|_| world.read(1_000..5_000))).await;
            reads.into_iter().collect()
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    let requests = world.transport.seen().len() - sent;
    let shown = format!("{outcome:?}, {requests} requests, {seconds:.1} s");
    let class = outcome.clone().map_err(|error| error.fault);
    if class != case.expect || requests != case.requests || seconds > case.seconds + 0.05 {
        return Err(format!("got {shown}; want {:?}, {}, {} s", case.expect, case.requests, case.seconds));
    }
    if let Err(error) = outcome {
        common::assert_no_secret(&format!("{error} {error:?}"));
    }
    Ok(())
}

#[test]
fn every_fault_has_its_outcome_its_requests_and_its_time() {
    let cases = cases();
    assert!(cases.len() >= 60);
    assert!(blob_bytes().len() == 100_000);
    let mut wrong = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        assert_eq!(usize::try_from(case.number).unwrap(), at + 1, "cases are numbered in order");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        if let Err(why) = runtime.block_on(run(case)) {
            wrong.push(format!("{:03} {}: {why}", case.number, case.name));
        }
    }
    println!("cases: {}", cases.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
