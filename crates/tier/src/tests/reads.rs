//! Reads: from the tier where it has the blob, else from its source.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use tarpon_blob::{BlobSource as _, Fault as SourceFault};
use tarpon_testkit::source::{MemorySource, Then};
use tokio::time::{Instant, sleep};

use super::faulty::{Fault, FaultyStore, Operation};
use super::{blob, bytes, object, tier};
use crate::health::{LONGEST_REST, REST};
use crate::tier::ABSENT;
use crate::{Tier, TieredBlobs};

const SIZE: usize = 100_000;
/// Longer than the tier may be silent, with reserve for the source.
const SILENCE: Duration = Duration::from_secs(4);

struct Setup {
    store: Arc<FaultyStore>,
    tier: Arc<Tier>,
    source: Arc<MemorySource>,
    blobs: TieredBlobs,
    bytes: Bytes,
}

impl Setup {
    /// A blob that both have.
    async fn new() -> Self {
        let setup = Self::without_blob();
        setup.put(setup.bytes.clone()).await;
        setup
    }

    /// A blob that the tier lacks.
    fn without_blob() -> Self {
        let ((store, tier), bytes) = (tier(), bytes(SIZE));
        let source = Arc::new(MemorySource::new([bytes.clone()]));
        let blobs = TieredBlobs::new(tier.clone(), source.clone());
        Self { store, tier, source, blobs, bytes }
    }

    /// Makes these bytes the tier's blob.
    async fn put(&self, bytes: Bytes) {
        self.tier.store().put(&object(&self.bytes, "blob"), bytes.into()).await.unwrap();
    }

    async fn read(&self, range: Range<usize>) -> Bytes {
        let wanted = range.start as u64..range.end as u64;
        let pieces = self.blobs.read(blob(&self.bytes), wanted).await.unwrap();
        pieces.try_collect::<Vec<_>>().await.unwrap().concat().into()
    }

    /// Reads this range, which must be right.
    async fn reads(&self, range: Range<usize>) {
        assert!(self.read(range.clone()).await == self.bytes.slice(range));
    }

    /// How often tier and source were asked.
    fn asked(&self) -> (usize, usize) {
        (self.store.count(Operation::Get), self.source.requests().len())
    }

