//! Images to convert, and checks of what a conversion left in a registry or layout.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Value, json};
use tarpon_engine::oci::{Digest, Document, Platform, media_type};
use tarpon_engine::{
    Conversion, ConvertRequest, Error, ImageRequest, Item as Found, LayerFormat, Pull, Silent, TreeView, convert,
};
use tarpon_registry::serve::Contents;
use tarpon_registry::{AccessOptions, Repository};
use tarpon_testkit::fixture::Fixture;
use tarpon_testkit::layers::{Image, ImageBuilder, Item, Layer};

use crate::support;

pub(crate) const FORMATS: [LayerFormat; 2] = [LayerFormat::Estargz, LayerFormat::ZstdChunked];

/// A conversion of `app:v1`.
pub(crate) fn request(fixture: &Fixture, to: &str, format: LayerFormat) -> ConvertRequest {
    ConvertRequest {
        jobs: Some(2),
        platforms: only("linux/amd64"),
        ..ConvertRequest::new(fixture.name("app:v1"), to, format)
    }
}

/// Converts `app:v1`.
pub(crate) async fn convert_app(fixture: &Fixture, to: &str, format: LayerFormat) -> Result<Conversion, Error> {
    run(&request(fixture, to, format)).await
}

/// `tag` of the layout in the folder.
pub(crate) fn layout(fixture: &Fixture, tag: &str) -> String {
    format!("oci:{}:{tag}", fixture.layout().display())
}

/// All names of the image with their entries.
pub(crate) async fn tree(image: &str) -> Vec<(String, Found)> {
    let fixture = Fixture::new();
    let engine = support::engine(&fixture.path("store"));
    let request = ImageRequest { pull: Pull::Always, ..support::request(image) };
    let prepared = engine.prepare(&request, &Silent).await.unwrap();
    let mut all = Vec::new();
    walk(&engine.open_tree(&prepared).unwrap(), "", &mut all);
    all
}

async fn repository(image: &str) -> Repository {
    tarpon_registry::open(&image.parse().unwrap(), &AccessOptions::default()).await.unwrap()
}

/// The manifest or index that a name refers to.
pub(crate) async fn document(image: &str) -> Value {
    match repository(image).await.root(&Platform::host()).await.unwrap() {
        Document::Manifest(manifest) => serde_json::from_slice(&manifest.bytes).unwrap(),
        Document::Index(index) => serde_json::from_slice(&index.bytes).unwrap(),
    }
}

/// The blob that a descriptor of `image` names.
pub(crate) async fn blob(image: &str, descriptor: &Value) -> Bytes {
    let digest: Digest = descriptor["digest"].as_str().unwrap().parse().unwrap();
    let blob = tarpon_engine::oci::Blob { digest, size: descriptor["size"].as_u64().unwrap() };
    let blobs = repository(image).await.blobs();
    let mut pieces = blobs.read(blob, 0..blob.size).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(Digest::of(&bytes), digest);
    bytes.into()
}

/// Whether a name does not exist.
pub(crate) async fn is_absent(image: &str) -> bool {
    match tarpon_registry::open(&image.parse().unwrap(), &AccessOptions::default()).await {
        Ok(repository) => repository.root(&Platform::host()).await.is_err(),
        Err(_) => true,
    }
}

/// Files of the layout's own folder: no temporary ones are left.
pub(crate) fn files_of_layout(fixture: &Fixture) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(fixture.layout()) else { return Vec::new() };
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

pub(crate) async fn run(request: &ConvertRequest) -> Result<Conversion, Error> {
    convert(request, Arc::new(Silent)).await
}

pub(crate) fn only(platform: &str) -> tarpon_engine::Platforms {
    tarpon_engine::Platforms::These(vec![platform.parse().unwrap()])
}

fn walk(tree: &TreeView, path: &str, all: &mut Vec<(String, Found)>) {
    for item in tree.list(path.as_bytes()).unwrap() {
        let below = format!("{path}/{}", String::from_utf8_lossy(&item.name));
        let is_directory = item.inode.kind == tarpon_tree::Kind::Directory;
        all.push((below.clone(), item));
        if is_directory {
            walk(tree, &below, all);
        }
    }
}

