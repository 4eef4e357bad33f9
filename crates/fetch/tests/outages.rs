//! A source that does not answer: which reads wait, for how long, and their outcome when it is back.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{World, noise};
use futures::future::join_all;
use tarpon_blob::Fault;
use tarpon_fetch::{Config, Event};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemoryStore, PackedLayer, Packer, Reply, Then};
use tokio::time::{Instant, sleep};

/// As many files as the image had whose reads failed after an outage of one second.
const FILES: usize = 355;
/// The promise of docs/guarantees.md.
const PROMISE: Duration = Duration::from_secs(30);

struct Files {
    layer: PackedLayer,
    files: Vec<(Digest, Bytes)>,
}

impl Files {
    /// Files that do not fit one request.
    fn new(count: usize) -> Self {
        Self::with(0, count)
    }

    /// As [`Files::new`], with other contents for each `first` far away.
    fn with(first: u64, count: usize) -> Self {
        let mut packer = Packer::new(Form::Raw);
        let mut add = |seed| {
            let content = noise(seed, 1000);
            packer.gap(1);
            (packer.object(&content, 4096), Bytes::from(content))
        };
        let files = (first..first + count as u64).map(&mut add).collect();
        Self { layer: packer.finish(), files }
    }

    /// An image of them, with a request for each.
    fn world(&self) -> World {
        World::with(&[&self.layer], MemoryStore::default(), Config { coalesce_gap: 0, ..Config::default() })
    }

    /// The same objects in another layer.
    fn in_another_layer(&self) -> PackedLayer {
        let mut packer = Packer::new(Form::Gzip);
        for (_, content) in &self.files {
            packer.object(content, 4096);
        }
        packer.finish()
    }

    /// Reads the file whole and compares it.
    async fn read(&self, world: &World, number: usize) -> Result<(), String> {
        let (object, content) = &self.files[number];
        world.read(object, 0, 1000).await.map(|bytes| assert_eq!(bytes, content))
    }

    /// Reads like a process that reads through the kernel: an error is followed by a second request for the same bytes, at once.
    async fn read_through_kernel(&self, world: &World, number: usize) -> (Result<(), String>, Duration) {
        let began = Instant::now();
        let first = self.read(world, number).await;
        let answer = if first.is_err() { self.read(world, number).await } else { first };
        (answer, began.elapsed())
    }
}

