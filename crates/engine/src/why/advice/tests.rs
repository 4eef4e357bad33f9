//! Advice follows from figures: each piece is given for its own figures and for no others.

use std::path::PathBuf;

use tarpon_client::protocol::{BackfillStatus, LayerVerification, MountAccount, MountStatus};
use tarpon_fetch::{Account, Early, Noted};
use tarpon_mount::Writable;
use tarpon_oci::Digest;
use tarpon_store::LayerKind;

use super::super::summarize;
use super::*;

const MIB: u64 = 1 << 20;

fn layer(format: LayerKind, state: Verification) -> LayerVerification {
    LayerVerification { digest: Digest::of(format.as_str().as_bytes()), format, state }
}

/// A mount with a boot pack that waited for nothing.
fn account() -> MountAccount {
    let mount = MountStatus {
        image: "localhost:5000/app:v1".into(),
        manifest: Digest::of(b"manifest"),
        mountpoint: PathBuf::from("/mnt"),
        mode: "fuse".into(),
        writable: Writable::No,
        verification: vec![layer(LayerKind::Estargz, Verification::Toc)],
        podman: None,
        layers: None,
        backfill: None,
        fallbacks: Vec::new(),
        problem: None,
        damage: None,
        container: None,
        credentials_lost: false,
        alive: true,
        server: 1,
        image_bytes: 40 * MIB,
        prepared_bytes: 0,
        fetched_bytes: 0,
        requests: 0,
        failed_reads: 0,
        last_error: None,
        endpoints: Vec::new(),
        metrics: None,
        scrub: None,
        counters: serde_json::json!({}),
    };
    let journal = Account {
        loaded_unix_millis: 0,
        slowest: Vec::new(),
        waits: Vec::new(),
        events: Vec::new(),
        events_dropped: 0,
    };
    MountAccount { mount, has_pack: true, journal }
}

/// A wait with these counts and durations, at the start and later.
fn wait(waited_for: WaitedFor, (start_stalls, start_millis): (u64, u64), later: (u64, u64)) -> WaitSum {
    let (stalls, millis) = (start_stalls + later.0, start_millis + later.1);
    WaitSum { waited_for, layer: Some(Digest::of(b"layer")), stalls, millis, start_stalls, start_millis }
}

fn noted(event: Event) -> Noted {
    Noted { at_millis: 0, times: 3, event }
}

fn layers(sizes: &[(LayerKind, u64)]) -> Vec<LayerRecord> {
    let record = |(format, size): &(LayerKind, u64)| LayerRecord {
        digest: Digest::of(format.as_str().as_bytes()),
        size: *size,
        format: *format,
        verification: Verification::Toc,
        prefetch: None,
        index: None,
    };
    sizes.iter().map(record).collect()
}

/// The advice for this account.
fn advised(account: MountAccount, layers: &[LayerRecord]) -> Vec<Advice> {
    summarize(account, Vec::new(), layers).advice
}

/// As [`account`], with these waits.
fn waited(waits: &[WaitSum]) -> MountAccount {
    let mut account = account();
    account.journal.waits = waits.to_vec();
    account
}

fn only(advice: Vec<Advice>) -> (Topic, String) {
    let [Advice { about, text }] = <[Advice; 1]>::try_from(advice).expect("one piece of advice");
    (about, text)
}

#[test]
fn without_waits_there_is_no_advice() {
    assert_eq!(advised(account(), &layers(&[(LayerKind::Estargz, 40 * MIB)])), []);
    let short = waited(&[wait(WaitedFor::OwnRequest, (3, WORTH_MILLIS - 1), (3, WORTH_MILLIS - 1))]);
    assert_eq!(advised(MountAccount { has_pack: false, ..short }, &[]), [], "or hardly anything");
}

#[test]
fn waits_at_the_start_call_for_a_boot_pack_if_there_is_none() {
    let account = waited(&[
        wait(WaitedFor::OwnRequest, (7, 700), (0, 0)),
        wait(WaitedFor::OtherReader, (4, 400), (1, 50)),
        wait(WaitedFor::Local, (3, 300), (0, 0)),
    ]);
    let (about, text) = only(advised(MountAccount { has_pack: false, ..account.clone() }, &[]));
    assert_eq!(about, Topic::NoPack);
    assert!(text.starts_with("11 reads waited 1.1 s in all within 60 s"), "{text}");
    assert!(text.contains("`tarpon record --push localhost:5000/app:v1`"), "{text}");
    assert_eq!(advised(account.clone(), &[]), [], "it has one");
    let mut local = MountAccount { has_pack: false, ..account };
    local.mount.image = "oci:/srv/layout:v1".into();
    assert_eq!(advised(local, &[]), [], "nothing can be published beside it");
}

