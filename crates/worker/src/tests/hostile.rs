//! Whatever a worker sends, its user gets an error and allocates nothing by its claims.

use std::time::Duration;

use futures::StreamExt as _;
use tarpon_blob::{Fault, SourceError};
use tarpon_images::Access;
use tarpon_images::preparer::{Preparer as _, Task};
use tarpon_images::sources::Sources as _;
use tarpon_images::{ErrorKind, ImageRequest, Silent};
use tarpon_layer::Codec;
use tarpon_layer::decode::DecodeError;
use tarpon_oci::{Blob, Digest, Platform};

use super::roles::command;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_of_another_size_is_an_error_and_not_allocated() {
    for role in ["decodes_to_another_size", "ends_at_once"] {
        let decoder = Workers::new(command(role)).decoder();
        let decode = move || decoder.chunk(Codec::Gzip, &[1; 100], 0, 1_000, &mut Vec::new());
        let error = tokio::task::spawn_blocking(decode).await.unwrap().unwrap_err();
        assert!(matches!(&error, DecodeError::Process { problem } if problem.contains("failed 6 times")), "{error}");
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
