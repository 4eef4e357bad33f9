//! A registry that does not answer, under readers of a mounted image: how long they wait, and the outcome when it is back.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::World;
use common::mounted::{Mounted, layer};
use futures::future::join_all;
use tarpon_testkit::registry::{Auth, Fault};
use tokio::time::{Instant, sleep};

/// The promise of docs/guarantees.md to a reader.
const PROMISE: Duration = Duration::from_secs(30);
/// The limit of the real transport for a connection.
const CONNECT: Duration = Duration::from_secs(4);

/// The ways in which a registry can be down, and later slow.
fn away() -> [Fault; 5] {
    [Fault::Connect, Fault::Unreachable(CONNECT), Fault::Broken, Fault::Status(502), Fault::Status(500)]
}

/// The faults of requests for blobs in an outage.
fn outages() -> Vec<Fault> {
    let seconds = Duration::from_secs;
    vec![
        Fault::Unreachable(CONNECT),
        Fault::Broken,
        Fault::Never,
        Fault::Late(seconds(6)),
        Fault::Late(seconds(13)),
        Fault::Late(seconds(27)),
        Fault::StallAfter(0),
        Fault::StallAfter(700),
        Fault::Trickle(100),
        Fault::RetryAfter(503, "2"),
        Fault::RetryAfter(503, "20"),
        Fault::RetryAfter(429, "5"),
        Fault::RetryAfter(429, "3600"),
        Fault::Status(429),
        Fault::BreakAfter(700),
        Fault::EndAfter(700),
        Fault::Redirect(307, "https://nowhere.test/blobs/".to_owned()),
    ]
}

/// 400 readers of 400 files, half of them before the fault begins, in an outage of 40 s, and after it. Returns the longest wait.
async fn longest_wait(mounted: &Mounted, part: &'static str, fault: &Fault) -> Duration {
    let readers = mounted.files.len();
    let reads = (0..readers).map(|number| async move {
        // The first half together, the others in the minute after.
        let late = u32::try_from(number.saturating_sub(readers / 2)).unwrap();
        sleep(Duration::from_millis(300) * late).await;
        // A program that reads on after an error, as a shell does with the next command.
        let mut longest = Duration::ZERO;
        for next in [number, (number + 7) % readers] {
            longest = longest.max(mounted.read(next).await.0);
        }
        longest
    });
    mounted.attack(part, Some(fault));
    let (waits, ()) = tokio::join!(join_all(reads), async {
        sleep(Duration::from_secs(40)).await;
        mounted.attack(part, None);
    });
    waits.into_iter().max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_long_for_an_address_requested_by_another() {
    for presigned in [None, Some(Duration::from_secs(600))] {
        let world = World::new(Auth::Anonymous, presigned, None);
        world.transport.script([Fault::Never]);
        let reads = (0..12).map(|number| {
            let world = &world;
            async move {
                let began = Instant::now();
                world.read(number..number + 10).await.unwrap();
                began.elapsed()
            }
        });
        let waits = join_all(reads).await;
        let late = waits.iter().filter(|waited| **waited > Duration::from_secs(1)).count();
        assert_eq!(late, 1, "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn four_hundred_readers_are_answered_in_time_in_any_outage() {
    let (layer, files) = layer(400);
    for fault in outages() {
        let mounted = Mounted::of(&layer, &files, &Auth::Anonymous, 1);
        let longest = longest_wait(&mounted, "/blobs/", &fault).await;
        assert!(longest <= PROMISE, "{longest:?} under {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn four_hundred_readers_are_answered_in_time_when_all_registries_that_have_the_layer_are_away() {
    let (layer, files) = layer(400);
    for (fault, registries) in [
        (Fault::Unreachable(CONNECT), 2),
        (Fault::Unreachable(CONNECT), 3),
        (Fault::Never, 2),
        (Fault::Broken, 2),
        (Fault::RetryAfter(503, "20"), 2),
    ] {
        let mounted = Mounted::of(&layer, &files, &Auth::Anonymous, registries);
        let longest = longest_wait(&mounted, "/blobs/", &fault).await;
        assert!(longest <= PROMISE, "{longest:?} under {fault:?} of {registries}");
    }
}

#[tokio::test(start_paused = true)]
async fn four_hundred_readers_are_answered_in_time_when_the_token_service_is_away() {
    let (layer, files) = layer(400);
    for fault in outages() {
        // The token of the first request expires in the outage.
        let auth = Auth::Bearer { anonymous: true, expires_in: Some(20) };
        let mounted = Mounted::of(&layer, &files, &auth, 1);
        assert!(mounted.read(0).await.1);
        let longest = longest_wait(&mounted, "/token", &fault).await;
        assert!(longest <= PROMISE, "{longest:?} under {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_wait_for_one_token_share_its_failure_and_know_the_cause() {
    const READERS: u64 = 20;
    // Without a token at first, and with one that expires.
    for expired in [false, true] {
        let world = World::new(Auth::Bearer { anonymous: true, expires_in: Some(20) }, None, None);
        if expired {
            world.read(0..10).await.unwrap();
            tokio::time::advance(Duration::from_secs(30)).await;
        }
        world.transport.attack("/token", Some(Fault::Never));
        let began = Instant::now();
        let errors = join_all((0..READERS).map(|number| {
            let world = &world;
            async move { world.read(number..number + 10).await.unwrap_err().to_string() }
        }));
        let errors = errors.await;
        assert!(began.elapsed() <= PROMISE, "{:?}", began.elapsed());
        assert!(errors.iter().all(|error| error.contains("auth.test/token")), "{errors:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_back_and_slow_fails_no_reader_that_has_time_to_wait() {
    const FILES: usize = 60;
    let (layer, files) = layer(FILES);
    let back = Duration::from_secs(15);
    for away in away() {
        for latency in [4, 6, 9].map(Duration::from_secs) {
            let mounted = Mounted::new(&layer, &files).await;
            mounted.attack("/blobs/", Some(&away));
            let started = Instant::now();
            let reads = (0..FILES).map(|number| {
                let mounted = &mounted;
                async move {
                    sleep(Duration::from_secs(1) * u32::try_from(number).unwrap()).await;
                    (started.elapsed(), mounted.read(number).await)
                }
            });
            let (answers, ()) = tokio::join!(join_all(reads), async {
                sleep(back).await;
                mounted.attack("/blobs/", Some(&Fault::Late(latency)));
            });
            let failed: Vec<_> = answers.iter().filter(|(began, (_, read))| *began > back && !read).collect();
            assert!(failed.is_empty(), "{} with {latency:?} after {away:?}: {:?}", failed.len(), failed[0]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_always_needs_six_seconds_can_be_read() {
    let (layer, files) = layer(30);
    let mounted = Mounted::new(&layer, &files).await;
    let latency = Duration::from_secs(6);
    mounted.attack("/blobs/", Some(&Fault::Late(latency)));
    let mut waits = Vec::new();
    for number in 0..30 {
        let (waited, read) = mounted.read(number).await;
        assert!(read, "file {number} after {waited:?}");
        waits.push(waited);
    }
    // It is requested twice once, until that is known.
    assert!(waits[0] <= latency * 2 && waits[1..].iter().all(|waited| *waited <= latency), "{waits:?}");
}
