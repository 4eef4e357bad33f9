//! Versions of one image that differ in their top layer, as the releases of a compiler do: each has the whole layer with its compiler,
//! and in each another twentieth of the files differs.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use tar::{Archive, Builder, EntryType};
use tarpon_harness::{paths, process, registry};

use super::images::TAG;
use super::setting::Setting;
use crate::repository::{LAYER, Repository};
use crate::sha256::{Hashing, digest_of};
use crate::start::next::changes::{EVERY, more};
use crate::start::published;

/// The image that has versions.
pub(super) const IMAGE: &str = "dev/hello-gcc";

/// The tag of a version.
pub(super) fn tag(version: u32) -> String {
    format!("papers-v{version}")
}

/// Publishes this many versions with their indexes, unless the registry has them.
pub(super) fn publish(setting: &Setting<'_>, versions: u32) -> Result<()> {
    let registry = registry::address();
    let repository = Repository { registry: &registry, image: IMAGE };
    for version in 1..=versions {
        if !has_index(&repository, &tag(version))? {
            println!("making version {version} of {IMAGE}");
            make(&repository, version).with_context(|| format!("cannot make version {version} of {IMAGE}"))?;
            let mut index = Command::new(&setting.tarpon);
            index.env("TARPON_STORE", paths::benchmarks().join("versions-store"));
            index.args(["index", "--quiet", "--push", "--tls-verify=false"]);
            index.arg(format!("{registry}/{IMAGE}:{}", tag(version)));
            process::check_logged(&mut index, &paths::benchmarks().join("versions.log"))?;
        }
    }
    crate::machine::remove(&paths::benchmarks().join("versions-store"))
}

fn has_index(repository: &Repository<'_>, tag: &str) -> Result<bool> {
    let Some(manifest) = repository.manifest(tag)? else { return Ok(false) };
    Ok(published::newest(repository.registry, repository.image, &digest_of(&manifest))?.is_some())
}

fn make(repository: &Repository<'_>, version: u32) -> Result<()> {
    let manifest = repository.manifest(TAG)?.context("the registry does not have it")?;
    let mut manifest: Value = serde_json::from_slice(&manifest).context("its manifest is no JSON")?;
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
        repository.blob(digest)?.context("the registry lacks a blob")
    };
    let mut config: Value = serde_json::from_slice(&blob(&manifest["config"])?).context("its config is no JSON")?;
    let top = manifest["layers"].as_array().and_then(|layers| layers.last()).context("it has no layers")?;
    let (layer, diff_id) = changed(&blob(top)?, version)?;
    let last = |list: &mut Value| list.as_array_mut().and_then(|list| list.pop()).map(drop).context("it has no layers");
    last(&mut config["rootfs"]["diff_ids"])?;
    last(&mut manifest["layers"])?;
    add(&mut config["rootfs"]["diff_ids"], diff_id.into())?;
    add(&mut manifest["layers"], repository.push_blob(LAYER, &layer)?)?;
    let media_type = manifest["config"]["mediaType"].as_str().context("its config has no type")?.to_owned();
    manifest["config"] = repository.push_blob(&media_type, config.to_string().as_bytes())?;
    repository.put_manifest(&tag(version), &manifest)
}

fn add(list: &mut Value, element: Value) -> Result<()> {
    list.as_array_mut().context("it is no usual image")?.push(element);
    Ok(())
}

/// A gzip layer in which every 20th file that can be changed differs, beginning with that of the version; and its diffID.
fn changed(layer: &[u8], version: u32) -> Result<(Vec<u8>, String)> {
    let mut archive = Archive::new(GzDecoder::new(layer));
    let mut to = Builder::new(Hashing::new(GzEncoder::new(Vec::new(), Compression::default())));
    let mut files = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let (mut header, path) = (entry.header().clone(), entry.path()?.into_owned());
        match header.entry_type() {
            EntryType::Regular => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content)?;
                content.extend(if is_changed(files, version) {
                    more(&path, &content).unwrap_or_default()
                } else {
                    &[]
                });
                files += 1;
                header.set_size(content.len() as u64);
                to.append_data(&mut header, &path, &content[..])?;
            }
            EntryType::Symlink | EntryType::Link => {
                let target = entry.link_name()?.context("a link has no target")?.into_owned();
                to.append_link(&mut header, &path, Path::new(&target))?;
            }
            EntryType::Directory => to.append_data(&mut header, &path, &[][..])?,
            other => bail!("{} is of a kind that is not copied: {other:?}", path.display()),
        }
    }
    let (gzip, hash, _) = to.into_inner()?.end();
    Ok((gzip.finish()?, format!("sha256:{hash}")))
}

/// Whether a version changes the file with this number.
fn is_changed(file: usize, version: u32) -> bool {
    file % EVERY == version as usize % EVERY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer() -> Vec<u8> {
        let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for number in 0..40 {
            let mut header = tar::Header::new_gnu();
            header.set_size(4);
            header.set_mode(0o755);
            tar.append_data(&mut header, format!("usr/share/{number}"), &b"text"[..]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        tar.append_link(&mut header, "usr/link", "share/1").unwrap();
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn sizes(layer: &[u8]) -> Vec<u64> {
        let mut archive = Archive::new(GzDecoder::new(layer));
        archive.entries().unwrap().map(|entry| entry.unwrap().size()).collect()
    }

    #[test]
    fn versions_differ_in_other_files_and_keep_their_links() {
        let one = changed(&layer(), 1).unwrap();
        assert_eq!(changed(&layer(), 1).unwrap(), one);
        let grown = |layer: &[u8]| -> Vec<usize> {
            sizes(layer).iter().enumerate().filter(|(_, size)| **size == 5).map(|(place, _)| place).collect()
        };
        assert_eq!(grown(&one.0), [1, 21]);
        assert_eq!(grown(&changed(&layer(), 2).unwrap().0), [2, 22]);
        assert_eq!(sizes(&one.0).len(), 41);
    }
}
