//! Random images, readers, faults and evictions, one seed after the other: every read returns the right bytes or an error within
//! its deadline, and once the faults stop everything can be read. Half of the runs include a hostile image, which claims some of
//! the objects with chunks of its own and must change nothing.
//!
//! `SEEDS=50000 cargo test -p tarpon-fetch --test simulation` runs more of them, `SEED=17` only that one
//! ([`tarpon_testkit::seeds`]).

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Random, noise};
use tarpon_blob::Fault;
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_oci::Digest;
use tarpon_testkit::matrix;
use tarpon_testkit::seeds::Seeds;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Reply, Then, table_of};
use tokio::runtime::Handle;
use tokio::time::Instant;

type Object = (Digest, Vec<u8>);

/// Sizes here are far below 4 GiB.
fn index(number: u64) -> usize {
    usize::try_from(number).expect("a small number")
}

/// The contents of one run. The model of an object is its bytes.
struct Universe {
    objects: Vec<Object>,
    layers: Vec<PackedLayer>,
    /// A layer whose index is false about the content of its objects.
    hostile: Option<PackedLayer>,
    store: MemoryStore,
    sources: Vec<Arc<MemorySource>>,
    config: Config,
}

fn content(random: &mut Random) -> Vec<u8> {
    let length = match random.below(4) {
        0 => random.below(200) + 1,
        1 => random.below(20_000) + 1,
        _ => random.below(400_000) + 1,
    };
    let mut content = noise(random.next(), index(length));
    if random.below(4) == 0 {
        let middle = content.len() / 3..content.len() / 2;
        content[middle].fill(0);
    }
    content
}

fn pack(random: &mut Random, objects: &[Object]) -> PackedLayer {
    let forms = [Form::Raw, Form::Gzip, Form::Zstd, Form::Gzip, Form::Zstd, Form::GzipStream];
    let mut packer = Packer::new(forms[random.index(6)]);
    let (small, large): (Vec<_>, Vec<_>) = objects.iter().partition(|(_, bytes)| bytes.len() < 1000);
    packer.shared(&small.iter().map(|(_, bytes)| bytes.as_slice()).collect::<Vec<_>>());
    for (_, bytes) in large {
        packer.gap(random.index(2) * random.index(60_000));
        packer.object(bytes, random.index(100_000) + 4096);
    }
    packer.finish()
}

/// Other bytes under the names of some of the objects.
fn pack_false_claims(random: &mut Random, objects: &[Object]) -> PackedLayer {
    let forms = [Form::Raw, Form::Gzip, Form::Zstd];
    let mut packer = Packer::new(forms[random.index(3)]);
    for (name, bytes) in objects {
        let other = match random.below(4) {
            0 => continue,
            // The sizes agree, and sometimes most of the bytes do.
            1 => bytes.iter().map(|byte| !byte).collect(),
            2 => [&bytes[..bytes.len() - 1], &[!bytes[bytes.len() - 1]]].concat(),
            _ => content(random),
        };
        let whole = random.below(3) == 0;
        let lie = packer.object(&other, if whole { other.len() } else { random.index(100_000) + 1 });
        packer.lie(&lie, *name);
    }
    packer.finish()
}

impl Universe {
    fn new(random: &mut Random) -> Self {
        let objects: Vec<Object> =
            (0..random.below(8) + 2).map(|_| content(random)).map(|bytes| (Digest::of(&bytes), bytes)).collect();
        // Two images have the same objects, each packed in its own way or both in the same layer.
        let first = pack(random, &objects);
        let second = if random.below(3) == 0 { first.clone() } else { pack(random, &objects) };
        let layers = vec![first, second];
        let hostile = (random.below(2) == 0).then(|| pack_false_claims(random, &objects));
        let all = layers.iter().chain(&hostile);
        let sources = all.map(|layer| Arc::new(MemorySource::new([layer.bytes.clone()]))).collect();
        let config = Config {
            ahead_min: 8192 << random.below(4),
            coalesce_gap: random.below(64 << 10),
            range_bytes: 64 << 10 << random.below(6),
            host_bytes: 256 << 10 << random.below(8),
            image_bytes: 128 << 10 << random.below(8),
            live_objects: random.below(6) + 1,
            open_files: random.below(4) + 1,
            bypass_bytes: random.below(1 << 20),
            inline_bytes: 4096 << random.below(8),
            // A paused pass occupies no thread, but a test need not wait for it.
            stream_linger: Duration::from_millis(10),
            ..Config::default()
        };
        Self { objects, layers, hostile, store: MemoryStore::default(), sources, config }
    }

    /// The honest images, and the hostile one.
    fn fetcher(&self, hostile_first: bool) -> (Fetcher, Vec<ImageHandle>, Option<ImageHandle>) {
        let fetcher = Fetcher::new(Arc::new(self.store.clone()), Handle::current(), self.config.clone());
        let image = |(layer, source): (&PackedLayer, &Arc<MemorySource>)| {
            fetcher.add_image(table_of(&[layer]), source.clone(), "simulated:latest")
        };
        let lies = || self.hostile.as_ref().zip(self.sources.last()).map(image);
        let before = if hostile_first { lies() } else { None };
        let images = self.layers.iter().zip(&self.sources).map(image).collect();
        let hostile = before.or_else(lies);
        (fetcher, images, hostile)
    }

