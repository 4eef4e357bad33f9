//! Whatever a worker sends, its user gets an error and allocates nothing by its claims.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tarpon_blob::{Fault, SourceError};
use tarpon_images::Access;
use tarpon_images::preparer::{Preparer as _, Task};
use tarpon_images::sources::Sources as _;
use tarpon_images::{ErrorKind, ImageRequest, LayerPlan, LayerWay, Silent};
use tarpon_layer::Codec;
use tarpon_layer::decode::DecodeError;
use tarpon_oci::{Blob, Digest, Platform, limits};

use super::roles::command;
use crate::event;
use crate::frames::{self, Tag};
use crate::message::{Control, Event, JOB_BYTES, encode_up_to};
use crate::policy::{Policy, Watched};
use crate::process::Process;
use crate::slot::Tries;
use crate::supervise;
use crate::{WorkerPreparer, Workers};

const IMAGE: &str = "localhost:1/image:1";
/// What takes longer hangs.
const HUNG: Duration = Duration::from_secs(60);

async fn read(role: &str) -> Result<Vec<u8>, SourceError> {
    let workers = Workers::new(command(role));
    let image = workers.open_later(IMAGE, &Access::default()).unwrap();
    let blob = Blob { digest: Digest::of(b"blob"), size: 1_000 };
    let blobs = image.blobs();
    let mut stream = tokio::time::timeout(HUNG, blobs.read(blob, 100..200)).await.unwrap()?;
    let mut bytes = Vec::new();
    while let Some(piece) = tokio::time::timeout(HUNG, stream.next()).await.unwrap() {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_breaks_the_protocol_is_an_error_of_its_source() {
    for role in [
        "ends_at_once",
        "sends_too_much",
        "reports_and_sends_nothing",
        // Ten bytes each time: no progress that counts.
        "ends_too_early",
        "sends_unknown_frames",
        "claims_a_message_without_end",
        "sends_a_message_that_is_none",
    ] {
        let error = read(role).await.unwrap_err();
        assert_eq!(error.fault, Fault::Unavailable, "{role}: {error}");
        assert!(error.to_string().contains("the worker process has failed 6 times"), "{role}: {error}");
    }
}

#[tokio::test]
async fn a_worker_that_ended_before_its_first_request_is_reported_with_how_it_ended() {
    let process = Process::start(&["false".into()], &Policy::default().setup(), 0).unwrap();
    while process.open(Control::Questions).is_ok() {
        tokio::task::yield_now().await;
    }
    let process = Arc::new(process);
    supervise::begin(&process, supervise::Images::default(), Watched::nothing()).unwrap();
    let error = process.open(Control::Blobs).unwrap_err();
    let mut tries = Tries::default();
    let problem = std::iter::repeat_with(|| tries.failed(Some(&process), &error)).find_map(Result::err).unwrap();
    assert!(problem.ends_with("it ended (exit status: 1)"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_of_another_size_is_an_error_and_not_allocated() {
    for role in ["decodes_to_another_size", "ends_at_once"] {
        let decoder = Workers::new(command(role)).decoder();
        let decode = move || decoder.chunk(Codec::Gzip, &[1; 100], 0, 1_000, &mut Vec::new());
        let error = tokio::task::spawn_blocking(decode).await.unwrap().unwrap_err();
        assert!(matches!(&error, DecodeError::Process { problem } if problem.contains("failed 6 times")), "{error}");
    }
}

#[tokio::test]
async fn an_event_that_no_image_can_cause_is_an_error_and_not_reported() {
    let manifest = Digest::of(b"manifest");
    let layers = |count: usize, number: usize, size: u64| {
        let layer = LayerPlan { number, digest: manifest, size, way: LayerWay::Stream };
        Event::Resolved { manifest, layers: vec![layer; count] }
    };
    let done =
        |fallbacks: usize| Event::Done { manifest, fallbacks: vec![String::new(); fallbacks], requests: 0, bytes: 0 };
    let documents = |bytes: usize| Event::Documents {
        digest: manifest,
        manifest: Vec::new(),
        config: vec![0; bytes],
        index_digest: None,
    };
    let (layer, size) = (limits::LAYERS, limits::BLOB_BYTES);
    let number = u32::try_from(layer).unwrap();
    let config = usize::try_from(limits::MANIFEST_BYTES).unwrap();
    for (event, is_possible) in [
        (layers(2, layer - 1, size), true),
        // Two of these overflow where sizes are added up.
        (layers(2, 0, u64::MAX), false),
        (layers(1, 0, size + 1), false),
        (layers(1, layer, size), false),
        (layers(layer, 0, size), true),
        (layers(layer + 1, 0, size), false),
        (Event::Received { layer: number - 1, bytes: u64::MAX }, true),
        (Event::Received { layer: number, bytes: 1 }, false),
        (Event::LayerDone { layer: u32::MAX }, false),
        (Event::Pack { blob: Blob { digest: manifest, size: size + 1 }, place: None }, false),
        (Event::Pack { blob: Blob { digest: manifest, size: 1 }, place: Some(1 << 20) }, false),
        (done(2_000), true),
        // 200 MiB of empty lines.
        (done(8 << 20), false),
        (documents(config), true),
        (documents(config + 1), false),
    ] {
        let (mut channel, reported) = (Vec::new(), Cell::new(0));
        let event = encode_up_to(JOB_BYTES, &event).unwrap();
        frames::send(&mut channel, Tag::Message, &event).await.unwrap();
        let outcome = event::listen(&mut &channel[..], |_| reported.set(reported.get() + 1)).await;
        let last = matches!(outcome, Ok(Some(_)));
        let kind = event[0];
        assert_eq!(outcome.is_ok(), is_possible, "event of kind {kind}: {:?}", outcome.err());
        assert_eq!(reported.get() == 1 || last, is_possible, "event of kind {kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_while_it_prepares_an_image_is_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let preparer = WorkerPreparer::new(command("ends_at_once"));
    let request = ImageRequest::new(IMAGE, IMAGE.parse().unwrap(), Platform::host());
    let error = preparer.prepare(Task::Prepare, folder.path(), &request, None, &Silent).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Refused | ErrorKind::Other), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}
