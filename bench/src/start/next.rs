//! The next version of an image: its layers, and one more with the files that differ. It is made once, and published with its index.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tarpon_harness::workloads::Workload;
use tarpon_harness::{paths, process};

use super::published;
use crate::machine;
use crate::repository::{LAYER, Repository};
use crate::sha256::{Hashing, digest_of};

pub(crate) mod changes;

use changes::Changed;

/// The tag of the next version of the image with this tag.
pub(super) fn tag(of: &str) -> String {
    format!("{of}-next")
}

/// The required images, and their registry.
pub(super) struct Next<'a> {
    pub(super) tarpon: &'a Path,
    pub(super) registry: &'a str,
    /// The tag of the present version.
    pub(super) tag: &'a str,
}

impl Next<'_> {
    /// Makes and publishes the next version of each workload's image, unless that was done for the same manifest before.
    pub(super) fn prepare(&self, workloads: &[Workload]) -> Result<()> {
        let images: BTreeSet<&str> = workloads.iter().map(|workload| workload.image.as_str()).collect();
        images.into_iter().try_for_each(|image| {
            self.prepare_image(image).with_context(|| format!("cannot make the next version of {image}:{}", self.tag))
        })
    }

    fn prepare_image(&self, image: &str) -> Result<()> {
        let now = self
            .repository(image)
            .manifest(self.tag)?
            .context("the registry does not have it: `cargo xtask images`")?;
        let done = paths::benchmarks().join("next").join(image).join(self.tag);
        if fs::read(&done).is_ok_and(|of| of == now) && self.has_index(image)? {
            return Ok(());
        }
        println!("making the next version of {image}");
        self.publish(image, serde_json::from_slice(&now).context("its manifest is no JSON")?)?;
        let mut index = self.command();
        index.args(["index", "--quiet", "--push", "--tls-verify=false", &self.reference(image, &tag(self.tag))]);
        process::check_logged(&mut index, &paths::benchmarks().join("next.log"))?;
        if !self.has_index(image)? {
            bail!("it has no index, although that was published");
        }
        fs::create_dir_all(done.parent().context("an image has a name")?)?;
        fs::write(done, now)?;
        machine::remove(&store())
    }

    /// Whether the registry has the next version, and its index.
    fn has_index(&self, image: &str) -> Result<bool> {
        let Some(next) = self.repository(image).manifest(&tag(self.tag))? else { return Ok(false) };
        Ok(published::newest(self.registry, image, &digest_of(&next))?.is_some())
    }

    /// Publishes the image with one more layer.
    fn publish(&self, image: &str, mut manifest: Value) -> Result<()> {
        let mounted = Mounted::new(self, image)?;
        let (layer, diff_id) = layer(&changes::of(&mounted.root)?)?;
        drop(mounted);
        let repository = self.repository(image);
        let config = manifest["config"]["digest"].as_str().context("it is not one image")?;
        let config = repository.blob(config)?.context("it has no config")?;
        let mut config: Value = serde_json::from_slice(&config).context("its config is no JSON")?;
        add(&mut config["rootfs"]["diff_ids"], diff_id.into())?;
        // An image need not have a history; one that has must have a line for each layer.
        let _none = add(&mut config["history"], json!({"created_by": "the next version"}));
        add(&mut manifest["layers"], repository.push_blob(LAYER, &layer)?)?;
        let media_type = manifest["config"]["mediaType"].as_str().context("its config has no type")?.to_owned();
        manifest["config"] = repository.push_blob(&media_type, config.to_string().as_bytes())?;
        repository.put_manifest(&tag(self.tag), &manifest)
    }

    fn repository<'a>(&'a self, image: &'a str) -> Repository<'a> {
        Repository { registry: self.registry, image }
    }

    fn reference(&self, image: &str, tag: &str) -> String {
        format!("{}/{image}:{tag}", self.registry)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.tarpon);
        command.env("TARPON_STORE", store());
        command
    }
}

/// The store in which the present versions are mounted.
fn store() -> PathBuf {
    paths::benchmarks().join("next-store")
}

/// Adds an element to a list.
fn add(list: &mut Value, element: Value) -> Result<()> {
    list.as_array_mut().context("it is no usual image")?.push(element);
    Ok(())
}

/// The present version, mounted. Dropping it unmounts it.
struct Mounted<'a> {
    next: &'a Next<'a>,
    root: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(next: &'a Next<'a>, image: &str) -> Result<Self> {
        let mounted = Self { next, root: paths::benchmarks().join("next-root") };
        fs::create_dir_all(&mounted.root)?;
        let mut mount = next.command();
        mount.args(["mount", "--quiet", "--no-learn", "--tls-verify=false", &next.reference(image, next.tag)]);
        process::check_logged(mount.arg(&mounted.root), &paths::benchmarks().join("next.log"))?;
        Ok(mounted)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let mut unmount = self.next.command();
        unmount.arg("umount").arg(&self.root);
        machine::quietly(unmount);
    }
}

/// The layer with these files, and its diffID. The same files give the same bytes.
fn layer(files: &[Changed]) -> Result<(Vec<u8>, String)> {
    let gzip = GzEncoder::new(Vec::new(), Compression::default());
    let mut tar = tar::Builder::new(Hashing::new(gzip));
    for file in files {
        let mut header = tar::Header::new_gnu();
        header.set_metadata(&file.metadata);
        header.set_size(file.content.len() as u64);
        tar.append_data(&mut header, &file.path, &file.content[..])?;
    }
    let (gzip, hash, _) = tar.into_inner()?.end();
    Ok((gzip.finish()?, format!("sha256:{hash}")))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_layer_holds_the_changed_files_under_their_names_and_is_reproducible() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "old").unwrap();
        let metadata = fs::metadata(folder.path().join("file")).unwrap();
        let files = [Changed { path: "usr/bin/tool".into(), content: b"newer".to_vec(), metadata }];
        let (bytes, diff_id) = layer(&files).unwrap();
        assert_eq!(layer(&files).unwrap().0, bytes);
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut tar).unwrap();
        assert_eq!(diff_id, digest_of(&tar));
        let mut archive = tar::Archive::new(&tar[..]);
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        assert_eq!((entry.path().unwrap().to_str(), content.as_str()), (Some("usr/bin/tool"), "newer"));
    }

    #[test]
    fn an_element_is_added_to_lists_alone() {
        let mut value = json!({"layers": [1]});
        add(&mut value["layers"], 2.into()).unwrap();
        assert!(value["layers"] == json!([1, 2]) && add(&mut value["history"], 3.into()).is_err());
    }
}
