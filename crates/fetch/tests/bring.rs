//! What a start needs, brought before it: nothing else is fetched, at most at the rate, and it is there for later processes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use tarpon_blob::{Fault, Pace};
use tarpon_fetch::{BootIndex, BootPiece, BootWriter, Brought, Config, Fetcher, Hint, PackOrigin, StartContent};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, Refusal, Then, table_of};
use tokio::runtime::Handle;
use tokio::time::Instant;

const KIB: usize = 1 << 10;

/// Twenty small files, one of them in chunks of 16 KiB, and a large one in chunks of 64 KiB.
struct Files {
    layer: PackedLayer,
    small: Vec<(Digest, Vec<u8>)>,
    cut: (Digest, Vec<u8>),
    large: (Digest, Vec<u8>),
}

fn files() -> Files {
    let mut packer = Packer::new(Form::Gzip);
    let mut add = |seed, size: usize, chunk: usize| {
        let content = noise(seed, size * KIB);
        (packer.object(&content, chunk * KIB), content)
    };
    let small = (0..20).map(|seed| add(seed, 40, 64)).collect();
    let (cut, large) = (add(98, 48, 16), add(99, 1024, 64));
    Files { layer: packer.finish(), small, cut, large }
}

impl Files {
    /// The small files, the middle of the one that is cut, and 128 KiB of the large one.
    fn pack(&self) -> (BootIndex, Vec<u8>) {
        let mut writer = BootWriter::new(Vec::new()).unwrap();
        let mut add = |(object, content): &(Digest, Vec<u8>), range: std::ops::Range<usize>| {
            let length = u32::try_from(range.len()).unwrap();
            writer.add(BootPiece { object: *object, offset: range.start as u64, length }, &content[range]).unwrap();
        };
        self.small.iter().for_each(|file| add(file, 0..file.1.len()));
        add(&self.cut, 16 * KIB..32 * KIB);
        add(&self.large, 512 * KIB..640 * KIB);
        writer.finish("default".into()).unwrap()
    }

    /// What the pack holds, as hints.
    fn hints(&self) -> Vec<Hint> {
        let hint = |file: &(Digest, Vec<u8>), range: std::ops::Range<usize>| Hint::Object {
            object: file.0,
            range: range.start as u64..range.end as u64,
        };
        let small = self.small.iter().map(|file| hint(file, 0..file.1.len()));
        small.chain([hint(&self.cut, 16 * KIB..32 * KIB), hint(&self.large, 512 * KIB..640 * KIB)]).collect()
    }

    /// A process with this store.
    fn world(&self, pack: &[u8], store: MemoryStore) -> World {
        let source = Arc::new(MemorySource::new([self.layer.bytes.clone(), Bytes::copy_from_slice(pack)]));
        let fetcher = Fetcher::new(Arc::new(store.clone()), Handle::current(), Config::default());
        let image = fetcher.add_image(table_of(&[&self.layer]), source.clone(), "test:latest");
        World { fetcher, store, source, image }
    }

    async fn check_reads(&self, world: &World) {
        for (object, content) in &self.small {
            assert_eq!(world.read(object, 0, 40 << 10).await.unwrap(), *content);
        }
        let read = world.read(&self.cut.0, 16 << 10, 16 << 10).await.unwrap();
        assert_eq!(read, self.cut.1[16 * KIB..32 * KIB]);
        let read = world.read(&self.large.0, 520 << 10, 100 << 10).await.unwrap();
        assert_eq!(read, self.large.1[520 * KIB..620 * KIB]);
    }
}

fn unlimited() -> Pace {
    Pace::new(None)
}

fn silent(_: u64, _: u64) {}

#[tokio::test(start_paused = true)]
async fn a_pack_is_brought_once_and_nothing_else_is() {
    let files = files();
    let (index, pack) = files.pack();
    let store = MemoryStore::default();
    let first = files.world(&pack, store.clone());
    let requested = AtomicU64::new(0);
    let progress = |bytes, all| {
        assert_eq!(all, pack.len() as u64);
        requested.store(bytes, Ordering::Relaxed);
    };
    let brought =
        first.image.bring(StartContent::Pack(index.clone(), PackOrigin::Recorded), &unlimited(), &progress).await;
    let size = pack.len() as u64;
    assert_eq!(brought, Brought { wanted: size, missing_before: size, ..Brought::default() });
    assert_eq!((requested.into_inner(), first.asked()), (size, size));
    assert!(first.source.requests().iter().all(|(blob, _)| *blob == Digest::of(&pack)));
    drop(first);
    let second = files.world(&pack, store);
    let brought = second.image.bring(StartContent::Pack(index, PackOrigin::Recorded), &unlimited(), &silent).await;
    assert_eq!(brought, Brought { wanted: size, ..Brought::default() });
    files.check_reads(&second).await;
    assert_eq!(second.asked(), 0, "a later process reads what was brought");
}

