//! OCI layouts and archives give the same images as the registry would.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{blob, blob_bytes};
use futures::TryStreamExt as _;
use serde_json::{Value, json};
use tarpon_blob::Fault as Class;
use tarpon_oci::{Compression, Digest, Platform, Source, media_type};
use tarpon_registry::serve::{Contents, Server};
use tarpon_registry::{AccessOptions, Error, Repository, ResolvedImage};

const REF_NAME: &str = "org.opencontainers.image.ref.name";

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(files.layout().join("blobs/sha256")).unwrap();
        files
    }

    fn layout(&self) -> PathBuf {
        self.folder.path().join("layout")
    }

    fn add_blob(&self, bytes: &[u8], media_type: &str) -> Value {
        let digest = Digest::of(bytes);
        fs::write(self.layout().join("blobs/sha256").join(digest.hex()), bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    fn add_image(&self, platform: &str, layer: &[u8]) -> Value {
        let (os, architecture) = platform.split_once('/').unwrap();
        let layer = self.add_blob(layer, Compression::None.layer_media_type());
        let config = json!({
            "os": os, "architecture": architecture,
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        });
        let config = self.add_blob(config.to_string().as_bytes(), media_type::OCI_CONFIG);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": config, "layers": [layer],
        });
        let mut descriptor = self.add_blob(manifest.to_string().as_bytes(), media_type::OCI_MANIFEST);
        descriptor["platform"] = json!({"os": os, "architecture": architecture});
        descriptor
    }

    fn write_index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.layout().join("index.json"), index.to_string()).unwrap();
        fs::write(self.layout().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    }

    fn tar(&self, name: &str, build: impl FnOnce(&mut tar::Builder<fs::File>)) -> PathBuf {
        let path = self.folder.path().join(name);
        let mut builder = tar::Builder::new(fs::File::create(&path).unwrap());
        build(&mut builder);
        builder.finish().unwrap();
        path
    }
}

fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({ REF_NAME: name });
    descriptor
}

fn append(builder: &mut tar::Builder<fs::File>, name: &str, bytes: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append_data(&mut header, name, bytes).unwrap();
}

async fn open(source: &str) -> Result<Repository, Error> {
    tarpon_registry::open(&source.parse::<Source>().unwrap(), &AccessOptions::default()).await
}

async fn resolve(source: &str, platform: &str) -> Result<(Repository, ResolvedImage), Error> {
    let repository = open(source).await?;
    let image = repository.resolve(&platform.parse::<Platform>().unwrap()).await?;
    Ok((repository, image))
}

/// Reads the first layer in odd ranges and whole, and returns its bytes.
async fn first_layer(repository: &Repository, image: &ResolvedImage) -> Vec<u8> {
    repository.config(image).await.unwrap();
    let layer = image.manifest.layers[0].blob();
    let read = async |range: std::ops::Range<u64>| {
        let pieces: Vec<bytes::Bytes> =
            repository.blobs().read(layer, range).await.unwrap().try_collect().await.unwrap();
        pieces.concat()
    };
    let whole = read(0..layer.size).await;
    assert_eq!(Digest::of(&whole), layer.digest);
    let middle = layer.size / 3;
    assert_eq!(read(middle..layer.size).await, whole[usize::try_from(middle).unwrap()..]);
    assert_eq!(read(0..1).await, whole[..1]);
    whole
}

fn shown(path: &Path) -> std::path::Display<'_> {
    path.display()
}

