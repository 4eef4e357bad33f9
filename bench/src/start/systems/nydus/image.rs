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

use super::kind::{BUILDER, Kind, found};
use crate::machine::{made, remove};
use crate::repository::{LAYER, Repository};
use crate::start::packs::Packs;

/// The tag of the source images.
const FROM: &str = "gzip";

/// The media type of what nydusd reads.
const BLOB: &str = "application/vnd.oci.image.layer.nydus.blob.v1";

/// The path of the metadata in their layer.
const BOOTSTRAP: &str = "image/image.boot";

/// Publishes each workload's image for nydusd, unless that was done for the same manifest before, and lists the files that its recorded
/// start read.
pub(in crate::start) fn prepare(kind: Kind, workloads: &[Workload], packs: &Packs<'_>) -> Result<()> {
    let registry = packs.registry;
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
    match kind {
        Kind::Zran => Ok(()),
        Kind::Rafs => workloads.iter().try_for_each(|workload| list(workload, packs)),
    }
}

/// The list of the files that the recorded start of a workload read. It is beside the image and not in it, because workloads share images.
pub(super) fn files(workload: &Workload) -> PathBuf {
    paths::benchmarks().join("nydus/files").join(&workload.id)
}

fn list(workload: &Workload, packs: &Packs<'_>) -> Result<()> {
    let mut show = Command::new(packs.tarpon);
    show.args(["trace", "show", "--json"]).arg(packs.trace(workload));
    let trace = serde_json::from_str(&process::output(&mut show)?).context("tarpon trace show printed no JSON")?;
    let file = files(workload);
    fs::create_dir_all(file.parent().context("a list is in a folder")?)?;
    fs::write(&file, lines(&trace)).with_context(|| format!("cannot write {}", file.display()))
}

/// The files of a trace, in the order of first access, as nydusd takes them.
fn lines(trace: &Value) -> String {
    let paths = trace["files"].as_array().into_iter().flatten().filter_map(|file| file["path"].as_str());
    paths.map(|path| format!("{path}\n")).collect()
}

fn publish(kind: Kind, repository: &Repository<'_>, from: &[u8]) -> Result<()> {
    let from: Value = serde_json::from_slice(from).context("its manifest is no JSON")?;
    let folder = paths::benchmarks().join("nydus-image");
    remove(&folder)?;
    let builder = Builder { program: found(BUILDER)?, kind, folder: made(&folder)? };
    let done = publish_with(&builder, repository, &from);
    remove(&folder)?;
    done
}

fn publish_with(builder: &Builder, repository: &Repository<'_>, from: &Value) -> Result<()> {
    let kind = builder.kind;
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
    repository.put_manifest(kind.tag(), &manifest(kind, from, blobs, bootstrap))
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_metadata_is_the_last_layer_and_unconverted_layers_are_kept_for_an_index_alone() {
        let from = json!({"mediaType": "m", "config": {"digest": "c"}, "layers": [{"digest": "l"}]});
        let layers = |kind| -> Vec<String> {
            let manifest = manifest(kind, &from, vec![json!({"digest": "b"})], json!({"digest": "boot"}));
            assert_eq!((&manifest["config"]["digest"], &manifest["mediaType"]), (&json!("c"), &json!("m")));
            let layers = manifest["layers"].as_array().unwrap().iter();
            layers.map(|layer| layer["digest"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(layers(Kind::Zran), ["l", "b", "boot"]);
        assert_eq!(layers(Kind::Rafs), ["b", "boot"]);
    }

    #[test]
    fn the_metadata_is_a_file_of_its_layer() {
        let layer = packed(b"metadata").unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&layer[..]));
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        assert_eq!((entry.path().unwrap().to_str(), content.as_str()), (Some(BOOTSTRAP), "metadata"));
    }

    #[test]
    fn metadata_of_a_layer_has_the_digest_as_its_name() {
        let builder = Builder { program: "p".into(), kind: Kind::Zran, folder: "/f".into() };
        assert_eq!(builder.bootstrap("sha256:ab").to_str(), Some("/f/ab.boot"));
    }

    #[test]
    fn files_are_fetched_in_the_order_of_the_recorded_start() {
        let trace = json!({"files": [{"path": "/usr/bin/b"}, {"size": 1}, {"path": "/a"}]});
        assert_eq!(lines(&trace), "/usr/bin/b\n/a\n");
    }
}