#[test]
fn waits_long_after_the_start_call_for_the_rest_of_the_image() {
    let mut account = waited(&[wait(WaitedFor::ReadAhead, (5, 90), (1, 2_000))]);
    let (about, text) = only(advised(account.clone(), &[]));
    assert_eq!(about, Topic::NotComplete);
    assert!(text.starts_with("1 read waited 2.0 s in all later than 60 s"), "{text}");
    account.mount.backfill = Some(BackfillStatus::begun(Backfill::Idle));
    assert_eq!(advised(account, &[]), []);
}

#[test]
fn a_layer_that_is_decoded_from_its_beginning_is_named_with_its_share() {
    let digest = Digest::of(b"layer");
    let with = |whole, rest| {
        let waits = [(WaitedFor::WholeLayer, whole), (WaitedFor::OwnRequest, rest)];
        let waits = waits.map(|(waited_for, millis)| wait(waited_for, (1, millis), (0, 0)));
        advised(waited(&waits), &[])
    };
    let (about, text) = only(with(720, 280));
    assert_eq!(about, Topic::WholeLayer);
    assert!(text.starts_with(&format!("72 % of the wait (0.7 s) was on layer {digest}")), "{text}");
    assert_eq!(with(199, 801), [], "others matter more");
    assert_eq!(with(99, 0), [], "it is not worth it");
}

#[test]
fn layers_that_were_downloaded_whole_call_for_an_index() {
    let with = |state: Verification, image: &str| {
        let mut account = account();
        account.mount.image = image.into();
        account.mount.verification.push(layer(LayerKind::TarGzip, state));
        advised(account, &layers(&[(LayerKind::Estargz, 10 * MIB), (LayerKind::TarGzip, 30 * MIB)]))
    };
    let (about, text) = only(with(Verification::DiffId, "localhost:5000/app:v1"));
    assert_eq!(about, Topic::NoIndex);
    assert!(text.starts_with("1 of 2 layers, 75 % of the image's bytes,"), "{text}");
    assert_eq!(with(Verification::IndexPinned, "localhost:5000/app:v1"), [], "an index said what is in it");
    assert_eq!(with(Verification::DiffId, "oci:/srv/layout"), [], "nothing is downloaded");
}

#[test]
fn a_pack_whose_bytes_were_not_read_was_of_another_start() {
    let with = |early: Early, events: Vec<Event>| {
        let mut account = account();
        account.mount.counters = serde_json::json!({ "early_trace": early });
        account.journal.events = events.into_iter().map(noted).collect();
        advised(account, &[])
    };
    let early = |used, unused, unknown| Early { brought: used + unused + unknown, used, unused, unknown };
    let (about, text) = only(with(early(MIB, 3 * MIB, 0), vec![Event::PackEnded]));
    assert_eq!(about, Topic::PackWaste);
    assert!(text.starts_with("75 % of what the boot pack brought"), "{text}");
    assert_eq!(with(early(MIB, 3 * MIB, 0), Vec::new()), [], "it is still coming");
    assert_eq!(with(early(3 * MIB, 2 * MIB, 0), vec![Event::PackEnded]), [], "most of it was read");
    assert_eq!(
        with(early(MIB, MIB - 1, 90 * MIB), vec![Event::PackEnded]),
        [],
        "what is not known is not held against it"
    );
}

#[test]
fn failures_are_reported_with_their_number_and_reason_the_gravest_first() {
    let mut account = account();
    let reason = |text: &str| text.to_owned();
    let events = [
        Event::PackGivenUp { reason: reason("404") },
        Event::StoreRefused { reason: reason("no room") },
        Event::SourceFailed { reason: reason("timed out") },
        Event::SourceRests { reason: reason("503") },
        Event::Distrusted { layer: Digest::of(b"layer"), reason: reason("it lies") },
    ];
    account.journal.events = events.into_iter().map(noted).collect();
    let advice = advised(account, &[]);
    let topics: Vec<Topic> = advice.iter().map(|advice| advice.about).collect();
    assert_eq!(topics, [Topic::Distrust, Topic::Source, Topic::Store, Topic::PackGivenUp]);
    for (advice, part) in advice.iter().zip(["it lies", "6 times, the last time with: 503", "3 times", "404"]) {
        assert!(advice.text.contains(part), "{}", advice.text);
    }
}
