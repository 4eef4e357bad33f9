//! Any object, any chunks, any reads: right bytes, few requests, no byte requested twice.

mod common;

use common::{World, noise};
use proptest::prelude::*;
use tarpon_testkit::matrix;
use tarpon_testkit::source::{Form, Packer};

fn form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::Raw), Just(Form::Gzip), Just(Form::Zstd)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: matrix::cases(128), ..ProptestConfig::default() })]

    #[test]
    fn reads_are_right_and_no_byte_is_requested_twice(
        form in form(),
        seed in any::<u64>(),
        size in 1_usize..600_000,
        chunk in 2000_usize..200_000,
        gap in 0_usize..1999,
        reads in prop::collection::vec((0_usize..650_000, 0_usize..200_000), 1..20),
    ) {
        let content = noise(seed, size);
        let mut packer = Packer::new(form);
        packer.gap(gap);
        let object = packer.object(&content, chunk);
        packer.gap(gap);
        let layer = packer.finish();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            // Smaller than any chunk, so local chunks are not bridged.
            let config = tarpon_fetch::Config { coalesce_gap: 1999, ..Default::default() };
            let world = World::with(&[&layer], Default::default(), config);
            for (offset, length) in reads {
                let bytes = world.read(&object, offset as u64, length as u64).await.unwrap();
                let start = offset.min(size);
                assert!(*bytes == content[start..size.min(offset + length)], "{offset} {length}");
            }
            world.quiet().await;
            assert!(world.asked() <= layer.blob.size, "{} of {}", world.asked(), layer.blob.size);
            assert_eq!(world.fetcher.stats().bytes_fetched, world.asked());
        });
    }

    /// One read makes as many requests as it has runs of missing chunks.
    #[test]
    fn a_read_makes_one_request_for_each_run_of_missing_chunks(present in prop::collection::vec(any::<bool>(), 12)) {
        let content = noise(1, 12 * 64 * 1024);
        let mut packer = Packer::new(Form::Raw);
        let object = packer.object(&content, 64 * 1024);
        let layer = packer.finish();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            // No read-ahead, and a gap of one chunk is not bridged.
            let config = tarpon_fetch::Config { ahead_min: u64::MAX / 4, ..Default::default() };
            let world = World::with(&[&layer], Default::default(), config);
            for (number, _) in (0_u64..).zip(&present).filter(|(_, present)| **present) {
                world.read(&object, number * 65_536, 1).await.unwrap();
                world.quiet().await;
            }
            let before = world.source.requests().len();
            assert!(world.read(&object, 0, 12 * 65_536).await.unwrap() == content);
            let runs = present.split(|present| *present).filter(|run| !run.is_empty()).count();
            assert_eq!(world.source.requests().len() - before, runs);
        });
    }
}
