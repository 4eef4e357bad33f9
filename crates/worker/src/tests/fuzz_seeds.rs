//! Runs the fuzz targets of the channels on their seeds.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tarpon_blob::{Fault, SourceError};
use tarpon_images::index::places::IndexPlace;
use tarpon_images::preparer::Task;
use tarpon_images::{Access, Error, ErrorKind, LayerLimits, LayerPlan, LayerWay, RegistriesChoice, access};
use tarpon_layer::Codec;
use tarpon_oci::{Blob, Digest};
use tarpon_registry::{Endpoint, EndpointAccount, EndpointCounts, Stats};
use tarpon_testkit::fuzz;
use tarpon_testkit::layers::{gzip, zstd};
use zeroize::Zeroizing;

use crate::chunk_call::Call;
use crate::event;
use crate::message::{
    Action, Answer, BlobRequest, Control, Event, Failure, ImageName, IndexName, Job, PlaceName, Question, Setup, Step,
    StepDone, Totals, VERSION, Work, encode,
};

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/fuzz").join(target)
}

fn replay(name: &str, target: fn(&[u8])) {
    let seeds: Vec<_> = std::fs::read_dir(folder(name)).unwrap().collect();
    assert!(seeds.len() >= 10, "{name}: {} seeds", seeds.len());
    for seed in seeds {
        let seed = std::fs::read(seed.unwrap().path()).unwrap();
        target(&seed);
        // What a channel that breaks off brings.
        (0..seed.len()).step_by(11).for_each(|end| target(&seed[..end]));
    }
}

#[test]
fn seeds_of_worker_requests_keep_the_invariant() {
    replay("worker_requests", fuzz::worker_requests);
}

#[test]
fn seeds_of_worker_responses_keep_the_invariant() {
    replay("worker_responses", fuzz::worker_responses);
}

fn frame(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [&[tag][..], &u32::try_from(bytes.len()).unwrap().to_le_bytes(), bytes].concat()
}

fn message(message: &impl Serialize) -> Vec<u8> {
    frame(1, &encode(message).unwrap())
}

fn part(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_le_bytes()[..], bytes].concat()
}

fn name() -> ImageName {
    let endpoint = |name: &str| Endpoint::of(name.parse().unwrap(), false);
    let hosts = vec![endpoint("mirror.test/app:1"), endpoint("registry.test/app:1")];
    let access =
        Access { registries: RegistriesChoice::Settled(hosts), cert_dir: Some("/c".into()), ..Access::default() };
    let settled = access::settle("registry.test/app:1", &access).unwrap();
    ImageName::of(3, "registry.test/app:1", &settled, &access)
}

fn blob(range: std::ops::Range<u64>) -> BlobRequest {
    BlobRequest {
        image: name(),
        blob: Blob { digest: Digest::of(b"b"), size: 1 << 20 },
        range,
        probe: false,
        distrusted: true,
    }
}

fn job(index: IndexName) -> Job {
    Job {
        work: Work::Task(Task::Prepare),
        store: "/s".into(),
        image: name(),
        source: "registry.test/app:1".into(),
        platform: "linux/amd64".into(),
        platform_named: true,
        index,
        places: vec![PlaceName {
            place: IndexPlace { source: "r.test/i/app:1".into(), demands: tarpon_policy::Demands::nothing() },
            name: Ok(name()),
        }],
        profile: None,
        starts: false,
        demands: tarpon_policy::Demands::nothing(),
        limits: LayerLimits { rate: NonZeroU64::new(1 << 20), may_stream: true },
    }
}

fn step(action: Action) -> Step {
    Step { store: "/s".into(), tenant: Some(Digest::of(b"t")), manifest: Digest::of(b"m"), action }
}

fn setup() -> Setup {
    Setup {
        version: VERSION,
        read: vec!["/etc/hosts".into()],
        reads_for_others: false,
        as_own_user: true,
        write: Vec::new(),
        connects: true,
        memory: 1 << 30,
        tier: None,
    }
}

/// Requests, behind the number of their channel and, but for single messages, the length of the pieces in which they arrive.
fn requests() -> Vec<Vec<u8>> {
    let text = b"all work and no play ".repeat(20);
    let chunk = |codec: Codec, encoded: &[u8], skip: u64, size: u64| {
        let mut request = Vec::new();
        Call { codec, used_bits: 0, window: &[], encoded, skip, size }.send(&mut request).unwrap();
        request
    };
    let pair = Some((Zeroizing::new("user".to_owned()), Zeroizing::new("password".to_owned())));
    let in_pieces = |channel: u8, bytes: Vec<u8>| [&[channel, 200][..], &bytes].concat();
    let single = |message: Vec<u8>| [&[1][..], &message].concat();
    let layer = |number: u8, encoded: &[u8]| {
        let (one, other) = encoded.split_at(encoded.len() / 2);
        in_pieces(3, [&[number][..], &part(one), &part(other), &part(&[])].concat())
    };
    vec![
        in_pieces(0, [message(&Control::Forget(7)), frame(3, &text), frame(2, b"head"), frame(4, b"")].concat()),
        single(encode(&setup()).unwrap()),
        single(encode(&Control::Forget(300)).unwrap()),
        single(encode(&blob(0..10)).unwrap()),
        single(encode(&job(IndexName::None)).unwrap()),
        single(encode(&job(IndexName::Pinned(Digest::of(b"i")))).unwrap()),
        single(encode(&job(IndexName::Locked(b"{}".to_vec()))).unwrap()),
        single(encode(&step(Action::Open)).unwrap()),
        single(encode(&step(Action::NoteLie(Digest::of(b"l")))).unwrap()),
        single(encode(&Answer::Credentials { id: 1, pair }).unwrap()),
        single(encode(&Answer::MayHave { id: 2, may: true }).unwrap()),
        in_pieces(2, [chunk(Codec::Gzip, &gzip(&text), 0, 420), chunk(Codec::Zstd, &zstd(&text), 7, 100)].concat()),
        in_pieces(2, [chunk(Codec::Gzip, b"none", 0, 9), chunk(Codec::Deflate, &text, 0, 1 << 40)].concat()),
        layer(0, &gzip(&text)),
        layer(1, &zstd(&text)),
        layer(0, &text),
        in_pieces(4, [message(&blob(5..9)), message(&blob(0..70_000)), message(&blob(0..80_000))].concat()),
        in_pieces(4, message(&blob(9..9))),
    ]
}