#[tokio::test(start_paused = true)]
async fn hints_are_brought_once_and_nothing_else_is() {
    let files = files();
    let store = MemoryStore::default();
    let first = files.world(b"", store.clone());
    let brought = first.image.bring(StartContent::Hints(files.hints()), &unlimited(), &silent).await;
    assert!(brought.missing == 0 && brought.wanted == brought.missing_before, "{brought:?}");
    assert!(first.asked() < files.layer.bytes.len() as u64 * 2 / 3, "{} bytes", first.asked());
    drop(first);
    let second = files.world(b"", store);
    assert_eq!(second.image.bring(StartContent::Hints(files.hints()), &unlimited(), &silent).await.missing_before, 0);
    files.check_reads(&second).await;
    assert_eq!(second.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_more_bytes_are_requested_in_a_second_than_may() {
    let files = files();
    let (index, pack) = files.pack();
    let world = files.world(&pack, MemoryStore::default());
    let (began, rate) = (Instant::now(), 100_000);
    let late = |requested: u64, _| {
        // The first request has the bytes of half a second, or of a frame.
        let allowed = began.elapsed().as_millis() * u128::from(rate) / 1000 + (512 << 10);
        assert!(u128::from(requested) <= allowed, "{requested} bytes after {:?}", began.elapsed());
    };
    let brought = world
        .image
        .bring(StartContent::Pack(index, PackOrigin::Recorded), &Pace::new(NonZeroU64::new(rate)), &late)
        .await;
    assert_eq!(brought.missing, 0);
    let least = Duration::from_secs(pack.len() as u64 / rate);
    assert!(began.elapsed() >= least && began.elapsed() < least + Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_did_not_come_is_reported_with_the_reason() {
    let files = files();
    let (index, pack) = files.pack();
    let missing = files.world(b"another blob", MemoryStore::default());
    missing.source.script([Then::Refuse(Fault::NotFound).into()]);
    let brought =
        missing.image.bring(StartContent::Pack(index.clone(), PackOrigin::Recorded), &unlimited(), &silent).await;
    assert_eq!((brought.missing, brought.missing_before), (brought.wanted, pack.len() as u64));
    assert!(!brought.refused && brought.problem.unwrap().contains("the boot pack of test:latest is abandoned"));
    let full = files.world(&pack, MemoryStore::default());
    full.store.refuse(Some(Refusal::Full));
    let brought = full.image.bring(StartContent::Pack(index, PackOrigin::Recorded), &unlimited(), &silent).await;
    assert!(brought.missing > 0 && brought.refused);
    assert_eq!(brought.problem.as_deref(), Some("the store accepts nothing"));
}

#[tokio::test(start_paused = true)]
async fn what_stays_in_memory_only_is_missing() {
    let files = files();
    let (index, pack) = files.pack();
    for content in [StartContent::Pack(index, PackOrigin::Recorded), StartContent::Hints(files.hints())] {
        let world = files.world(&pack, MemoryStore::default());
        world.store.forget_parts(true);
        let brought = world.image.bring(content.clone(), &unlimited(), &silent).await;
        assert!(brought.missing > 0 && brought.missing < brought.wanted && brought.refused, "{brought:?}");
        assert_eq!(brought.problem.as_deref(), Some("the store has no room left"));
        files.check_reads(&world).await;
        let asked = world.asked();
        world.store.forget_parts(false);
        let brought = world.image.bring(content, &unlimited(), &silent).await;
        assert_eq!(brought, Brought { wanted: brought.wanted, ..Brought::default() });
        assert_eq!(world.asked(), asked, "what was in memory lasts now");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_reader_has_in_memory_is_made_to_last() {
    let files = files();
    let world = files.world(b"", MemoryStore::default());
    world.store.forget_parts(true);
    world.read(&files.cut.0, 16 << 10, 16 << 10).await.unwrap();
    let hints = vec![Hint::Object { object: files.cut.0, range: 16 << 10..32 << 10 }];
    let brought = world.image.bring(StartContent::Hints(hints.clone()), &unlimited(), &silent).await;
    assert!(brought.missing == brought.wanted && brought.refused, "{brought:?}");
    world.store.forget_parts(false);
    let brought = world.image.bring(StartContent::Hints(hints), &unlimited(), &silent).await;
    assert_eq!((brought.missing, brought.missing_before), (0, 0));
}
