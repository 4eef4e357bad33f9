//! The rules of the table in `prefetch/mod.rs`: one by one, and in every state.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tarpon_oci::{Blob, Digest};
use tarpon_testkit::source::{Form, Packer, table_of};
use tokio::time::Instant;

use super::super::rules::{Background, Obstacle};
use super::{Downloading, Facts, Predicting, Prefetch, Prefetcher, Replaying, Step};
use crate::breaker::{Attempt, Breaker};
use crate::bypass::Bypass;
use crate::config::Config;
use crate::error::PieceError;
use crate::journal::Journal;
use crate::lanes::{Lane, Lanes, Priority};
use crate::pack::places::{Pack, PackOrigin};
use crate::pack::{BootFrame, BootIndex, BootPiece};
use crate::prefetch::governor::state::StallGuard;

/// The chunk that the boot pack of these tests has.
const IN_PACK: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackState {
    Absent,
    /// Of a recorded start.
    InUse,
    GivenUp,
    /// Of a predicted start, in use.
    Predicted,
}

/// Everything that a rule may depend on.
#[derive(Debug, Clone, Copy)]
struct World {
    store_refuses: bool,
    source_fails: bool,
    source_is_local: bool,
    pack: PackState,
    prediction_runs: bool,
    download_runs: bool,
    demand_on_wire: bool,
    reader_waits: bool,
}

/// The image is lazy and undisturbed; one of its readers waits.
const CALM: World = World {
    store_refuses: false,
    source_fails: false,
    source_is_local: false,
    pack: PackState::Absent,
    prediction_runs: false,
    download_runs: false,
    demand_on_wire: false,
    reader_waits: true,
};

/// The policy in a world, and the guards that keep it there.
struct Fixture {
    prefetch: Arc<Prefetch>,
    lanes: Arc<Lanes>,
    _predicting: Option<Predicting>,
    _downloading: Option<Downloading>,
    _demand: Option<Priority>,
    _stall: Option<StallGuard>,
}

fn pack(origin: PackOrigin) -> Arc<Pack> {
    let mut packer = Packer::new(Form::Gzip);
    let object = packer.object(b"content", 4096);
    let blob = Blob { digest: Digest::of(b"pack"), size: 100 };
    let pieces = vec![BootPiece { object, offset: 0, length: 7 }];
    let index = BootIndex { profile: "default".into(), blob, frames: vec![BootFrame { length: 100, pieces }] };
    let pack = Pack::new(&index, &table_of(&[&packer.finish()]), origin);
    assert!(pack.has(IN_PACK));
    Arc::new(pack)
}

fn idle_task() -> tokio::task::AbortHandle {
    tokio::spawn(std::future::pending::<()>()).abort_handle()
}

/// A replay that never ends by itself.
fn idle_replay(replaying: Replaying) -> tokio::task::AbortHandle {
    let task = async move {
        let _replaying = replaying;
        std::future::pending::<()>().await;
    };
    tokio::spawn(task).abort_handle()
}

impl World {
    /// The policy in this world. Its tasks never end by themselves.
    fn build(self) -> Fixture {
        let config = Config::default();
        let lanes = Arc::new(Lanes::new(&config));
        let bypass = Arc::new(Bypass::new(config.bypass_bytes));
        let breaker = Arc::new(Breaker::new(config.outage_grace, Arc::<Journal>::default()));
        let governor = Arc::default();
        let prefetch = Arc::new(Prefetch::new(Facts {
            lanes: lanes.clone(),
            bypass: bypass.clone(),
            breaker: breaker.clone(),
            governor: Arc::clone(&governor),
            source_is_local: self.source_is_local,
            linger: config.whole_linger,
        }));
        prefetch.running.lock().downloads = self.download_runs;
        if self.pack != PackState::Absent {
            let is_predicted = self.pack == PackState::Predicted;
            let pack = pack(if is_predicted { PackOrigin::Predicted } else { PackOrigin::Recorded });
            assert!(prefetch.start_pack(pack.clone(), idle_replay));
            if self.pack == PackState::GivenUp {
                pack.give_up();
            }
        }
        if self.store_refuses {
            bypass.activate(Instant::now() + Duration::from_secs(30));
        }
        if self.source_fails {
            Attempt::begin(&breaker).failed(&PieceError::Stalled(Duration::from_secs(28)));
        }
        Fixture {
            _predicting: self.prediction_runs.then(|| Predicting::begin(&prefetch)),
            _downloading: self.download_runs.then(|| Downloading(prefetch.clone())),
            _demand: self.demand_on_wire.then(|| Priority::new(&lanes, Lane::Demand)),
            _stall: self.reader_waits.then(|| StallGuard::begin(&governor)),
            prefetch,
            lanes,
        }
    }