#[tokio::test]
async fn a_layout_of_one_image_needs_no_tag() {
    let files = Files::new();
    files.write_index(&[named(files.add_image("linux/amd64", &blob_bytes()), "v1")]);
    let layout = files.layout();
    for source in [format!("oci:{}", shown(&layout)), format!("oci:{}:v1", shown(&layout))] {
        let (repository, image) = resolve(&source, "linux/amd64").await.unwrap();
        assert_eq!(first_layer(&repository, &image).await, blob_bytes());
    }
    let error = resolve(&format!("oci:{}:v2", shown(&layout)), "linux/amd64").await.map(drop).unwrap_err();
    assert!(error.to_string().contains(r#"no image "v2"; available: "v1""#), "{error}");
    assert_eq!(error.fault(), Class::NotFound);
}

#[tokio::test]
async fn several_images_in_a_layout_are_distinguished_by_tag_digest_and_platform() {
    let files = Files::new();
    let amd64 = named(files.add_image("linux/amd64", b"amd64"), "v1");
    let arm64 = named(files.add_image("linux/arm64", b"arm64"), "v1");
    let other = named(files.add_image("linux/amd64", b"other"), "v2");
    files.write_index(&[amd64, arm64, other.clone()]);
    let layout = format!("oci:{}", shown(&files.layout()));
    let pick = async |source: String, platform: &str| {
        let (repository, image) = resolve(&source, platform).await?;
        Ok::<_, Error>(first_layer(&repository, &image).await)
    };
    assert_eq!(pick(format!("{layout}:v1"), "linux/amd64").await.unwrap(), b"amd64");
    assert_eq!(pick(format!("{layout}:v1"), "linux/arm64").await.unwrap(), b"arm64");
    assert_eq!(pick(layout.clone(), "linux/arm64").await.unwrap(), b"arm64");
    let by_digest = format!("{layout}@{}", other["digest"].as_str().unwrap());
    assert_eq!(pick(by_digest, "linux/amd64").await.unwrap(), b"other");
    let error = pick(layout, "linux/amd64").await.unwrap_err();
    assert!(error.to_string().contains("it contains several images, specify one"), "{error}");
}

#[tokio::test]
async fn an_archive_is_read_in_place_like_the_layout_in_it() {
    let files = Files::new();
    files.write_index(&[named(files.add_image("linux/amd64", &blob_bytes()), "v1")]);
    let layout = files.layout();
    let archive = files.tar("image.tar", |builder| builder.append_dir_all(".", &layout).unwrap());
    let (from_layout, image) = resolve(&format!("oci:{}", shown(&layout)), "linux/amd64").await.unwrap();
    drop(from_layout);
    let (repository, archived) = resolve(&format!("oci-archive:{}:v1", shown(&archive)), "linux/amd64").await.unwrap();
    assert_eq!(archived.manifest.digest(), image.manifest.digest());
    assert_eq!(first_layer(&repository, &archived).await, blob_bytes());
}

#[tokio::test]
async fn damaged_layouts_are_refused_clearly() {
    let files = Files::new();
    let descriptor = files.add_image("linux/amd64", &blob_bytes());
    files.write_index(&[descriptor]);
    let source = format!("oci:{}", shown(&files.layout()));
    let (repository, image) = resolve(&source, "linux/amd64").await.unwrap();
    let layer = files.layout().join("blobs/sha256").join(blob().digest.hex());
    fs::write(&layer, b"short").unwrap();
    let error = repository.blobs().read(blob(), 0..100).await.map(drop).unwrap_err();
    assert_eq!(error.fault, Class::BadData);
    fs::remove_file(&layer).unwrap();
    let error = repository.blobs().read(blob(), 0..100).await.map(drop).unwrap_err();
    assert_eq!(error.fault, Class::NotFound);
    let manifest = files.layout().join("blobs/sha256").join(image.manifest.digest().hex());
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[5] ^= 1;
    fs::write(&manifest, bytes).unwrap();
    let error = resolve(&source, "linux/amd64").await.map(drop).unwrap_err();
    assert!(error.to_string().contains("digest mismatch"), "{error}");
    assert!(open("oci:/nowhere/at/all").await.map(drop).unwrap_err().to_string().contains("index.json"));
}

/// An archive as `docker save` writes it: layers by path, a repeated one as a link.
fn docker_archive(files: &Files, layers: &[&[u8]]) -> PathBuf {
    let digests: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": {"Cmd": ["sh"]},
        "rootfs": {"type": "layers", "diff_ids": digests},
    });
    files.tar("docker.tar", |builder| {
        let mut names = Vec::new();
        for (at, layer) in layers.iter().enumerate() {
            names.push(format!("{at}/layer.tar"));
            match layers[..at].iter().position(|earlier| earlier == layer) {
                None => append(builder, &names[at], layer),
                Some(same) => {
                    let mut header = tar::Header::new_gnu();
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_size(0);
                    builder.append_link(&mut header, &names[at], format!("../{same}/layer.tar")).unwrap();
                }
            }
        }
        append(builder, "config.json", config.to_string().as_bytes());
        let saved = json!([{"Config": "config.json", "RepoTags": ["debian:12"], "Layers": names}]);
        append(builder, "manifest.json", saved.to_string().as_bytes());
    })
}