fn refused(latency: Duration) -> Reply {
    Reply { latency, ..Then::Refuse(Fault::Unavailable).into() }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_a_second_costs_a_second_and_no_error() {
    let files = Files::new(FILES);
    let world = files.world();
    world.source.always(refused(Duration::from_millis(700)));
    let began = Instant::now();
    let reads = (0..FILES).map(|number| {
        let (files, world) = (&files, &world);
        async move {
            // They begin before, during and after the outage.
            sleep(Duration::from_millis(5) * u32::try_from(number).unwrap()).await;
            let began = Instant::now();
            (files.read(world, number).await, began.elapsed())
        }
    });
    let (answers, ()) = tokio::join!(join_all(reads), async {
        sleep(Duration::from_secs(1)).await;
        world.source.calm();
    });
    assert_eq!(answers.iter().filter(|(answer, _)| answer.is_err()).count(), 0);
    let longest = answers.iter().map(|(_, waited)| *waited).max().unwrap();
    assert!(longest <= Duration::from_millis(2200), "{longest:?} for an outage of a second");
    assert!(began.elapsed() < Duration::from_secs(4));
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_restarts_costs_waits_and_no_errors() {
    let files = Files::new(50);
    for away in [Then::Refuse(Fault::Unavailable), Then::Refuse(Fault::Timeout), Then::Break(100, Fault::Unavailable)] {
        let world = files.world();
        world.source.always(away.into());
        let reads = (0..50).map(|number| files.read(&world, number));
        let (answers, ()) = tokio::join!(join_all(reads), async {
            sleep(Duration::from_secs(9)).await;
            world.source.calm();
        });
        assert!(answers.iter().all(Result::is_ok), "{away:?}");
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_read_that_begins_when_the_source_is_back_fails() {
    let files = Files::new(FILES);
    for away in [refused(Duration::ZERO), refused(Duration::from_secs(2)), Then::Never.into()] {
        let world = files.world();
        world.source.always(away);
        let during = join_all((0..5).map(|number| files.read(&world, number)));
        assert!(during.await.iter().all(Result::is_err), "{away:?}");
        sleep(Duration::from_secs(60)).await;
        assert!(files.read(&world, 5).await.is_err(), "{away:?}");
        world.source.calm();
        let began = Instant::now();
        let after = join_all((6..FILES).map(|number| files.read(&world, number))).await;
        assert_eq!(after.iter().filter(|answer| answer.is_err()).count(), 0, "{away:?}");
        assert!(began.elapsed() <= Duration::from_secs(3), "{:?} for {away:?}", began.elapsed());
        world.quiet().await;
    }
}

/// Reads that begin every 100 ms during `span`.
async fn stream_of_reads(files: &Files, world: &World, span: Duration) -> Vec<(Duration, Result<(), String>)> {
    let started = Instant::now();
    let reads = (0..files.files.len()).map(|number| async move {
        sleep(span * u32::try_from(number).unwrap() / u32::try_from(files.files.len()).unwrap()).await;
        let began = started.elapsed();
        (began, files.read(world, number).await)
    });
    join_all(reads).await
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_back_and_slow_fails_no_reader_that_has_time_to_wait() {
    let files = Files::new(300);
    let back = Duration::from_secs(15);
    for latency in [4, 6, 10].map(Duration::from_secs) {
        for away in [refused(Duration::ZERO), refused(Duration::from_millis(1500))] {
            let world = files.world();
            world.source.always(away);
            let (answers, ()) = tokio::join!(stream_of_reads(&files, &world, Duration::from_secs(30)), async {
                sleep(back).await;
                world.source.always(Reply { latency, ..Then::Bytes.into() });
            });
            let failed: Vec<_> = answers.iter().filter(|(began, answer)| *began > back && answer.is_err()).collect();
            assert!(failed.is_empty(), "{} with {latency:?} after {away:?}: {:?}", failed.len(), failed[0]);
            world.quiet().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_was_silent_and_is_back_and_slow_fails_no_reader_after_its_first_answer() {
    let files = Files::new(300);
    let latency = Duration::from_secs(6);
    let world = files.world();
    world.source.always(Then::Never.into());
    assert!(files.read(&world, 0).await.is_err());
    world.source.always(Reply { latency, ..Then::Bytes.into() });
    let answers = stream_of_reads(&files, &world, Duration::from_secs(30)).await;
    // The pause before the probe, and its duration.
    let open = Duration::from_secs(1) + latency;
    assert_eq!(answers.iter().filter(|(began, answer)| *began > open && answer.is_err()).count(), 0);
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_silence_of_long_ago_is_no_reason_to_fail_a_reader_early() {
    let files = Files::new(10);
    let world = files.world();
    world.source.always(Then::Never.into());
    assert!(files.read(&world, 0).await.is_err());
    sleep(Duration::from_secs(300)).await;
    world.source.always(Reply { latency: Duration::from_secs(6), ..Then::Bytes.into() });
    let answers = join_all((1..10).map(|number| files.read(&world, number))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 0, "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn silent_probes_are_few_for_any_number_of_readers() {
    let files = Files::new(600);
    let world = files.world();
    world.source.script([Then::Refuse(Fault::Unavailable).into()]);
    world.source.always(Then::Never.into());
    let began = Instant::now();
    let answers = stream_of_reads(&files, &world, Duration::from_secs(60)).await;
    assert!(answers.iter().all(|(_, answer)| answer.is_err()));
    // A probe may be silent for 28 s, and each follows the one before after 3 s or more.
    let asked = u64::try_from(world.source.requests().len()).unwrap();
    assert!(asked <= 1 + began.elapsed().as_secs() / 3, "{asked} in {:?}", began.elapsed());
    assert!(world.fetcher.stats().requests_in_flight <= 10, "{}", world.fetcher.stats().requests_in_flight);
}

#[tokio::test(start_paused = true)]
async fn a_long_read_survives_an_outage_that_begins_late_in_it() {
    let files = Files::new(1);
    let world = files.world();
    // Bytes arrive for twelve seconds, then the registry restarts.
    let broken = Reply { part: 50, pace: Duration::from_secs(1), ..Then::Break(600, Fault::Unavailable).into() };
    world.source.script([broken]);
    world.source.always(refused(Duration::ZERO));
    let (read, ()) = tokio::join!(files.read(&world, 0), async {
        sleep(Duration::from_secs(20)).await;
        world.source.calm();
    });
    assert_eq!(read, Ok(()));
}

/// Not with a paused clock: it gives simultaneous events the same time.
#[tokio::test]
async fn a_source_that_breaks_off_after_its_first_bytes_is_asked_again() {
    let files = Files::new(1);
    let world = files.world();
    world.source.script([Then::Break(100, Fault::Unavailable).into()]);
    assert_eq!(files.read(&world, 0).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_has_had_the_source_asked_since_it_began() {
    let files = Files::new(40);
    let world = files.world();
    world.source.always(refused(Duration::from_millis(300)));
    assert!(files.read(&world, 0).await.is_err());
    for number in 1..40 {
        let asked = world.source.requests().len();
        assert!(files.read(&world, number).await.is_err());
        assert!(world.source.requests().len() > asked, "file {number} failed on old news");
    }
}

#[tokio::test(start_paused = true)]
async fn in_a_long_outage_readers_share_one_probe_and_fail_soon() {
    let files = Files::new(200);
    for away in [refused(Duration::from_millis(700)), Then::Never.into()] {
        let world = files.world();
        world.source.always(away);
        assert!(files.read(&world, 0).await.is_err());
        let (began, asked) = (Instant::now(), world.source.requests().len());
        let reads = join_all((1..200).map(|number| files.read(&world, number))).await;
        assert!(reads.iter().all(Result::is_err), "{away:?}");
        assert!(began.elapsed() <= Duration::from_secs(9), "{:?} for {away:?}", began.elapsed());
        assert!(world.source.requests().len() - asked <= 2, "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_thousand_readers_get_an_answer_within_the_deadline_whatever_the_source_does() {
    const READERS: usize = 2_000;
    let files = Files::new(READERS);
    let seconds = Duration::from_secs;
    let slow = |then: Then, latency| Reply { latency, ..then.into() };
    for reply in [
        Then::Never.into(),
        Then::Hang(0).into(),
        Then::Hang(100).into(),
        Then::End(100).into(),
        Then::Garbage.into(),
        slow(Then::Garbage, seconds(12)),
        refused(Duration::ZERO),
        refused(seconds(5)),
        refused(seconds(21)),
        refused(seconds(27)),
        slow(Then::Refuse(Fault::Timeout), seconds(29)),
        slow(Then::Refuse(Fault::Denied), seconds(20)),
        slow(Then::Break(500, Fault::Unavailable), seconds(10)),
        Reply { part: 10, pace: seconds(9), ..Then::Bytes.into() },
    ] {
        let world = files.world();
        world.source.always(reply);
        // All at once. Then readers that arrive one after the other, and find a source that has been failing for a while.
        let together = join_all((0..READERS).map(|number| files.read_through_kernel(&world, number))).await;
        let late = (0..100).map(|number| {
            let (files, world) = (&files, &world);
            async move {
                sleep(Duration::from_millis(377) * number).await;
                files.read_through_kernel(world, usize::try_from(number).unwrap()).await
            }
        });
        let late = join_all(late).await;
        let all = together.iter().chain(&late);
        let longest = all.map(|(_, waited)| *waited).max().unwrap();
        assert!(longest <= PROMISE, "{longest:?} for {reply:?}");
        assert!(together.iter().all(|(answer, _)| answer.is_err()), "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_joined_a_failed_request_makes_its_own() {
    let files = Files::new(1);
    let world = files.world();
    world.source.script([Reply { latency: Duration::from_secs(15), ..Then::Refuse(Fault::Timeout).into() }]);
    let (first, second) = tokio::join!(files.read(&world, 0), async {
        sleep(Duration::from_secs(14)).await;
        files.read(&world, 0).await
    });
    assert!(first.unwrap_err().contains("scripted Timeout"));
    assert_eq!(second, Ok(()), "it began when the source was about to be back");
}

#[tokio::test(start_paused = true)]
async fn the_second_request_of_the_kernel_is_answered_at_once_and_a_later_one_asks_again() {
    let files = Files::new(1);
    for away in [Then::Refuse(Fault::Unavailable), Then::Refuse(Fault::Denied), Then::Never] {
        let world = files.world();
        world.source.always(away.into());
        assert!(files.read(&world, 0).await.is_err());
        let (began, asked) = (Instant::now(), world.source.requests().len());
        assert!(files.read(&world, 0).await.is_err());
        assert_eq!((began.elapsed(), world.source.requests().len()), (Duration::ZERO, asked), "{away:?}");
        world.source.calm();
        sleep(Config::default().outage_memo).await;
        assert_eq!(files.read(&world, 0).await, Ok(()), "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_source_holds_no_room() {
    let (dead, alive) = (Files::new(1), Files::with(1_000, 2));
    // Room for one piece.
    let config = Config { host_bytes: 1024, image_bytes: 1024, ..Config::default() };
    let world = World::with(&[&dead.layer], MemoryStore::default(), config);
    world.source.always(refused(Duration::ZERO));
    let source = std::sync::Arc::new(tarpon_testkit::source::MemorySource::new([alive.layer.bytes.clone()]));
    let table = tarpon_testkit::source::table_of(&[&alive.layer]);
    let _other = world.fetcher.add_image(table, source, "alive:latest");
    let (failed, read) = tokio::join!(dead.read(&world, 0), async {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        (world.read(&alive.files[1].0, 0, 1000).await.map(|bytes| bytes == alive.files[1].1), began.elapsed())
    });
    assert!(failed.is_err());
    assert_eq!(read, (Ok(true), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn no_reader_waits_for_a_source_while_another_image_has_the_object() {
    let files = Files::new(2);
    let world = files.world();
    world.source.always(refused(Duration::ZERO));
    let layer = files.in_another_layer();
    let source = std::sync::Arc::new(tarpon_testkit::source::MemorySource::new([layer.bytes.clone()]));
    let _other = world.fetcher.add_image(tarpon_testkit::source::table_of(&[&layer]), source, "other:latest");
    let began = Instant::now();
    for number in 0..2 {
        assert_eq!(files.read(&world, number).await, Ok(()));
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn whichever_of_two_sources_is_back_first_is_asked() {
    let files = Files::new(2);
    for first_is_back in [true, false] {
        let world = files.world();
        let other = std::sync::Arc::new(tarpon_testkit::source::MemorySource::new([files.layer.bytes.clone()]));
        let table = tarpon_testkit::source::table_of(&[&files.layer]);
        let _other = world.fetcher.add_image(table, other.clone(), "other:latest");
        world.source.always(refused(Duration::ZERO));
        other.always(refused(Duration::ZERO));
        let began = Instant::now();
        let (read, ()) = tokio::join!(files.read(&world, 0), async {
            sleep(Duration::from_secs(5)).await;
            if first_is_back { world.source.calm() } else { other.calm() }
        });
        assert_eq!(read, Ok(()), "the first: {first_is_back}");
        assert!(began.elapsed() <= Duration::from_secs(7), "{:?}, the first: {first_is_back}", began.elapsed());
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_one_line_of_the_journal_however_many_probes_fail() {
    let files = Files::new(3);
    let world = files.world();
    world.source.always(refused(Duration::ZERO));
    for number in 0..3 {
        assert!(files.read(&world, number).await.is_err());
    }
    world.source.calm();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(files.read(&world, 0).await, Ok(()));
    let events = world.image.journal().account().events;
    let rests: Vec<u64> = events
        .iter()
        .filter(|noted| matches!(noted.event, Event::SourceRests { .. } | Event::SourceAnswers))
        .map(|noted| noted.times)
        .collect();
    assert_eq!(rests, [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_is_streamed_waits_for_its_source_as_well() {
    let content = noise(7, 20_000);
    let mut packer = Packer::new(Form::GzipStream);
    let object = packer.object(&content, 1 << 20);
    let layer = packer.finish();
    let world = World::new(&[&layer]);
    world.source.always(refused(Duration::from_millis(700)));
    let (read, ()) = tokio::join!(world.read(&object, 0, 20_000), async {
        sleep(Duration::from_secs(3)).await;
        world.source.calm();
    });
    assert_eq!(read.unwrap(), content);
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_reader_of_what_a_prefetch_could_not_fetch_waits_as_others_do() {
    let files = Files::new(4);
    let world = files.world();
    world.source.always(refused(Duration::ZERO));
    for (object, _) in &files.files {
        world.fetcher.prefetch(object, 0..1000);
    }
    world.quiet().await;
    assert!(!world.source.requests().is_empty(), "the prefetch has failed");
    let reads = (0..4).map(|number| files.read(&world, number));
    let (answers, ()) = tokio::join!(join_all(reads), async {
        sleep(Duration::from_secs(3)).await;
        world.source.calm();
    });
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_ends_while_it_still_answers_over_old_connections_fails_no_read() {
    // In the time of the second one, others get bytes.
    for latency in [0, 150].map(Duration::from_millis) {
        let files = Files::new(3);
        let world = files.world();
        // The first response takes ten seconds to arrive.
        world.source.script([Reply { part: 10, pace: Duration::from_millis(100), ..Reply::default() }]);
        let (slow, (answers, requests), ()) = tokio::join!(
            files.read(&world, 0),
            async {
                sleep(Duration::from_secs(1)).await;
                world.source.always(refused(latency));
                let before = world.source.requests().len();
                let answers = tokio::join!(files.read(&world, 1), files.read(&world, 2));
                (answers, world.source.requests().len() - before)
            },
            async {
                sleep(Duration::from_secs(4)).await;
                world.source.calm();
            }
        );
        assert!(slow.is_ok() && answers.0.is_ok() && answers.1.is_ok(), "{slow:?} {answers:?}");
        assert!(requests <= 20, "{requests} requests in three seconds");
        world.quiet().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_after_a_slow_response_begins_with_its_error() {
    let files = Files::new(1);
    let world = files.world();
    world.source.script([refused(Duration::from_secs(8))]);
    world.source.always(refused(Duration::ZERO));
    let (read, ()) = tokio::join!(files.read(&world, 0), async {
        sleep(Duration::from_secs(13)).await;
        world.source.calm();
    });
    assert_eq!(read, Ok(()), "the outage took five seconds");
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_refuses_one_reader_for_longer_than_an_outage_may_last_fails_it() {
    let files = Files::new(2);
    let world = files.world();
    world.source.script([Reply { part: 1, pace: Duration::from_millis(25), ..Reply::default() }]);
    let (slow, (refused, took)) = tokio::join!(files.read(&world, 0), async {
        sleep(Duration::from_secs(1)).await;
        world.source.always(refused(Duration::ZERO));
        let began = Instant::now();
        (files.read(&world, 1).await, began.elapsed())
    });
    assert!(slow.is_ok() && refused.is_err(), "{slow:?} {refused:?}");
    assert!((10..=12).contains(&took.as_secs()), "{took:?}");
    world.quiet().await;
}

/// A source from which one read takes ten seconds, and which refuses all others: no outage of it is known.
async fn refuses_others(files: &Files, world: &World) -> Result<(), String> {
    world.source.script([Reply { part: 10, pace: Duration::from_millis(100), ..Reply::default() }]);
    tokio::join!(files.read(world, 0), async {
        sleep(Duration::from_millis(500)).await;
        world.source.always(refused(Duration::from_millis(150)));
    })
    .0
}

#[tokio::test(start_paused = true)]
async fn another_source_of_the_layer_is_asked_before_one_that_refuses_is_asked_again() {
    let files = Files::new(2);
    let world = files.world();
    let other = std::sync::Arc::new(tarpon_testkit::source::MemorySource::new([files.layer.bytes.clone()]));
    let table = tarpon_testkit::source::table_of(&[&files.layer]);
    let _other = world.fetcher.add_image(table, other, "other:latest");
    let (slow, took) = tokio::join!(refuses_others(&files, &world), async {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        files.read(&world, 1).await.unwrap();
        began.elapsed()
    });
    assert!(slow.is_ok() && took < Duration::from_millis(500), "{took:?}");
    world.quiet().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_turns_to_another_image_while_a_source_refuses() {
    let files = Files::new(2);
    let world = files.world();
    let layer = files.in_another_layer();
    let source = std::sync::Arc::new(tarpon_testkit::source::MemorySource::new([layer.bytes.clone()]));
    let _other = world.fetcher.add_image(tarpon_testkit::source::table_of(&[&layer]), source, "other:latest");
    let (slow, took) = tokio::join!(refuses_others(&files, &world), async {
        sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        files.read(&world, 1).await.unwrap();
        began.elapsed()
    });
    assert!(slow.is_ok() && took < Duration::from_millis(500), "{took:?}");
    world.quiet().await;
}

/// What an image that nothing reads knows of its source is how the last reader found it.
#[tokio::test(start_paused = true)]
async fn an_outage_of_which_nothing_was_heard_for_a_while_counts_as_a_new_one() {
    let files = Files::new(3);
    let world = files.world();
    world.source.always(refused(Duration::from_millis(1)));
    assert!(files.read(&world, 0).await.is_err());
    world.quiet().await;
    // It may have been back in the meantime. It is away when the next reader comes, for a few seconds.
    sleep(Duration::from_secs(60)).await;
    let (answer, ()) = tokio::join!(files.read(&world, 1), async {
        sleep(Duration::from_secs(5)).await;
        world.source.calm();
    });
    assert_eq!(answer, Ok(()));
}
