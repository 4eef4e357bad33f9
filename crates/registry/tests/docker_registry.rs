//! Pushing to docker-registry itself, where it is installed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{World, blob, blob_bytes, contents};
use futures::{StreamExt as _, stream};
use http::Request;
use tarpon_oci::media_type::OCI_MANIFEST;
use tarpon_oci::{Artifact, Blob, Digest, EMPTY_CONFIG, NewArtifact, NewDescriptor, Platform, Reference, Source};
use tarpon_registry::{AccessOptions, Destination, Repository, open, open_destination};

const KIND: &str = "application/vnd.example.index.v1";

/// An empty registry, which ends when this is dropped.
struct Registry {
    process: Child,
    host: String,
    folder: tempfile::TempDir,
}

impl Registry {
    /// `None` if docker-registry is not installed.
    async fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = format!("127.0.0.1:{port}");
        let config = folder.path().join("config.yml");
        let data = folder.path().join("data");
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage:\n  filesystem: {{rootdirectory: {data:?}}}\nhttp: {{addr: {host:?}}}\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).env("OTEL_TRACES_EXPORTER", "none");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = match command.spawn() {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => panic!("docker-registry: {error}"),
        };
        let registry = Self { process, host, folder };
        let end = Instant::now() + Duration::from_secs(30);
        // A connection shows that it listens. The client pauses after a failed attempt.
        while registry.destination("ready").has_blob(blob()).await.is_err() {
            assert!(Instant::now() < end, "docker-registry does not answer at {}", registry.host);
        }
        Some(registry)
    }

    fn source(&self, name: &str) -> Source {
        format!("{}/{name}", self.host).parse().unwrap()
    }

    fn options(&self) -> AccessOptions {
        // An auth file of our own, so that the user's is not read.
        AccessOptions { authfiles: vec![self.folder.path().join("auth.json")], ..AccessOptions::default() }
    }

    fn destination(&self, name: &str) -> Destination {
        open_destination(&self.source(name), &self.options()).unwrap()
    }

    async fn repository(&self, name: &str) -> Repository {
        open(&self.source(name), &self.options()).await.unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

macro_rules! registry {
    () => {
        match Registry::start().await {
            Some(registry) => registry,
            None => {
                println!("skipped: there is no docker-registry here");
                return;
            }
        }
    };
}

async fn body(path: &str) -> Bytes {
    let request = Request::get(path).body(Bytes::new()).unwrap();
    let answer = contents().answer(&request).await;
    let pieces: Vec<_> = answer.into_body().map(Result::unwrap).collect().await;
    pieces.concat().into()
}

/// Pushes the image of [`contents`], its layer as a stream.
async fn push_image(destination: &Destination) -> Digest {
    let manifest = body("/v2/app/manifests/1").await;
    let image = tarpon_oci::Manifest::parse(tarpon_oci::Verified::seal(manifest.clone())).unwrap();
    let config = body(&format!("/v2/app/blobs/{}", image.config.digest)).await;
    assert_eq!(destination.push_bytes(config).await.unwrap(), image.config.blob());
    let pieces: Vec<_> = blob_bytes().chunks(9_999).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    assert_eq!(destination.push_stream(stream::iter(pieces).boxed()).await.unwrap(), blob());
    destination.push_manifest(OCI_MANIFEST, manifest, destination.tag()).await.unwrap()
}

#[tokio::test]
async fn an_image_and_an_artifact_about_it_are_pushed_and_found() {
    let registry = registry!();
    let destination = registry.destination("app:1");
    assert!(!destination.has_blob(blob()).await.unwrap());
    let pushed = push_image(&destination).await;
    assert!(destination.has_blob(blob()).await.unwrap());
    let repository = registry.repository("app:1").await;
    let image = repository.resolve(&Platform::host()).await.unwrap();
    assert_eq!(image.manifest.digest(), &pushed);
    repository.config(&image).await.unwrap();

    assert!(repository.referrers(&pushed, KIND).await.unwrap().is_empty());
    destination.push_bytes(EMPTY_CONFIG.into()).await.unwrap();
    let layer = destination.push_bytes("an index".into()).await.unwrap();
    let size = image.manifest.bytes.len() as u64;
    let artifact = NewArtifact {
        artifact_type: KIND.to_owned(),
        layers: vec![NewDescriptor::new("application/x", layer)],
        annotations: Default::default(),
        subject: Some(NewDescriptor::new(&image.manifest.media_type, Blob { digest: pushed, size })),
    };
    let bytes = artifact.manifest().unwrap().into_inner();
    let digest = destination.push_manifest(OCI_MANIFEST, bytes, None).await.unwrap();
    let found = repository.referrers(&pushed, KIND).await.unwrap();
    assert_eq!(found.iter().map(|found| found.digest).collect::<Vec<_>>(), [digest]);
    let read = Artifact::parse(repository.manifest(&digest).await.unwrap()).unwrap();
    assert_eq!(read.layers[0].blob(), layer);
}

#[tokio::test]
async fn blobs_are_mounted_copied_and_streamed_large_and_empty() {
    let registry = registry!();
    let first = registry.destination("first/app");
    first.copy_blob(blob(), World::open().repository.blobs()).await.unwrap();
    let second = registry.destination("second/app");
    let from: Reference = format!("{}/first/app", registry.host).parse().unwrap();
    assert!(second.mount_blob(blob(), &from).await.unwrap());
    assert!(second.has_blob(blob()).await.unwrap());
    let missing = Blob { digest: Digest::of(b"missing"), size: 7 };
    assert!(!second.mount_blob(missing, &from).await.unwrap());
    let megabyte = Bytes::from(vec![42; 1 << 20]);
    let large = stream::iter((0..20).map(move |_| Ok(megabyte.clone())));
    let large = second.push_stream(large.boxed()).await.unwrap();
    assert_eq!(large.size, 20 << 20);
    assert!(second.has_blob(large).await.unwrap());
    let whole = second.push_bytes(vec![43; 5 << 20].into()).await.unwrap();
    assert!(second.has_blob(whole).await.unwrap());
    let empty = second.push_stream(stream::empty().boxed()).await.unwrap();
    assert!(second.has_blob(empty).await.unwrap());
}

#[tokio::test]
async fn a_refusal_of_the_registry_is_reported_in_one_line() {
    let registry = registry!();
    let destination = registry.destination("app:1");
    // The layer does not exist.
    let error =
        destination.push_manifest(OCI_MANIFEST, body("/v2/app/manifests/1").await, Some("1")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("PUT app/manifests/1") && text.contains("MANIFEST"), "{text}");
    assert!(!text.contains('\n'), "{text}");
}