    fn may(self, prefetcher: Prefetcher, step: Step) -> bool {
        self.build().prefetch.may(prefetcher, step)
    }
}

const ALL: [Prefetcher; 5] =
    [Prefetcher::ReadAhead, Prefetcher::Neighbours, Prefetcher::Hints, Prefetcher::BootPack, Prefetcher::WholeImage];
const STEPS: [Step; 3] = [Step::Begin, Step::First, Step::Next];

/// Asserts that the prefetcher may take exactly `steps` in this world.
fn assert_may(prefetcher: Prefetcher, world: World, steps: &[Step]) {
    let allowed: Vec<Step> = STEPS.into_iter().filter(|step| world.may(prefetcher, *step)).collect();
    assert_eq!(allowed, steps, "{prefetcher:?} in {world:?}");
}

#[tokio::test]
async fn every_prefetcher_may_work_in_a_calm_image() {
    for prefetcher in ALL {
        assert_may(prefetcher, CALM, &STEPS);
    }
}

#[tokio::test]
async fn read_ahead_leaves_chunks_to_the_boot_pack_that_has_them() {
    let begins = |pack, chunk| {
        let fixture = World { pack, ..CALM }.build();
        fixture.prefetch.may_at(Prefetcher::ReadAhead, Step::Begin, || chunk)
    };
    assert!(!begins(PackState::InUse, Some(IN_PACK)));
    assert!(begins(PackState::InUse, Some(IN_PACK + 1)) && begins(PackState::InUse, None));
    assert!(!begins(PackState::Predicted, Some(IN_PACK)) && begins(PackState::Predicted, Some(IN_PACK + 1)));
    assert!(begins(PackState::GivenUp, Some(IN_PACK)) && begins(PackState::Absent, Some(IN_PACK)));
}

#[tokio::test]
async fn read_ahead_requests_nothing_while_the_store_refuses() {
    assert_may(Prefetcher::ReadAhead, World { store_refuses: true, ..CALM }, &[Step::Begin]);
}

#[tokio::test]
async fn neighbours_need_an_image_without_a_better_prediction() {
    assert_may(Prefetcher::Neighbours, World { pack: PackState::InUse, ..CALM }, &[]);
    assert_may(Prefetcher::Neighbours, World { pack: PackState::GivenUp, ..CALM }, &STEPS);
    assert_may(Prefetcher::Neighbours, World { pack: PackState::Predicted, ..CALM }, &STEPS);
    assert_may(Prefetcher::Neighbours, World { prediction_runs: true, ..CALM }, &[]);
    assert_may(Prefetcher::Neighbours, World { download_runs: true, ..CALM }, &[]);
}

#[tokio::test]
async fn neighbours_need_an_idle_link_to_a_remote_source_that_answers() {
    assert_may(Prefetcher::Neighbours, World { demand_on_wire: true, ..CALM }, &[]);
    assert_may(Prefetcher::Neighbours, World { source_is_local: true, ..CALM }, &[]);
    assert_may(Prefetcher::Neighbours, World { source_fails: true, ..CALM }, &[]);
}