/// Responses, as [`requests`].
fn responses() -> Vec<Vec<u8>> {
    let counts = EndpointCounts { requests: 3, bytes: 400, wait_millis: 70, failures: 1 };
    let account = EndpointAccount {
        host: String::new(),
        counts,
        rest: Some(std::time::Duration::from_secs(4)),
        last_failure: Some("a\x1bb".into()),
    };
    let totals = Totals::of(Stats { requests: 3, bytes: 400 }, true, vec![EndpointAccount::default(), account]);
    let failure = Failure::of(&SourceError::new(Fault::Denied, "a\nb"), totals.clone());
    let error = event::encode_error(&Error::new(ErrorKind::Other, "prepare", "no\x1b").hint("try"));
    let [head, end, so_far] = [2, 4, 6].map(|tag| frame(tag, &encode(&totals).unwrap()));
    let digest = Digest::of(b"d");
    let in_pieces = |channel: u8, bytes: Vec<u8>| [&[channel, 200][..], &bytes].concat();
    let single = |message: Vec<u8>| [&[1][..], &message].concat();
    let range = |bytes: Vec<u8>| in_pieces(2, [&[10, 0][..], &bytes].concat());
    let chunk = |bytes: &[u8]| in_pieces(3, [&[10, 0][..], bytes].concat());
    let layers = vec![LayerPlan { number: 1, digest, size: 9, way: LayerWay::Stream }; 2];
    let done = Event::Done { manifest: digest, fallbacks: vec!["a".into()], requests: 1, bytes: 2 };
    let events = [
        Event::Resolved { manifest: digest, layers },
        Event::Received { layer: 1, bytes: 5 },
        Event::LayerDone { layer: 1 },
        Event::Note("a\tb".into()),
        Event::Pack { blob: Blob { digest, size: 8 }, place: Some(1) },
    ];
    let documents = Event::Documents { digest, manifest: b"{}".to_vec(), config: b"{}".to_vec(), index_digest: None };
    let opened = StepDone::Opened { layers: vec![digest], by_index: vec![digest], was_seen: true };
    let confined = Question::Confined { how: "a\nb".into(), limits_paths: true };
    let credentials = |image| message(&Question::Credentials { id: 9, image, endpoint: 1 });
    let may_have = |host: &str| message(&Question::MayHave { id: 8, image: 3, endpoint: 1, host: host.into() });
    vec![
        in_pieces(0, [frame(1, b"m"), frame(3, &[]), frame(3, &[7; 500]), frame(5, b"f")].concat()),
        single(encode(&failure).unwrap()),
        single(encode(&opened).unwrap()),
        single(encode(&StepDone::Lie("l".into())).unwrap()),
        single(encode(&StepDone::Failed(error.clone())).unwrap()),
        single(error.clone()),
        range([head.clone(), frame(3, &[1; 4]), frame(3, &[2; 6]), end.clone()].concat()),
        range([head.clone(), frame(3, &[1; 4]), so_far.clone(), frame(3, &[2; 6]), end.clone()].concat()),
        range([head.clone(), frame(3, &[1; 10]), so_far.clone(), end.clone()].concat()),
        range([head.clone(), frame(3, &[1; 11]), end.clone()].concat()),
        range([head.clone(), frame(3, &[1; 4]), end].concat()),
        range([head, so_far, frame(5, &encode(&failure).unwrap())].concat()),
        chunk(&[&[0, 10, 0, 0, 0][..], &[7; 10]].concat()),
        chunk(b"\x01\x05\0\0\0a\nb\xffc"),
        in_pieces(4, [part(&[1; 300]), part(&[2; 5]), part(&[])].concat()),
        in_pieces(4, [part(&[1; 300]), u32::MAX.to_le_bytes().to_vec(), part(b"broken\n")].concat()),
        in_pieces(5, [events.iter().flat_map(message).collect(), message(&done)].concat()),
        in_pieces(5, message(&documents)),
        in_pieces(5, message(&Event::Failed(error))),
        in_pieces(6, [message(&confined), message(&Question::Alive), credentials(3), credentials(4)].concat()),
        in_pieces(6, [may_have("registry.test"), may_have("evil.test")].concat()),
    ]
}

#[test]
#[ignore = "rewrites the first seeds in fixtures/fuzz"]
fn write_seeds() {
    for (target, seeds) in [("worker_requests", requests()), ("worker_responses", responses())] {
        std::fs::create_dir_all(folder(target)).unwrap();
        for (number, seed) in seeds.into_iter().enumerate() {
            std::fs::write(folder(target).join(format!("{number:03}")), seed).unwrap();
        }
    }
}
