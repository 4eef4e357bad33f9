//! Invariant: whatever bytes a registry and the hosts that it names send as responses, each operation ends within bounded
//! time and a bounded number of requests, with an error or with bytes that the responses have at the requested places. No
//! response makes the client send the user's password elsewhere than to the registry's host, or anything over plain HTTP.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tarpon_blob::BlobSource;
use tarpon_oci::{Blob, Digest, Platform, Reference};
use tarpon_registry::{CredentialSource, Credentials, Repository, open_with};
use tokio::time::Instant;

use super::http::{PASSWORD, REGISTRY, RawTransport, USER};

/// Size of the blob that is read. Its digest is of no concern: bytes are checked by their reader.
const BLOB_BYTES: u64 = 4_000;
/// Attempts, times the most requests of one attempt: registry, token, registry again, blob host, and both again; for each
/// body of a read, and each page of a list.
const REQUESTS: usize = 4 * 6 * 16;
/// Four broken bodies, each after a stall and a request's whole deadline; each page of a list is one request.
const TIME: Duration = Duration::from_secs(16 * (10 + 30) + 60);

/// Has the client do one operation with the responses in `data`: two bytes for the operation, then the responses,
/// separated by the byte 0x1e.
pub fn http_responses(data: &[u8]) {
    let [operation, options, responses @ ..] = data else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let transport = Arc::new(RawTransport::new(responses));
        let given = (options & 1 != 0).then(|| Credentials::from_pair(USER, PASSWORD));
        let source = CredentialSource::new(given, Vec::new());
        let reference: Reference = format!("{REGISTRY}/app:1").parse().expect("a reference");
        let repository = open_with(&reference, transport.clone(), source, true).expect("a repository");
        let started = Instant::now();
        let error = run(*operation, &repository, &transport).await.err();
        assert!(started.elapsed() <= TIME, "it took {:?}", started.elapsed());
        assert!(transport.requests() <= REQUESTS, "{} requests", transport.requests());
        if let Some(error) = error {
            assert!(!error.contains(char::is_control) && !error.contains(PASSWORD), "{error:?}");
        }
    });
}

async fn run(operation: u8, repository: &Repository, transport: &RawTransport) -> Result<(), String> {
    let blob = Blob { digest: Digest::of(b"blob"), size: BLOB_BYTES };
    let blobs = repository.blobs();
    match operation % 6 {
        0 => read(&*blobs, blob, 1_000..3_000, transport).await,
        1 => read(&*blobs, blob, 0..BLOB_BYTES, transport).await,
        2 => {
            let mut probed = blobs.probe(blob, 7).await.map_err(|error| error.to_string())?;
            let mut length = 0;
            while let Some(piece) = probed.next().await {
                length += piece.map_err(|error| error.to_string())?.len();
            }
            assert_eq!(length, 1);
            Ok(())
        }
        3 => resolve(repository, transport).await,
        4 => {
            let subject = Digest::of(b"subject");
            let found = repository.referrers(&subject, "application/x").await.map_err(|error| error.to_string())?;
            let served = transport.bodies();
            let is_served = |digest: &Digest| served.iter().any(|body| contains(body, digest.hex().as_bytes()));
            assert!(found.iter().all(|descriptor| is_served(&descriptor.digest)), "a referrer that was not listed");
            Ok(())
        }
        _ => {
            let digest = Digest::of(br#"{"schemaVersion":2}"#);
            let found = repository.manifest(&digest).await.map_err(|error| error.to_string())?;
            assert_eq!(Digest::of(&found), digest);
            Ok(())
        }
    }
}

/// Reads the range, and compares each byte with what the responses have at its place.
async fn read(blobs: &dyn BlobSource, blob: Blob, range: Range<u64>, transport: &RawTransport) -> Result<(), String> {
    let mut stream = blobs.read(blob, range.clone()).await.map_err(|error| error.to_string())?;
    let (mut read, mut outcome) = (Vec::new(), Ok(()));
    while let Some(piece) = stream.next().await {
        match piece {
            Ok(piece) => read.extend_from_slice(&piece),
            Err(error) => outcome = Err(error.to_string()),
        }
    }
    let length = usize::try_from(range.end - range.start).expect("small");
    assert!(read.len() <= length && (outcome.is_err() || read.len() == length), "{} bytes", read.len());
    let served = transport.served();
    let mut number = 0;
    for (place, byte) in (range.start..).zip(&read) {
        while served.get(number).is_some_and(|response| response.at(place) != Some(*byte)) {
            number += 1;
        }
        assert!(number < served.len(), "no response has the byte {byte} at {place}");
    }
    outcome
}

async fn resolve(repository: &Repository, transport: &RawTransport) -> Result<(), String> {
    let platform: Platform = "linux/amd64".parse().expect("a platform");
    let image = repository.resolve(&platform).await.map_err(|error| error.to_string())?;
    let is_served = |digest: &Digest| transport.bodies().iter().any(|body| Digest::of(body) == *digest);
    assert!(is_served(image.manifest.digest()), "a manifest that was not served");
    assert!(image.index_digest.as_ref().is_none_or(is_served), "an index that was not served");
    repository.config(&image).await.map_err(|error| error.to_string())?;
    assert!(is_served(&image.manifest.config.digest), "a config that was not served");
    Ok(())
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
