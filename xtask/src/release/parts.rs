//! What a program consists of: its bill of materials, and the licences of the crates in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::process;

use super::common::{Folders, VERSION, with_toolchain};
use super::target::Target;
use super::tools::Tools;

/// Beginnings of the names of files that a licence may want to be passed on.
const LICENCE_FILES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Writes the bill of materials in the format of CycloneDX.
pub(super) fn bill(folders: &Folders, target: Target, tools: &Tools, to: &Path) -> Result<PathBuf> {
    let name = format!("tarpon-{}-{}.cdx", VERSION, target.triple());
    let mut make = tools.packager(folders)?;
    make.args(["cyclonedx", "--manifest-path", "crates/cli/Cargo.toml", "--format", "json", "--no-build-deps"]);
    make.args(["--spec-version", "1.5", "--quiet", "--target", target.triple(), "--override-filename", &name]);
    process::check(&mut make)?;
    // It writes a file next to the manifest of each package of the workspace.
    let (mut text, name) = (None, format!("{name}.json"));
    for folder in packages(&folders.root)? {
        let file = folder.join(&name);
        if file.exists() {
            if folder.ends_with("crates/cli") {
                text = Some(fs::read_to_string(&file)?);
            }
            fs::remove_file(file)?;
        }
    }
    let root = folders.root.to_str().context("the name of the checkout is not UTF-8")?;
    let file = to.join(name);
    fs::write(&file, text.context("cargo-cyclonedx wrote no file for crates/cli")?.replace(root, "/tarpon"))?;
    Ok(file)
}

/// The folders of all packages of the workspace.
fn packages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec!["bench", "benches", "harness", "tests", "xtask"];
    folders.retain(|name| root.join(name).exists());
    let crates = fs::read_dir(root.join("crates"))?.map(|entry| Ok(entry?.path()));
    folders.into_iter().map(|name| Ok(root.join(name))).chain(crates).collect()
}

/// The licences of all crates in the program, of the standard library and of musl. Most crates have the same few texts, so
/// each text follows the list of those that have it.
pub(super) fn licences(folders: &Folders, target: Target, tools: &Tools) -> Result<String> {
    let mut metadata = tools.cargo(folders)?;
    metadata.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", target.triple()]);
    let metadata: Value = serde_json::from_str(&process::output(&mut metadata)?)?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in linked(&metadata)? {
        // Those of this repository have its licence.
        if package["source"].is_null() {
            continue;
        }
        let field = |name: &str| package[name].as_str().unwrap_or("unknown");
        let name = format!("{} {} ({})", field("name"), field("version"), field("license"));
        let folder = Path::new(field("manifest_path")).parent().context("a manifest has no folder")?.to_owned();
        for text in licence_files(&folder)? {
            texts.entry(text).or_default().insert(name.clone());
        }
        if !texts.values().any(|names| names.contains(&name)) {
            texts.entry("The crate has no file with its licence.".to_owned()).or_default().insert(name);
        }
    }
    let musl = fs::read(tools.licence_of_musl()).context("zig comes without the licence of musl")?;
    texts.entry(clean(&musl)).or_default().insert("musl (MIT)".to_owned());
    let compiler = PathBuf::from(process::output(with_toolchain("rustc").args(["--print", "sysroot"]))?);
    let library = compiler.join("share/doc/rust/COPYRIGHT-library.html");
    let library = fs::read(&library).with_context(|| format!("cannot read {}", library.display()))?;
    texts.entry(clean(&library)).or_default().insert("Rust's standard library (MIT OR Apache-2.0)".to_owned());
    let mut out = "What tarpon contains, with the licences.\n".to_owned();
    for (text, names) in texts {
        let names: Vec<_> = names.into_iter().collect();
        write!(out, "\n{}\n{}\n\n{text}\n", "=".repeat(72), names.join("\n"))?;
    }
    Ok(out)
}

/// The packages that are linked into the program: what it uses, and what these use, but for tests and builds.
fn linked(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &'static str, of| -> Result<HashMap<&str, &Value>> {
        let values: &Vec<Value> = Value::as_array(of).with_context(|| format!("cargo metadata has no {value}"))?;
        Ok(values.iter().filter_map(|value| Some((value["id"].as_str()?, value))).collect())
    };
    let packages = list("packages", &metadata["packages"])?;
    let nodes = list("nodes", &metadata["resolve"]["nodes"])?;
    let program = packages.iter().find(|(_, package)| package["name"] == "tarpon").map(|(id, _)| *id);
    let mut wanted = vec![program.context("cargo metadata has no package tarpon")?];
    let mut seen: HashSet<&str> = wanted.iter().copied().collect();
    while let Some(id) = wanted.pop() {
        let uses = nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        for used in uses {
            let kinds = used["dep_kinds"].as_array().into_iter().flatten();
            let is_linked = kinds.into_iter().any(|kind| kind["kind"].is_null());
            if let Some(id) = used["pkg"].as_str().filter(|id| is_linked && !seen.contains(id)) {
                seen.insert(id);
                wanted.push(id);
            }
        }
    }
    if seen.len() < 2 {
        bail!("cargo metadata names no dependency of tarpon");
    }
    let mut linked: Vec<_> = seen.into_iter().filter_map(|id| packages.get(id).copied()).collect();
    linked.sort_by_key(|package| package["id"].as_str().unwrap_or_default().to_owned());
    Ok(linked)
}

/// The texts of the licences in a folder.
fn licence_files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_ascii_uppercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.file_type()?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    files.iter().map(|file| Ok(clean(&fs::read(file)?))).collect()
}

/// Without what differs between copies of one text: line ends and blanks around it.
fn clean(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text).replace("\r\n", "\n");
    text.trim_matches('\n').trim_end().to_owned()
}