    /// Layers that are decoded on another thread cannot be mixed with a clock that jumps while that thread waits.
    fn streams(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.form, Form::GzipStream | Form::ZstdStream))
    }
}

fn reply(random: &mut Random, size: u64, timed: bool) -> Reply {
    let faults = [Fault::Unavailable, Fault::NotFound, Fault::Timeout, Fault::BadData];
    let fault = faults[random.index(4)];
    let some = random.index(index(size));
    let then = match random.below(if timed { 12 } else { 10 }) {
        0 => Then::Corrupt(random.below(size)),
        1 => Then::Garbage,
        2 => Then::Refuse(fault),
        3 => Then::Break(some, fault),
        4 => Then::End(some),
        10 => Then::Hang(some),
        11 => Then::Never,
        _ => Then::Bytes,
    };
    let part = random.index(60_000) + 1000;
    let wait = |millis| Duration::from_millis(if timed { millis } else { 0 });
    Reply { latency: wait(random.below(200)), pace: wait(random.below(30)), part, then }
}

async fn run(seed: u64) {
    let mut random = Random(seed);
    let universe = Universe::new(&mut random);
    let timed = !universe.streams();
    let (mut fetcher, mut images, mut hostile) = universe.fetcher(random.below(2) == 0);
    for source in &universe.sources {
        let faults = random.below(12);
        source.script((0..faults).map(|_| reply(&mut random, universe.layers[0].blob.size, timed)));
    }
    for _round in 0..3 {
        match random.below(6) {
            0 => universe.store.refuse(Some(Refusal::Full)),
            1 => universe.store.refuse(Some(Refusal::Io)),
            2 => universe.store.refuse(None),
            // The process died: its memory is lost, its files remain.
            3 => (fetcher, images, hostile) = universe.fetcher(random.below(2) == 0),
            4 => {
                let (object, _) = &universe.objects[random.index(2)];
                fetcher.close_local(object);
                universe.store.evict(object);
            }
            _ => images.truncate(1 + random.index(2)),
        }
        let readers = (0..4).map(|_| reader(&universe, &fetcher, random.next(), seed));
        futures::future::join_all(readers).await;
    }
    recovers(&universe, &fetcher, seed).await;
    drop(hostile);
}

/// One reader: jumps, reads on, gives up now and then.
async fn reader(universe: &Universe, fetcher: &Fetcher, seed: u64, run: u64) {
    let mut random = Random(seed);
    let mut at = 0;
    for _ in 0..12 {
        let (object, bytes) = &universe.objects[random.index(universe.objects.len())];
        if random.below(2) == 0 {
            at = random.below(bytes.len() as u64 + 10);
        }
        let length = random.below(150_000);
        let patience = if random.below(8) == 0 { Duration::from_millis(random.below(300)) } else { Duration::MAX };
        let began = Instant::now();
        let read = async {
            match fetcher.read_local(object, at, length) {
                Some(answer) => answer,
                None => fetcher.read(object, at, length).await,
            }
        };
        if let Ok(Ok(answer)) = tokio::time::timeout(patience, read).await {
            let start = index(at).min(bytes.len());
            let end = start.saturating_add(index(length)).min(bytes.len());
            assert!(*answer == bytes[start..end], "seed {run}: wrong bytes at {at}, {length} long");
        }
        assert!(
            began.elapsed() <= universe.config.read_deadline + Duration::from_millis(1),
            "seed {run}: a read took {:?}",
            began.elapsed()
        );
        at += length;
    }
}

/// After the faults: everything is readable, and nothing is left under way.
async fn recovers(universe: &Universe, fetcher: &Fetcher, seed: u64) {
    universe.store.refuse(None);
    for source in &universe.sources {
        source.calm();
    }
    tokio::time::sleep(Duration::from_secs(40)).await;
    for (object, bytes) in &universe.objects {
        let answer = fetcher.read(object, 0, bytes.len() as u64).await;
        let answer = answer.unwrap_or_else(|error| panic!("seed {seed}: after the faults: {error}"));
        assert!(*answer == **bytes, "seed {seed}: wrong bytes after the faults");
    }
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        if fetcher.pieces_in_flight() == 0 && fetcher.stats().requests_in_flight == 0 {
            break;
        }
    }
    let stats = fetcher.stats();
    let left = (fetcher.pieces_in_flight(), stats.requests_in_flight, stats.bytes_in_flight);
    assert_eq!(left, (0, 0, 0), "seed {seed}: something never ended");
}

#[test]
fn every_read_is_right_or_an_error_and_everything_recovers() {
    let mut cases = 0;
    for seed in Seeds::from_environment(u64::from(matrix::cases(300))) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(run(seed))));
        if let Err(panic) = outcome {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
        cases += 1;
    }
    println!("cases: {cases}");
}
