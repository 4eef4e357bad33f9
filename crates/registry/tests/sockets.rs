//! The real transport against real loopback sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::{blob, blob_bytes, contents, given};
use futures::TryStreamExt as _;
use tarpon_blob::{Fault as Class, SourceError};
use tarpon_oci::{Platform, Source};
use tarpon_registry::{AccessOptions, Credentials, Repository, open};
use tarpon_testkit::registry::{Auth, FakeRegistry, Fault, PASSWORD};
use tarpon_testkit::server::TestServer;

struct Served {
    model: Arc<FakeRegistry>,
    server: TestServer,
    repository: Repository,
}

async fn serve(auth: Auth, presigned: Option<Duration>, credentials: Option<Credentials>) -> Served {
    let model = Arc::new(FakeRegistry::new(contents(), auth, presigned));
    let server = TestServer::start(model.clone()).await.unwrap();
    let source: Source = format!("{}/app:1", server.host()).parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // An auth file of our own, so that the user's is not read.
    let authfiles = vec![folder.path().join("auth.json")];
    let options = AccessOptions { credentials, authfiles, ..AccessOptions::default() };
    let repository = open(&source, &options).await.unwrap();
    Served { model, server, repository }
}

async fn read(repository: &Repository, range: Range<u64>) -> Result<(), SourceError> {
    let pieces: Vec<_> = repository.blobs().read(blob(), range.clone()).await?.try_collect().await?;
    let (start, end) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end).unwrap());
    assert!(pieces.concat() == blob_bytes()[start..end], "wrong bytes");
    Ok(())
}

#[tokio::test]
async fn an_image_is_resolved_and_read_over_plain_http_on_loopback() {
    let served = serve(Auth::Anonymous, None, None).await;
    let image = served.repository.resolve(&Platform::host()).await.unwrap();
    let config = served.repository.config(&image).await.unwrap();
    assert_eq!(config.diff_ids, [blob().digest]);
    read(&served.repository, 1_000..5_000).await.unwrap();
    read(&served.repository, 0..100_000).await.unwrap();
    let stats = served.repository.stats();
    assert_eq!(stats.requests, 4, "tag, config, two reads");
    assert!((104_000..106_000).contains(&stats.bytes), "{stats:?}");
}

#[tokio::test]
async fn tokens_and_presigned_addresses_work_over_sockets() {
    let auth = Auth::Bearer { anonymous: false, expires_in: Some(60) };
    let served = serve(auth, Some(Duration::from_secs(60)), Some(given(PASSWORD))).await;
    served.repository.resolve(&Platform::host()).await.unwrap();
    read(&served.repository, 1_000..5_000).await.unwrap();
    served.model.expire_signatures();
    served.model.revoke_tokens();
    read(&served.repository, 7..8).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_in_a_body_is_continued() {
    let served = serve(Auth::Anonymous, None, None).await;
    served.repository.resolve(&Platform::host()).await.unwrap();
    served.server.script([Fault::BreakAfter(20_000), Fault::Broken, Fault::BreakAfter(0)]);
    read(&served.repository, 0..100_000).await.unwrap();
    assert!(served.server.stats().bytes >= 100_000);
}

#[tokio::test]
async fn a_whole_blob_for_a_range_is_cut_off() {
    let served = serve(Auth::Anonymous, None, None).await;
    served.repository.resolve(&Platform::host()).await.unwrap();
    served.server.script([Fault::IgnoreRange]);
    read(&served.repository, 1_000..2_000).await.unwrap();
    assert!(served.repository.ignores_ranges());
    read(&served.repository, 1_000..2_000).await.unwrap();
    assert!(!served.repository.ignores_ranges());
}

#[tokio::test]
async fn a_port_without_listener_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let source: Source = format!("{address}/app:1").parse().unwrap();
    let repository = open(&source, &AccessOptions::default()).await.unwrap();
    let error = repository.resolve(&Platform::host()).await.unwrap_err();
    assert_eq!(error.fault(), Class::Unavailable);
    let text = error.to_string();
    assert!(text.contains("refused") && text.contains(&address.to_string()), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[tokio::test]
async fn a_missing_certificate_folder_is_reported_at_once() {
    let options = AccessOptions { cert_dir: Some("/nowhere/certs".into()), ..AccessOptions::default() };
    let error = open(&"quay.io/a".parse().unwrap(), &options).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("/nowhere/certs"), "{error}");
}