#[tokio::test]
async fn neighbours_need_a_store_that_accepts_them() {
    assert_may(Prefetcher::Neighbours, World { store_refuses: true, ..CALM }, &[]);
}

#[tokio::test]
async fn hints_do_not_start_in_an_image_with_a_recorded_boot_pack_even_after_the_pack_was_abandoned() {
    for pack in [PackState::InUse, PackState::GivenUp] {
        assert_may(Prefetcher::Hints, World { pack, ..CALM }, &[Step::First, Step::Next]);
    }
}

#[tokio::test]
async fn hints_test_a_failing_source_with_their_first_request_only() {
    assert_may(Prefetcher::Hints, World { source_fails: true, ..CALM }, &[Step::Begin, Step::First]);
}

#[tokio::test]
async fn hints_and_boot_packs_end_when_the_store_refuses() {
    for prefetcher in [Prefetcher::Hints, Prefetcher::BootPack] {
        assert_may(prefetcher, World { store_refuses: true, ..CALM }, &[Step::Begin]);
    }
}

#[tokio::test]
async fn an_image_takes_one_boot_pack() {
    let fixture = World { pack: PackState::GivenUp, ..CALM }.build();
    assert!(!fixture.prefetch.start_pack(pack(PackOrigin::Recorded), |_| unreachable!("it has one")));
}

#[tokio::test]
async fn hints_are_followed_one_task_at_a_time() {
    let fixture = CALM.build();
    assert!(fixture.prefetch.start_hints(idle_task) && fixture.prefetch.predicts());
    assert!(!fixture.prefetch.start_hints(idle_task));
    fixture.prefetch.stop_hints();
    assert!(!fixture.prefetch.predicts() && fixture.prefetch.start_hints(idle_task));
}

#[tokio::test]
async fn hints_are_followed_behind_a_predicted_boot_pack() {
    let fixture = World { pack: PackState::Predicted, ..CALM }.build();
    assert!(fixture.prefetch.start_hints(idle_task));
    let mut end = Box::pin(fixture.prefetch.replay_end());
    assert!(end.as_mut().now_or_never().is_none(), "the pack is being replayed");
    fixture.prefetch.close();
    end.await;
    assert!(CALM.build().prefetch.replay_end().now_or_never().is_some(), "there is no pack");
}

#[tokio::test]
async fn a_boot_pack_is_not_stopped_with_the_hints() {
    let fixture = World { pack: PackState::InUse, ..CALM }.build();
    fixture.prefetch.stop_hints();
    assert!(fixture.prefetch.predicts());
}

#[tokio::test]
async fn a_whole_download_waits_for_the_end_of_a_prediction() {
    assert_may(Prefetcher::WholeImage, World { prediction_runs: true, ..CALM }, &[Step::Next]);
    let two = CALM.build();
    let (one, other) = (Predicting::begin(&two.prefetch), Predicting::begin(&two.prefetch));
    drop(one);
    assert!(!two.prefetch.may(Prefetcher::WholeImage, Step::First), "the other one runs");
    drop(other);
    assert!(two.prefetch.may(Prefetcher::WholeImage, Step::First));
}

#[tokio::test]
async fn a_whole_download_needs_a_remote_source() {
    assert_may(Prefetcher::WholeImage, World { source_is_local: true, ..CALM }, &[Step::First, Step::Next]);
}

#[tokio::test]
async fn a_whole_download_does_not_begin_while_the_source_fails() {
    assert_may(Prefetcher::WholeImage, World { source_fails: true, ..CALM }, &[]);
}

#[tokio::test]
async fn a_whole_download_ends_with_the_store_the_source_or_the_waits_of_readers() {
    for (world, why) in [
        (World { store_refuses: true, ..CALM }, Obstacle::StoreRefuses),
        (World { source_fails: true, ..CALM }, Obstacle::SourceFails),
        (World { reader_waits: false, ..CALM }, Obstacle::ReadersQuiet),
    ] {
        assert_eq!(world.build().prefetch.obstacle(Prefetcher::WholeImage, Step::Next), Some(why));
    }
}

