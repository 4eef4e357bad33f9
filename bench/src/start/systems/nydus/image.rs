//! Images for nydusd, made of unconverted ones by nydus-image as nydus' own nydusify does: layer by layer, then merged.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tarpon_harness::workloads::Workload;
use tarpon_harness::{paths, process};

use super::{BUILDER, Kind, found};
use crate::machine::{made, remove};
use crate::repository::{LAYER, Repository};

/// The tag of the source images.
const FROM: &str = "gzip";

/// The media type of what nydusd reads.
const BLOB: &str = "application/vnd.oci.image.layer.nydus.blob.v1";

/// The path of the metadata in their layer.
const BOOTSTRAP: &str = "image/image.boot";

/// Publishes each workload's image for nydusd, unless that was done for the same manifest before.
pub(in crate::start) fn prepare(kind: Kind, workloads: &[Workload], registry: &str) -> Result<()> {
    let images: BTreeSet<&str> = workloads.iter().map(|workload| workload.image.as_str()).collect();
    for image in images {
        let repository = Repository { registry, image };
        let from = repository.manifest(FROM)?;
        let from =
            from.with_context(|| format!("{registry} has no {image}:{FROM}: make it with `cargo xtask images`"))?;
        let done = paths::benchmarks().join("nydus").join(image).join(kind.tag());
        if fs::read(&done).is_ok_and(|of| of == from) && repository.manifest(kind.tag())?.is_some() {
            continue;
        }
        println!("making {image}:{} for nydusd", kind.tag());
        publish(kind, &repository, &from).with_context(|| format!("cannot make {image}:{}", kind.tag()))?;
        fs::create_dir_all(done.parent().context("an image has a name")?)?;
        fs::write(done, from)?;
    }
    Ok(())
}

fn publish(kind: Kind, repository: &Repository<'_>, from: &[u8]) -> Result<()> {
    let from: Value = serde_json::from_slice(from).context("its manifest is no JSON")?;
    let folder = paths::benchmarks().join("nydus-image");
    remove(&folder)?;
    let builder = Builder { program: found(BUILDER)?, kind, folder: made(&folder)? };
    let (mut sources, mut blobs) = (Vec::new(), Vec::new());
    for layer in from["layers"].as_array().context("it is not one image")? {
        let digest = layer["digest"].as_str().context("a layer has no digest")?;
        let bytes = repository.blob(digest)?.context("the registry lacks a layer")?;
        let blob = builder.build(digest, &bytes)?;
        blobs.push(repository.push_blob(BLOB, &blob)?);
        sources.push(builder.bootstrap(digest));
    }
    let bootstrap = builder.merge(&sources, &blobs)?;
    let bootstrap = repository.push_blob(LAYER, &packed(&bootstrap)?)?;
    repository.put_manifest(kind.tag(), &manifest(kind, &from, blobs, bootstrap))?;
    remove(&folder)
}

/// The manifest, whose last layer is what nydusd mounts. The layers that nydusd reads from are in it, too, so that they are warm in the
/// registry and stay there.
fn manifest(kind: Kind, from: &Value, blobs: Vec<Value>, bootstrap: Value) -> Value {
    let unconverted = from["layers"].as_array().filter(|_| kind == Kind::Zran);
    let layers: Vec<Value> = unconverted.into_iter().flatten().cloned().chain(blobs).chain([bootstrap]).collect();
    json!({"schemaVersion": 2, "mediaType": from["mediaType"], "config": from["config"], "layers": layers})
}

/// The layer of an image that holds its metadata.
fn packed(bootstrap: &[u8]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_gnu();
    header.set_size(bootstrap.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, BOOTSTRAP, bootstrap)?;
    Ok(tar.into_inner()?.finish()?)
}

/// nydus-image, and the folder of its files.
struct Builder {
    program: PathBuf,
    kind: Kind,
    folder: PathBuf,
}

impl Builder {
    /// The metadata of a layer. Its name must be the digest of the layer: the merge takes it from there.
    fn bootstrap(&self, digest: &str) -> PathBuf {
        self.folder.join(digest.trim_start_matches("sha256:")).with_extension("boot")
    }

    /// Builds the metadata of a layer and returns its blob.
    fn build(&self, digest: &str, layer: &[u8]) -> Result<Vec<u8>> {
        let bootstrap = self.bootstrap(digest);
        let (source, blob) = (bootstrap.with_extension("tar.gz"), bootstrap.with_extension("blob"));
        fs::write(&source, layer)?;
        // Deletions of files of lower layers stay in a layer until the merge.
        let mut create = Command::new(&self.program);
        create.args(["create", "--log-level", "warn", "--whiteout-spec", "none", "--type", self.conversion()]);
        create.arg("--bootstrap").arg(&bootstrap).arg("--blob").arg(&blob).arg(&source);
        process::check_logged(&mut create, &self.log())?;
        fs::remove_file(source)?;
        // Of a layer without content there is none.
        if blob.exists() { Ok(fs::read(blob)?) } else { Ok(Vec::new()) }
    }

    /// The metadata of the image with these layers.
    fn merge(&self, sources: &[PathBuf], blobs: &[Value]) -> Result<Vec<u8>> {
        let to = self.folder.join("image.boot");
        let list = |field: fn(&Value) -> String| blobs.iter().map(field).collect::<Vec<_>>().join(",");
        let digests = list(|blob| blob["digest"].as_str().unwrap_or_default().trim_start_matches("sha256:").to_owned());
        let mut merge = Command::new(&self.program);
        merge.args(["merge", "--log-level", "warn", "--blob-digests", &digests]);
        merge.args(["--blob-sizes", &list(|blob| blob["size"].to_string())]);
        merge.arg("--bootstrap").arg(&to).args(sources);
        process::check_logged(&mut merge, &self.log())?;
        Ok(fs::read(to)?)
    }

    fn conversion(&self) -> &'static str {
        match self.kind {
            Kind::Zran => "targz-ref",
            Kind::Rafs => "targz-rafs",
        }
    }

    fn log(&self) -> PathBuf {
        paths::benchmarks().join("nydus.log")
    }
}
