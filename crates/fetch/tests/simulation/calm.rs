//! A source that answers everything at its pace, and every prefetcher. Nothing fails, so each wait has a reason and a bound.

use std::time::Duration;

use futures::future::join_all;
use tarpon_fetch::Config;
use tarpon_testkit::seeds::Random;
use tarpon_testkit::source::{MemoryStore, Reply, Then};
use tokio::time::{Instant, sleep, timeout};

use crate::contents::{Contents, index};
use crate::kept;
use crate::life::{Images, Life};
use crate::seen::Seen;

/// No crowd of readers waits this long for so few bytes, and a wake-up that is lost costs the deadline of a read.
const CROWD: Duration = Duration::from_secs(10);

fn link(random: &mut Random) -> Reply {
    let (latency, pace) = (random.below(40) + 1, random.below(4) + 1);
    let millis = Duration::from_millis;
    Reply { latency: millis(latency), pace: millis(pace), part: random.index(3_000) + 1_000, then: Then::Bytes }
}

fn begin<'c>(contents: &'c Contents, config: &Config, link: Reply) -> (Life<'c>, MemoryStore) {
    let store = MemoryStore::default();
    let life = Life::begin(contents, &store, config, Images { honest: 1, hostile: None }, 1);
    life.sources.iter().for_each(|source| source.always(link));
    (life, store)
}

/// Readers that come alone, while prefetches run and wait for room: each waits for one request of a prefetcher at most, and for its own.
pub(crate) async fn demand_is_not_behind_prefetch(
    seed: u64,
    contents: &Contents,
    random: &mut Random,
    seen: &mut Seen,
) {
    let mut config = Config {
        ahead_min: 1024 << random.below(4),
        ahead_max: 8192 << random.below(4),
        coalesce_gap: random.below(2) * random.below(4 << 10),
        range_bytes: 4 << 10 << random.below(4),
        whole_object_bytes: 512 << random.below(8),
        // Demand has room, and prefetchers have little.
        trace_bytes: 4 << 10 << random.below(4),
        ahead_bytes: 4 << 10 << random.below(4),
        inline_bytes: 1 << 20,
        blocking_threads: false,
        ..Config::default()
    };
    let mut link = link(random);
    // Some readers touch so much that the rest is downloaded.
    let walks = contents.is_large || random.below(12) == 0;
    if walks {
        config.whole_object_bytes = 512;
        link.latency = Duration::from_millis(random.below(100) + 60);
    }
    let (reads, most) = if walks { (100, 4_000) } else { (8, 12_000) };
    let (life, store) = begin(contents, &config, link);
    let longest = config.range_bytes.max(contents.limits.piece);
    let parts = u32::try_from(longest.div_ceil(link.part as u64)).expect("few");
    let one_request = link.latency + link.pace * parts;
    for _ in 0..if walks { 0 } else { random.below(3) + 1 } {
        life.prefetch(random);
    }
    for _ in 0..reads {
        sleep(Duration::from_millis(random.below(60))).await;
        if !walks && random.below(3) == 0 {
            life.prefetch(random);
        }
        let (object, bytes) = &contents.objects[random.index(contents.objects.len())];
        let (at, length) = (random.below(bytes.len() as u64), random.below(most) + 1);
        let (began, before) = (Instant::now(), life.stats());
        let answer = life.fetcher.read(object, at, length).await;
        let answer = answer.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(*answer == bytes[index(at)..index((at + length).min(bytes.len() as u64))], "seed {seed}: wrong bytes");
        let waited = began.elapsed();
        assert!(
            waited <= one_request * 2 + Duration::from_millis(1),
            "seed {seed}: a reader waited for {waited:?}, and a request takes {one_request:?}"
        );
        seen.joined += u64::from(!waited.is_zero() && before.requests_in_flight > 0);
        life.sample();
    }
    end(seed, contents, life, &store, seen).await;
}

/// Many readers with little room, of which some leave early: the others are woken.
pub(crate) async fn no_wake_up_is_lost(seed: u64, contents: &Contents, random: &mut Random, seen: &mut Seen) {
    let config = Config {
        ahead_min: 1024 << random.below(4),
        coalesce_gap: random.below(2) * random.below(4 << 10),
        range_bytes: 8 << 10 << random.below(3),
        whole_object_bytes: 512 << random.below(8),
        host_bytes: 4 << 10 << random.below(4),
        image_bytes: 4 << 10 << random.below(4),
        trace_bytes: 4 << 10 << random.below(4),
        ahead_bytes: 4 << 10 << random.below(4),
        live_objects: random.below(6) + 1,
        inline_bytes: 1 << 20,
        blocking_threads: false,
        ..Config::default()
    };
    let link = link(random);
    let (life, store) = begin(contents, &config, link);
    let readers = (0..random.below(8) + 2).map(|_| crowd_reader(seed, &life, Random(random.next())));
    let readers: Vec<_> = readers.collect();
    life.prefetch(random);
    join_all(readers).await;
    end(seed, contents, life, &store, seen).await;
}

async fn crowd_reader(seed: u64, life: &Life<'_>, mut random: Random) {
    for _ in 0..4 {
        sleep(Duration::from_millis(random.below(30))).await;
        let (object, bytes) = &life.contents.objects[random.index(life.contents.objects.len())];
        let (at, length) = (random.below(bytes.len() as u64), random.below(12_000) + 1);
        let read = life.fetcher.read(object, at, length);
        if random.below(3) == 0 {
            let _given_up = timeout(Duration::from_millis(random.below(60)), read).await;
            continue;
        }
        let began = Instant::now();
        let answer = read.await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(*answer == bytes[index(at)..index((at + length).min(bytes.len() as u64))], "seed {seed}: wrong bytes");
        assert!(began.elapsed() <= CROWD, "seed {seed}: a reader of a crowd waited for {:?}", began.elapsed());
        life.sample();
    }
}

async fn end(seed: u64, contents: &Contents, life: Life<'_>, store: &MemoryStore, seen: &mut Seen) {
    life.is_bounded(seed);
    life.fetches_nothing_twice(seed);
    life.is_idle(seed).await;
    kept::is_right(contents, store, true, seed);
    seen.add(&life.stats());
}