    /// What the source was asked for the last time.
    fn continued(&self) -> Range<u64> {
        self.source.requests().last().unwrap().1.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_tier_has_is_not_requested_from_the_source() {
    let setup = Setup::new().await;
    for range in [0..SIZE, 0..1, SIZE - 1..SIZE, 500..70_000] {
        setup.reads(range).await;
    }
    let probe = setup.blobs.probe(blob(&setup.bytes), 77).await.unwrap();
    assert_eq!(probe.try_collect::<Vec<_>>().await.unwrap().concat(), setup.bytes[77..78]);
    assert_eq!(setup.asked(), (5, 0));
    let account = setup.tier.account();
    assert_eq!((account.requests, account.bytes, account.failures), (5, SIZE as u64 + 2 + 69_500 + 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_the_tier_lacks_is_requested_there_again_only_after_a_while() {
    let setup = Setup::without_blob();
    let (began, mut reads) = (Instant::now(), 0);
    while began.elapsed() <= ABSENT {
        setup.reads(0..100).await;
        reads += 1;
        assert_eq!(setup.asked(), (1, reads));
        sleep(Duration::from_secs(1)).await;
    }
    setup.put(setup.bytes.clone()).await;
    setup.reads(0..100).await;
    assert_eq!(setup.asked(), (2, reads), "another host has copied it meanwhile");
    assert_eq!(setup.tier.account().failures, 0);
}

/// Reads 1000..90,000 from a tier whose body has this fault; where the source continued.
async fn with_fault(fault: Fault) -> (Setup, u64, Duration) {
    let setup = Setup::new().await;
    setup.store.script(Operation::Get, [Some(fault)]);
    let began = Instant::now();
    setup.reads(1_000..90_000).await;
    let (continued, took) = (setup.continued(), began.elapsed());
    assert_eq!((setup.asked(), continued.end), ((1, 1), 90_000), "{fault:?}");
    assert!(setup.tier.is_resting().is_some(), "{fault:?}");
    (setup, continued.start, took)
}

#[tokio::test(start_paused = true)]
async fn a_response_that_breaks_off_or_is_short_is_continued_by_the_source() {
    for count in [0, 1, 40_000, 88_999] {
        for fault in [Fault::Break(count), Fault::End(count), Fault::Spin(count)] {
            let (_, continued, took) = with_fault(fault).await;
            assert_eq!((continued, took), (1_000 + count as u64, Duration::ZERO), "{fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_stalls_is_continued_by_the_source_after_seconds() {
    for count in [0, 40_000] {
        let (_, continued, took) = with_fault(Fault::Stall(count)).await;
        assert_eq!(continued, 1_000 + count as u64);
        assert!(took < SILENCE, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_trickles_is_continued_by_the_source_after_seconds() {
    for count in [1, 1_000, 16_000] {
        let (setup, continued, took) = with_fault(Fault::Trickle(count, Duration::from_millis(600))).await;
        assert_eq!(continued, 1_000 + 3 * count as u64);
        assert!(took < SILENCE, "{took:?}");
        let why = "cannot read a blob in the tier: it sends less than 65536 bytes in 2s";
        assert_eq!(setup.tier.account().last_failure.as_deref(), Some(why));
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_slow_but_keeps_the_least_rate_or_ends_is_read() {
    for (count, end) in [(35_000, SIZE), (1_000, 3_000)] {
        let setup = Setup::new().await;
        setup.store.always(Operation::Get, Fault::Trickle(count, Duration::from_millis(600)));
        setup.reads(0..end).await;
        assert_eq!((setup.asked(), setup.tier.account().failures), ((1, 0), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_pauses_does_not_make_the_tier_slow() {
    let setup = Setup::new().await;
    setup.store.always(Operation::Get, Fault::Trickle(10_000, Duration::from_millis(200)));
    let mut pieces = setup.blobs.read(blob(&setup.bytes), 0..SIZE as u64).await.unwrap();
    while pieces.try_next().await.unwrap().is_some() {
        sleep(SILENCE).await;
    }
    assert_eq!((setup.asked(), setup.tier.account().failures), ((1, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn a_tier_that_sends_heads_only_rests_longer_and_longer() {
    let setup = Setup::new().await;
    setup.store.always(Operation::Get, Fault::Stall(10));
    for rest in [REST, REST * 2, REST * 4] {
        setup.reads(0..100).await;
        assert_eq!(setup.tier.account().rest, Some(rest));
        sleep(rest).await;
    }
    setup.store.always(Operation::Get, None);
    setup.reads(0..100).await;
    setup.store.always(Operation::Get, Fault::Stall(10));
    setup.reads(0..100).await;
    assert_eq!(setup.tier.account().rest, Some(REST), "a whole body ends the row of failures");
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_before_the_tier_failed_does_not_end_its_rest() {
    let setup = Setup::new().await;
    setup.store.script(Operation::Get, [Some(Fault::Wait(Duration::from_secs(1))), Some(Fault::Fail)]);
    setup.store.script(Operation::List, [Some(Fault::Wait(Duration::from_secs(1)))]);
    let layer = super::layer(&setup.tier, &setup.bytes);
    let (_, state, ()) = tokio::join!(setup.reads(0..SIZE), layer.look(), setup.reads(0..SIZE));
    assert!(state.unwrap().has_blob);
    assert_eq!(setup.asked(), (2, 1));
    assert_eq!(setup.tier.account().rest, Some(REST - Duration::from_secs(1)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_or_hangs_goes_to_the_source() {
    for fault in [Fault::Fail, Fault::Refuse, Fault::Hang] {
        let setup = Setup::new().await;
        setup.store.script(Operation::Get, [Some(fault), Some(fault)]);
        let began = Instant::now();
        setup.reads(1_000..90_000).await;
        assert_eq!(setup.continued(), 1_000..90_000);
        assert!(began.elapsed() < SILENCE, "{fault:?}");
        assert!(setup.tier.is_resting().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn more_bytes_than_were_requested_are_cut_off() {
    for fault in [Fault::Append(b"more"), Fault::Lengthen(b"more")] {
        let setup = Setup::new().await;
        setup.store.always(Operation::Get, fault);
        for range in [0..SIZE, 5..50] {
            setup.reads(range).await;
        }
        assert_eq!(setup.asked(), (2, 0));
        assert_eq!(setup.tier.account().bytes, SIZE as u64 + 45);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_source_is_the_readers() {
    let setup = Setup::new().await;
    setup.store.always(Operation::Get, Fault::Break(10));
    setup.source.always(Then::Refuse(SourceFault::Denied).into());
    let pieces = setup.blobs.read(blob(&setup.bytes), 0..100).await.unwrap();
    let (arrived, error) = all(pieces).await;
    assert_eq!((arrived, error), (10, Some(SourceFault::Denied)));

    // The rest is without the tier.
    setup.source.always(Then::Break(30, SourceFault::Unavailable).into());
    let pieces = setup.blobs.read(blob(&setup.bytes), 0..100).await.unwrap();
    assert_eq!(all(pieces).await, (30, Some(SourceFault::Unavailable)));
}

/// How many bytes arrive, and what ends them.
async fn all(mut pieces: tarpon_blob::BlobStream) -> (usize, Option<SourceFault>) {
    let mut arrived = 0;
    loop {
        match pieces.try_next().await {
            Ok(Some(piece)) => arrived += piece.len(),
            Ok(None) => return (arrived, None),
            Err(error) => return (arrived, Some(error.fault)),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_tier_that_fails_rests_longer_and_longer_and_is_asked_again() {
    let setup = Setup::new().await;
    setup.store.always(Operation::Get, Fault::Fail);
    let mut rests = Vec::new();
    for attempt in 1..=6 {
        setup.reads(0..10).await;
        setup.reads(0..10).await;
        let rest = setup.tier.account().rest.unwrap();
        assert_eq!(setup.asked(), (attempt, 2 * attempt), "while it rests it is not asked");
        rests.push(rest);
        sleep(rest).await;
        assert_eq!(setup.tier.is_resting(), None);
    }
    assert_eq!(rests[..3], [REST, REST * 2, REST * 4]);
    assert_eq!(rests[5], LONGEST_REST);
    let account = setup.tier.account();
    assert_eq!((account.failures, account.requests), (6, 6));
    assert_eq!(account.last_failure.as_deref(), Some("cannot read a blob in the tier: the disk is on fire"));

    setup.store.always(Operation::Get, None);
    setup.reads(0..10).await;
    setup.store.always(Operation::Get, Fault::Fail);
    setup.reads(0..10).await;
    assert_eq!(setup.tier.account().rest, Some(REST), "a success ends the row of failures");
}

#[tokio::test(start_paused = true)]
async fn requests_that_fail_together_are_one_failure_of_a_row() {
    let setup = Setup::new().await;
    setup.store.always(Operation::Get, Fault::Hang);
    futures::future::join_all((0..20).map(|_| setup.reads(0..10))).await;
    assert_eq!(setup.asked(), (20, 20));
    assert_eq!(setup.tier.account().rest, Some(REST));
}

#[tokio::test(start_paused = true)]
async fn after_wrong_bytes_the_source_is_asked() {
    let setup = Setup::new().await;
    let mut wrong = setup.bytes.to_vec();
    wrong[70] ^= 1;
    setup.put(wrong.into()).await;
    assert!(setup.read(0..100).await != setup.bytes.slice(0..100));
    assert!(setup.blobs.distrust(&blob(&setup.bytes).digest), "another attempt makes sense");
    assert_eq!(setup.tier.is_resting(), None, "other blobs may be right");
    for _ in 0..2 {
        setup.reads(0..100).await;
        sleep(2 * ABSENT).await;
    }
    assert_eq!(setup.asked(), (1, 2));
    assert!(!setup.blobs.distrust(&blob(&setup.bytes).digest), "now the source is wrong, which has no mirror");
    let account = setup.tier.account();
    let why = format!("its blob {} has wrong bytes", blob(&setup.bytes).digest);
    assert_eq!((account.failures, account.last_failure), (1, Some(why)));
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_another_process_distrusts_is_not_requested_here() {
    // The user of a worker states with each request whether the blob's bytes were wrong; the worker may be new.
    let setup = Setup::new().await;
    assert!(!setup.blobs.distrust(&blob(&setup.bytes).digest));
    setup.reads(0..100).await;
    assert_eq!(setup.asked(), (0, 1));
    assert_eq!(setup.tier.account().failures, 0, "the source may have sent them");
}

#[tokio::test(start_paused = true)]
async fn a_blob_of_a_wrong_size_is_not_read() {
    for size in [0, 50, SIZE - 1, SIZE + 1] {
        let setup = Setup::without_blob();
        setup.put(bytes(size)).await;
        for range in [60..SIZE, 0..10, 0..SIZE] {
            setup.reads(range).await;
        }
        assert_eq!(setup.source.requests().len(), 3);
        assert_eq!(setup.tier.is_resting(), None, "other blobs may be right");
        let account = setup.tier.account();
        assert_eq!(account.failures, 1);
        let why = format!("has {size} bytes instead of {SIZE}");
        assert!(account.last_failure.unwrap().ends_with(&why), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tier_with_a_thousand_wrong_blobs_is_not_asked_any_more() {
    let setup = Setup::new().await;
    let mut blobs = 0;
    while setup.tier.is_resting().is_none() {
        setup.tier.is_wrong(
            &tarpon_oci::Digest::of(&[1, u8::try_from(blobs % 256).unwrap(), u8::try_from(blobs / 256).unwrap()]),
            "has wrong bytes",
        );
        blobs += 1;
    }
    assert_eq!(blobs, 1024);
    setup.reads(0..10).await;
    assert_eq!(setup.asked(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_name_and_the_place_of_blobs_are_the_sources() {
    let setup = Setup::new().await;
    assert_eq!((setup.blobs.name(), setup.blobs.is_local()), (setup.source.name(), setup.source.is_local()));
}