#[tokio::test]
async fn a_docker_archive_gets_a_manifest_with_true_digests() {
    let files = Files::new();
    let archive = docker_archive(&files, &[&blob_bytes(), b"second layer", &blob_bytes()]);
    for source in
        [format!("docker-archive:{}", shown(&archive)), format!("docker-archive:{}:debian:12", shown(&archive))]
    {
        let (repository, image) = resolve(&source, "linux/amd64").await.unwrap();
        assert_eq!(image.manifest.layers.len(), 3);
        assert_eq!(image.manifest.layers[0], image.manifest.layers[2]);
        assert_eq!(image.manifest.compression(1), Some(Compression::None));
        assert_eq!(first_layer(&repository, &image).await, blob_bytes());
        assert_eq!(repository.config(&image).await.unwrap().run.cmd, ["sh"]);
    }
    let error = open(&format!("docker-archive:{}:debian:13", shown(&archive))).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("no image docker.io/library/debian:13; available: debian:12"), "{error}");
}

#[tokio::test]
async fn hostile_archives_are_refused_clearly() {
    let files = Files::new();
    let write = |name: &str, bytes: &[u8]| {
        let path = files.folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let gzip = write("a.tar.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    let empty = write("empty.tar", &[0; 1024]);
    let noise = write("noise.tar", &blob_bytes());
    let good = fs::read(docker_archive(&files, &[&blob_bytes()])).unwrap();
    let cut = write("cut.tar", &good[..50_000]);
    let escaping = files.tar("escaping.tar", |builder| {
        let saved = json!([{"Config": "../../etc/passwd", "RepoTags": null, "Layers": []}]);
        append(builder, "manifest.json", saved.to_string().as_bytes());
    });
    let looping = files.tar("looping.tar", |builder| {
        for (from, to) in [("manifest.json", "b"), ("b", "manifest.json")] {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            builder.append_link(&mut header, from, to).unwrap();
        }
    });
    for (path, why) in [
        (&gzip, "compressed"),
        (&empty, "no manifest.json"),
        (&noise, ""),
        (&cut, ""),
        (&escaping, "passwd"),
        (&looping, "no manifest.json"),
    ] {
        let error = open(&format!("docker-archive:{}", shown(path))).await.map(drop).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains('\n'), "{}: {error}", shown(path));
    }
}

#[tokio::test]
async fn a_served_layout_is_the_same_image() {
    let files = Files::new();
    files.write_index(&[named(files.add_image("linux/amd64", &blob_bytes()), "v1")]);
    let mut contents = Contents::new();
    contents.add_layout("demo", &files.layout()).unwrap();
    let server = Server::start(std::sync::Arc::new(contents)).await.unwrap();
    let (repository, image) = resolve(&format!("{}/demo:v1", server.host()), "linux/amd64").await.unwrap();
    assert_eq!(first_layer(&repository, &image).await, blob_bytes());
    assert!(server.stats().bytes >= 100_000);
    let error = resolve(&format!("{}/demo:v2", server.host()), "linux/amd64").await.map(drop).unwrap_err();
    assert_eq!(error.fault(), Class::NotFound);
}

#[tokio::test]
async fn a_source_may_be_missing_until_it_is_read() {
    let files = Files::new();
    let source: Source = format!("oci:{}", shown(&files.layout())).parse().unwrap();
    let repository = tarpon_registry::open_later(&source, &AccessOptions::default()).unwrap();
    assert!(repository.blobs().read(blob(), 0..10).await.is_err());
    files.write_index(&[files.add_image("linux/amd64", &blob_bytes())]);
    let image = repository.resolve(&"linux/amd64".parse().unwrap()).await.unwrap();
    assert_eq!(first_layer(&repository, &image).await, blob_bytes());
}

#[tokio::test]
async fn the_content_of_a_file_that_is_no_archive_is_not_shown() {
    let files = Files::new();
    let path = files.folder.path().join("passwords");
    fs::write(&path, "root:secret:0:0\n".repeat(100)).unwrap();
    for kind in ["docker-archive", "oci-archive"] {
        let error = open(&format!("{kind}:{}", shown(&path))).await.map(drop).unwrap_err().to_string();
        assert!(error.contains("not a sound tar archive") && !error.contains("secret"), "{error}");
    }
}
