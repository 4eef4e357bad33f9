//! The images of the experiments: those of `cargo xtask images --papers`, which are built if the registry lacks one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use tarpon_harness::workloads::{self, Workload};
use tarpon_harness::{paths, process, registry};

use super::setting::Setting;
use crate::repository::Repository;
use crate::start::packs::Packs;

/// The tag of all images.
pub(super) const TAG: &str = "gzip";

/// The workloads of the corpus that are started beside those of hello.tsv.
const CORPUS: [&str; 3] = ["python-numpy", "redis", "nginx"];

/// The ones of a quick run.
const QUICK: [&str; 2] = ["hello-lua", "redis"];

/// Writes the file of all workloads, and returns its path.
pub(super) fn file() -> Result<PathBuf> {
    let corpus = paths::root().join("fixtures/corpus");
    let read = |name: &str| fs::read_to_string(corpus.join(name)).with_context(|| format!("cannot read {name}"));
    let file = paths::benchmarks().join("papers-workloads.tsv");
    fs::create_dir_all(paths::benchmarks())?;
    fs::write(&file, read("workloads.tsv")? + &read("hello.tsv")?)?;
    Ok(file)
}

/// The workloads that are started.
pub(super) fn workloads(setting: &Setting<'_>) -> Result<Vec<Workload>> {
    let all = workloads::all(Some(&file()?))?;
    let chosen = |workload: &Workload| match setting.quick {
        true => QUICK.contains(&workload.id.as_str()),
        false => workload.id.starts_with("hello-") || CORPUS.contains(&workload.id.as_str()),
    };
    Ok(all.into_iter().filter(chosen).collect())
}

/// The file with the recorded start of a workload.
pub(super) fn trace(setting: &Setting<'_>, workload: &Workload) -> PathBuf {
    let registry = registry::address();
    Packs { tarpon: &setting.tarpon, registry: &registry, tag: TAG, quick: false }.trace(workload)
}

/// Builds the images if the registry lacks one.
pub(super) fn ensure(setting: &Setting<'_>) -> Result<()> {
    let registry = registry::address();
    let has = |workload: &Workload| Repository { registry: &registry, image: &workload.image }.manifest(TAG);
    for workload in workloads(setting)? {
        if !has(&workload).is_ok_and(|manifest| manifest.is_some()) {
            println!("building the images: the registry does not have {}", workload.image);
            let mut build = Command::new("cargo");
            build.args(["xtask", "images", "--papers"]).current_dir(paths::root());
            return process::check(&mut build);
        }
    }
    Ok(())
}