/// Two layers with some of everything.
pub(crate) fn image() -> Image {
    image_for("amd64")
}

pub(crate) fn image_for(architecture: &str) -> Image {
    let noise: Vec<u8> = (0..300_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect();
    let below = [
        Item::directory("etc").mode(0o755),
        Item::file("etc/hello", "hello\n").owner(7, 8),
        Item::file("etc/gone", "gone"),
        Item::directory("opt"),
        Item::file("opt/hidden", "hidden"),
        Item::file("noise", &noise).xattr("user.note", b"\x00\xff"),
        Item::file("target", "linked to"),
        Item::hard_link("linked", "target"),
        Item::file("empty", ""),
    ];
    let above = [
        Item::whiteout("etc/gone"),
        Item::opaque("opt"),
        Item::file("opt/shown", "shown"),
        Item::symlink("link", "etc/hello"),
        Item::char_device("null", 1, 3),
        Item::fifo("pipe"),
        Item::file("suid", "#!").mode(0o4755),
        Item::file("architecture", architecture),
    ];
    let builder = ImageBuilder::new().layer(Layer::gzip(&below)).layer(Layer::gzip(&above)).architecture(architecture);
    builder.config("Entrypoint", json!(["/suid"])).config("Labels", json!({ "b": "2", "a": "1" })).build()
}

/// An index of `images` and an attestation.
pub(crate) fn index(contents: &mut Contents, images: &[(&str, &Image)]) {
    let mut entries: Vec<Value> = Vec::new();
    for (architecture, image) in images {
        image.add_to(contents, &format!("of-{architecture}"), "v1");
        entries.push(json!({
            "mediaType": media_type::OCI_MANIFEST, "digest": image.digest().to_string(), "size": image.manifest.len(),
            "platform": { "os": "linux", "architecture": architecture, "os.features": ["kept"] },
            "annotations": { "of": architecture },
        }));
    }
    entries.push(json!({
        "mediaType": media_type::OCI_MANIFEST, "digest": Digest::of(b"attestation").to_string(), "size": 7,
        "platform": { "os": "unknown", "architecture": "unknown" },
        "annotations": { "vnd.docker.reference.type": "attestation-manifest" },
    }));
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": entries, "annotations": { "whole": "kept" },
    });
    contents.add_manifest(Some(("app", "v1")), media_type::OCI_INDEX, index.to_string());
}

/// `image` in Docker's format: schema 2.
pub(crate) fn docker(image: &Image) -> Vec<u8> {
    let manifest = String::from_utf8(image.manifest.clone()).unwrap();
    let words = [
        (media_type::OCI_MANIFEST, media_type::DOCKER_MANIFEST),
        (media_type::OCI_CONFIG, "application/vnd.docker.container.image.v1+json"),
        ("application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip"),
    ];
    words.iter().fold(manifest, |text, (oci, docker)| text.replace(oci, docker)).into_bytes()
}

/// `image` with another manifest, made by `change`.
pub(crate) fn changed(image: &Image, change: impl FnOnce(&mut Value)) -> Image {
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    change(&mut manifest);
    Image { manifest: manifest.to_string().into_bytes(), ..image.clone() }
}

/// A layer that contradicts its diffID.
pub(crate) fn with_wrong_diff_id() -> Image {
    let mut layer = Layer::gzip(&[Item::file("file", "content")]);
    layer.diff_id = Digest::of(b"something else");
    ImageBuilder::new().layer(layer).build()
}

/// The name of the first entry of a gzip-compressed tar.
pub(crate) fn first_name(blob: &[u8]) -> String {
    use std::io::Read;
    let mut name = [0; 100];
    flate2::read::MultiGzDecoder::new(blob).read_exact(&mut name).unwrap();
    String::from_utf8(name.into_iter().take_while(|byte| *byte != 0).collect()).unwrap()
}
