//! Ensures that each image in the registry has an index, and a boot pack for each workload.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::workloads::{Ready, Workload};
use tarpon_harness::{paths, process};

use super::published;
use crate::machine;

/// The profile of predicted starts.
const PREDICTED: &str = "predicted";

/// The required packs, and their registry.
pub(crate) struct Packs<'a> {
    pub(crate) tarpon: &'a Path,
    pub(crate) registry: &'a str,
    pub(crate) tag: &'a str,
    /// Whether this only tests the benchmark: then traces are kept separately.
    pub(crate) quick: bool,
}

impl Packs<'_> {
    /// Deletes the traces: the registry may not be the one of the last run.
    pub(crate) fn forget(&self) -> Result<()> {
        machine::remove(&self.folder("traces"))?;
        machine::remove(&self.folder("recording"))
    }

    /// Records what is not yet recorded for these images and commands, and publishes what the registry lacks.
    pub(crate) fn prepare(&self, workloads: &[Workload]) -> Result<()> {
        let mut images: BTreeMap<&str, Vec<&Workload>> = BTreeMap::new();
        for workload in workloads {
            images.entry(&workload.image).or_default().push(workload);
        }
        images.into_iter().try_for_each(|(image, workloads)| self.prepare_image(image, &workloads))
    }

    fn prepare_image(&self, image: &str, workloads: &[&Workload]) -> Result<()> {
        let digest = self.digest(image)?;
        let mut recorded = Vec::new();
        for workload in workloads {
            let (trace, about) = (self.trace(workload), about(&digest, workload));
            let file = trace.with_extension("of");
            if trace.exists() && fs::read_to_string(&file).is_ok_and(|kept| kept == about) {
                continue;
            }
            println!("recording {}", workload.id);
            self.record(workload, &trace)?;
            recorded.push((file, about));
        }
        let lacks = || -> Result<bool> {
            let there = published::profiles(self.registry, image, &digest)?;
            Ok(workloads.iter().any(|workload| !there.contains(&workload.id)))
        };
        // New recordings are published even if there is a pack: that one is from an earlier recording.
        if !recorded.is_empty() || lacks()? {
            let traces: Vec<PathBuf> = workloads.iter().map(|workload| self.trace(workload)).collect();
            self.publish(image, &traces)?;
            if lacks()? {
                bail!("{} has no index and boot packs, although they were published", self.reference(image));
            }
        }
        // Only now: a recording that was not published must be repeated.
        for (file, about) in recorded {
            fs::write(&file, about).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }

    /// The digest of the manifest that is mounted.
    fn digest(&self, image: &str) -> Result<String> {
        let mut inspect = self.command();
        let output = inspect.args(["inspect", "--json", "--tls-verify=false", &self.reference(image)]).output();
        let output = output.context("cannot start tarpon")?;
        if !output.status.success() {
            bail!("cannot inspect {}: {}", self.reference(image), String::from_utf8_lossy(&output.stderr).trim());
        }
        let inspected: Value = serde_json::from_slice(&output.stdout).context("tarpon inspect printed no JSON")?;
        inspected["manifest_digest"].as_str().map(str::to_owned).context("tarpon inspect names no manifest")
    }

    /// The file with the recorded start of a workload.
    pub(crate) fn trace(&self, workload: &Workload) -> PathBuf {
        self.folder("traces").join(format!("{}.{}.trace", workload.id, self.tag))
    }

    fn record(&self, workload: &Workload, trace: &Path) -> Result<()> {
        fs::create_dir_all(trace.parent().context("a trace is in a folder")?)?;
        // Renamed when complete: an interrupted recording does not count.
        let draft = trace.with_extension("draft");
        let mut record = self.command();
        record.args(["record", "--quiet", "--tls-verify=false", "--index", "registry", "--profile", &workload.id]);
        record.arg("-o").arg(&draft);
        match &workload.ready {
            Ready::Port { port, path: Some(path) } => record.args(["--until-http", &format!("{port}{path}")]),
            Ready::Port { port, path: None } => record.args(["--until-port", &port.to_string()]),
            // Until the container ends, which is the default.
            Ready::Exit { .. } => &mut record,
            Ready::Line { text, at_start } => {
                let start = if *at_start { "^" } else { "" };
                record.args(["--until-log", &format!("{start}{}", text.replace(['.', '(', ')', '['], "."))])
            }
        };
        record.arg(self.reference(&workload.image));
        record.args(["--", "/bin/sh", "-c", &workload.command]);
        process::check_logged(&mut record, &paths::benchmarks().join("record.log"))?;
        fs::rename(draft, trace).context("cannot keep the trace")
    }

    fn publish(&self, image: &str, traces: &[PathBuf]) -> Result<()> {
        let mut push = self.command();
        push.args(["record", "--quiet", "--push", "--tls-verify=false"]);
        for trace in traces {
            push.arg("--trace").arg(trace);
        }
        push.arg(self.reference(image));
        process::check_logged(&mut push, &paths::benchmarks().join("push.log"))
    }

    /// Publishes an index with the packs that are there and that of the predicted start, where the image lacks it.
    pub(crate) fn predict(&self, workloads: &[Workload]) -> Result<()> {
        let images: BTreeSet<&str> = workloads.iter().map(|workload| &*workload.image).collect();
        images.into_iter().try_for_each(|image| self.predict_image(image))
    }

    fn predict_image(&self, image: &str) -> Result<()> {
        let profiles = published::profiles(self.registry, image, &self.digest(image)?)?;
        if profiles.iter().any(|profile| profile == PREDICTED) {
            return Ok(());
        }
        let mut index = self.command();
        index.args(["index", "--quiet", "--push", "--tls-verify=false", &self.reference(image)]);
        process::check_logged(&mut index, &paths::benchmarks().join("push.log"))
    }

    fn reference(&self, image: &str) -> String {
        format!("{}/{image}:{}", self.registry, self.tag)
    }

    fn folder(&self, name: &str) -> PathBuf {
        paths::benchmarks().join(machine::kept(name, self.quick))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.tarpon);
        command.env("TARPON_STORE", self.folder("recording"));
        command
    }
}

/// Identifies the image and the command of a trace.
fn about(digest: &str, workload: &Workload) -> String {
    format!("{digest}\n{}\n", workload.command)
}
