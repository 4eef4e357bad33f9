//! Anything at any time: sources that lie, hang and go away, a store that refuses, forgets and decays, processes that die, images
//! that come, go and lie, and all prefetchers. Every read returns the right bytes or an error within its deadline, and once the
//! faults stop everything can be read.

use std::time::Duration;

use futures::future::{join, join_all};
use tarpon_blob::Fault;
use tarpon_fetch::{Background, Config, ReadError};
use tarpon_testkit::seeds::Random;
use tarpon_testkit::source::{MemoryStore, Refusal, Reply, Then};
use tokio::time::{Instant, advance, sleep};

use crate::contents::{Contents, index};
use crate::kept;
use crate::life::{Images, Life};
use crate::seen::Seen;

/// A disk that hangs is simulated by moving the clock by hand, in steps of this.
const TICK: Duration = Duration::from_millis(50);
/// Longest that a fault continues after its end: a request of a reader may be silent for 28 s, a prefetch that gave way to it for
/// another 28 s, and the next probe follows within 4 s.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// A run of one seed.
struct Run<'c> {
    seed: u64,
    contents: &'c Contents,
    store: MemoryStore,
    config: Config,
    /// Whether anything waits by the clock.
    timed: bool,
    /// Whether the bytes of partial files were changed under the fetcher.
    decayed: bool,
    lives: usize,
}