#[tokio::test]
async fn a_whole_download_runs_once_and_not_after_the_image_is_gone() {
    let prefetch = CALM.build().prefetch;
    let mut guard = None;
    let start = |downloading| {
        guard = Some(downloading);
        idle_task()
    };
    assert!(prefetch.start_download(start) && prefetch.downloads());
    assert!(!prefetch.start_download(|_| unreachable!("it runs")));
    drop(guard.take());
    assert!(!prefetch.downloads());
    prefetch.close();
    assert!(!prefetch.start_download(|_| unreachable!("the image is gone")));
}

#[tokio::test]
async fn an_idle_backfill_waits_for_all_requests_and_a_prompt_one_for_those_of_readers() {
    let lanes = CALM.build().lanes;
    let may = |work: Background| work.turn(&lanes).now_or_never().is_some();
    let all = [Background::IdleBackfill, Background::EarlyPack, Background::PromptBackfill];
    assert_eq!(all.map(may), [true, true, true]);
    let ahead = Priority::new(&lanes, Lane::Ahead);
    assert_eq!(all.map(may), [false, false, true]);
    let demand = Priority::new(&lanes, Lane::Demand);
    assert_eq!(all.map(may), [false, false, false]);
    drop((ahead, demand));
    assert_eq!(all.map(may), [true, true, true]);
}

/// The rules as the prefetchers checked them before they had a policy, each for itself.
fn naive(prefetcher: Prefetcher, step: Step, world: World) -> bool {
    let World { store_refuses, source_fails, source_is_local, pack, prediction_runs, download_runs, .. } = world;
    match (prefetcher, step) {
        (Prefetcher::ReadAhead, Step::Begin) => !matches!(pack, PackState::InUse | PackState::Predicted),
        (Prefetcher::ReadAhead | Prefetcher::BootPack, Step::First | Step::Next) => !store_refuses,
        (Prefetcher::Neighbours, _) => {
            !(pack == PackState::InUse
                || prediction_runs
                || download_runs
                || source_is_local
                || source_fails
                || world.demand_on_wire
                || store_refuses)
        }
        (Prefetcher::Hints, Step::Begin) => matches!(pack, PackState::Absent | PackState::Predicted),
        (Prefetcher::BootPack, Step::Begin) => pack == PackState::Absent,
        (Prefetcher::Hints, Step::First) => !store_refuses,
        (Prefetcher::Hints, Step::Next) => !store_refuses && !source_fails,
        (Prefetcher::WholeImage, Step::Begin) => !(prediction_runs || source_is_local || store_refuses || source_fails),
        (Prefetcher::WholeImage, Step::First) => !(prediction_runs || source_fails),
        (Prefetcher::WholeImage, Step::Next) => !store_refuses && !source_fails && world.reader_waits,
    }
}

#[tokio::test]
async fn the_policy_agrees_with_the_naive_rules_in_every_state() {
    for bits in 0_u32..1 << 7 {
        for pack in [PackState::Absent, PackState::InUse, PackState::GivenUp, PackState::Predicted] {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let world = World {
                store_refuses: is(0),
                source_fails: is(1),
                source_is_local: is(2),
                pack,
                prediction_runs: is(3),
                download_runs: is(4),
                demand_on_wire: is(5),
                reader_waits: is(6),
            };
            let fixture = world.build();
            for prefetcher in ALL {
                for step in STEPS {
                    let may = fixture.prefetch.may_at(prefetcher, step, || Some(IN_PACK));
                    assert_eq!(may, naive(prefetcher, step, world), "{prefetcher:?} {step:?} in {world:?}");
                }
            }
        }
    }
}