pub(crate) async fn run(seed: u64, contents: &Contents, random: &mut Random, seen: &mut Seen) {
    let (store, timed) = (MemoryStore::default(), !contents.has_streams());
    // A disk that hangs stops a thread, and so does a stream that waits for its source.
    let hangs = timed && random.below(60) == 0;
    let config = Config { blocking_threads: hangs || !timed, ..config(random) };
    let mut run = Run { seed, contents, store, config, timed, decayed: false, lives: 0 };
    let mut life = run.next_life(random);
    for _round in 0..2 {
        life = run.between_rounds(life, random, seen);
        let readers: Vec<_> = (0..4).map(|_| reader(&run, &life, Random(random.next()))).collect();
        let meddler = meddle(&run, &life, Random(random.next()));
        match hangs {
            true => {
                let disk = hang_disk(&run, random.below(8) == 0, random.below(2_000));
                join(disk, join(join_all(readers), meddler)).await;
                seen.slow_disk += 1;
            }
            false => drop(join(join_all(readers), meddler).await),
        }
        run.check(&life);
    }
    recovers(&run, &life).await;
    run.check(&life);
    seen.add(&life.stats());
    // Nothing is left of it.
    drop(life);
    for _ in 0..200 {
        if tokio::runtime::Handle::current().metrics().num_alive_tasks() == 0 {
            return;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("seed {seed}: a task never ended");
}

fn config(random: &mut Random) -> Config {
    Config {
        ahead_min: 1024 << random.below(4),
        ahead_max: 8192 << random.below(4),
        coalesce_gap: random.below(2) * random.below(8 << 10),
        range_bytes: 8 << 10 << random.below(4),
        whole_object_bytes: 512 << random.below(8),
        host_bytes: 8 << 10 << random.below(6),
        image_bytes: 8 << 10 << random.below(6),
        trace_bytes: 4 << 10 << random.below(6),
        ahead_bytes: 4 << 10 << random.below(6),
        live_objects: random.below(6) + 1,
        open_files: random.below(4) + 1,
        bypass_bytes: random.below(1 << 17),
        inline_bytes: if random.below(4) == 0 { 1024 << random.below(4) } else { 1 << 20 },
        // A paused pass occupies no thread, but a test need not wait for it.
        stream_linger: Duration::from_millis(10),
        ..Config::default()
    }
}

impl<'c> Run<'c> {
    fn next_life(&mut self, random: &mut Random) -> Life<'c> {
        self.lives += 1;
        let hostile = (random.below(2) == 0).then(|| random.below(2) == 0);
        let life = Life::begin(self.contents, &self.store, &self.config, Images { honest: 2, hostile }, self.lives);
        let link = self.link(random);
        for source in &life.sources {
            let size = self.contents.honest[0].layer.blob.size;
            source.script((0..random.below(12)).map(|_| self.fault(random, size)));
            source.always(link);
        }
        life
    }

    /// The link of most runs takes no time, so that everything happens at once.
    fn link(&self, random: &mut Random) -> Reply {
        let slow = self.timed && random.below(2) == 0;
        let millis = |most| Duration::from_millis(if slow { most } else { 0 });
        let (latency, pace) = (millis(random.below(150)), millis(random.below(4)));
        Reply { latency, pace, part: random.index(8_000) + 500, then: Then::Bytes }
    }

    fn fault(&self, random: &mut Random, size: u64) -> Reply {
        let faults = [Fault::Unavailable, Fault::NotFound, Fault::Timeout, Fault::BadData];
        let fault = faults[random.index(4)];
        let some = random.index(index(size));
        let then = match random.below(if self.timed { 12 } else { 10 }) {
            0 => Then::Corrupt(random.below(size)),
            1 => Then::Garbage,
            2 => Then::Refuse(fault),
            3 => Then::Break(some, fault),
            4 => Then::End(some),
            10 => Then::Hang(some),
            11 => Then::Never,
            _ => Then::Bytes,
        };
        let part = random.index(10_000) + 500;
        let wait = |millis| Duration::from_millis(if self.timed { millis } else { 0 });
        Reply { latency: wait(random.below(200)), pace: wait(random.below(30)), part, then }
    }

    fn between_rounds(&mut self, mut life: Life<'c>, random: &mut Random, seen: &mut Seen) -> Life<'c> {
        match random.below(6) {
            0 => self.store.refuse(Some(Refusal::Full)),
            1 => self.store.refuse(Some(Refusal::Io)),
            2 => self.store.refuse(None),
            // The process died: its memory is lost, its files remain, and may have decayed.
            3 => {
                self.check(&life);
                seen.add(&life.stats());
                seen.deaths += 1;
                drop(life);
                match random.below(4) {
                    0 => {
                        self.store.reboot();
                        self.store.damage(&self.contents.objects[random.index(self.contents.objects.len())].0);
                    }
                    1 => {
                        self.store.rot();
                        self.decayed = true;
                    }
                    _ => {}
                }
                return self.next_life(random);
            }
            4 => drop(life.hostile.take()),
            _ => life.images.truncate(1 + random.index(2)),
        }
        life
    }

    async fn pause(&self, millis: u64) {
        match self.timed {
            true => sleep(Duration::from_millis(millis)).await,
            false => tokio::task::yield_now().await,
        }
    }

    /// What must be true at any time.
    fn check(&self, life: &Life<'_>) {
        life.is_bounded(self.seed);
        kept::is_right(self.contents, &self.store, !self.decayed && self.timed, self.seed);
    }
}

/// A disk that does not complete anything for a while. It is `stuck` for longer than any read may take, or slow.
async fn hang_disk(run: &Run<'_>, stuck: bool, millis: u64) {
    run.store.hold_publishing(true);
    let time = if stuck { run.config.read_deadline * 2 } else { Duration::from_millis(millis) };
    let until = Instant::now() + time;
    while Instant::now() < until {
        advance(TICK).await;
    }
    run.store.hold_publishing(false);
}

/// Evictions, prefetches, outages and a store that changes its mind, while readers read.
async fn meddle(run: &Run<'_>, life: &Life<'_>, mut random: Random) {
    for _ in 0..random.below(10) {
        run.pause(random.below(400)).await;
        match random.below(12) {
            0..3 => {
                let (object, _) = &run.contents.objects[random.index(run.contents.objects.len())];
                life.fetcher.close_local(object);
                run.store.evict(object);
            }
            3..9 => life.prefetch(&mut random),
            9 => {
                let source = &life.sources[random.index(life.sources.len())];
                let away = if run.timed { random.below(2) } else { 0 };
                source.always(if away == 0 { Then::Refuse(Fault::Unavailable) } else { Then::Never }.into());
                run.pause(random.below(20_000)).await;
                source.always(run.link(&mut random));
            }
            10 => run.store.refuse([None, Some(Refusal::Full), Some(Refusal::Io)][random.index(3)]),
            // Rare, because the layer is not read any more.
            _ if random.below(4) == 0 => {
                let layer = run.contents.honest[random.index(2)].layer.blob.digest;
                life.images[random.index(life.images.len())].distrust(&layer, "the simulation says so");
            }
            _ => {}
        }
    }
}

/// One reader: jumps, reads on, gives up now and then.
async fn reader(run: &Run<'_>, life: &Life<'_>, mut random: Random) {
    let (seed, fetcher) = (run.seed, &life.fetcher);
    let mut at = 0;
    for _ in 0..7 {
        let (object, bytes) = &run.contents.objects[random.index(run.contents.objects.len())];
        if random.below(2) == 0 {
            at = random.below(bytes.len() as u64 + 10);
        }
        let length = random.below(15_000);
        let patience = if random.below(8) == 0 { Duration::from_millis(random.below(300)) } else { Duration::MAX };
        let began = Instant::now();
        let read = async {
            match fetcher.read_local(object, at, length) {
                Some(answer) => answer,
                None => fetcher.read(object, at, length).await,
            }
        };
        let answer = tokio::time::timeout(patience, read).await;
        let (took, limit) = (began.elapsed(), run.config.read_deadline + TICK);
        assert!(took <= limit, "seed {seed}: a read took {took:?}");
        if let Ok(Ok(answer)) = answer {
            let start = index(at).min(bytes.len());
            let end = start.saturating_add(index(length)).min(bytes.len());
            assert!(*answer == bytes[start..end], "seed {seed}: wrong bytes at {at}, {length} long");
        } else {
            // The requests of a read that failed are aborted, and the runtime drops them at its next turn. Reads of an object
            // that was late fail at once: without a turn between them, the dropped requests would be counted.
            tokio::task::yield_now().await;
        }
        life.sample();
        at += length;
    }
}

/// After the faults: everything is readable, and nothing is left under way.
async fn recovers(run: &Run<'_>, life: &Life<'_>) {
    let seed = run.seed;
    run.store.refuse(None);
    for source in &life.sources {
        source.calm();
    }
    sleep(FORGOTTEN).await;
    for (object, bytes) in &run.contents.objects {
        let began = Instant::now();
        match life.fetcher.read(object, 0, bytes.len() as u64).await {
            Ok(answer) => assert!(*answer == **bytes, "seed {seed}: wrong bytes after the faults"),
            // With an honest image distrusted, only what is false about the object may be left.
            Err(ReadError::Distrusted { .. } | ReadError::Poisoned(_)) if life.stats().distrusted_layers > 0 => {}
            Err(error) => panic!("seed {seed}: after the faults: {error}"),
        }
        assert!(began.elapsed() <= TICK, "seed {seed}: {:?}, and every source answers at once", began.elapsed());
    }
    life.is_idle(seed).await;
    let turn = tokio::time::timeout(TICK, life.fetcher.turn(Background::IdleBackfill)).await;
    assert!(turn.is_ok(), "seed {seed}: nothing is under way, and the background waits");
}
