//! Sees to it that each image has an index and a boot pack for each workload beside it in the registry.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::machine;
use crate::process;
use xtask::workloads::{Ready, Workload};

/// What images are to have, and where.
pub(crate) struct Packs<'a> {
    pub(crate) tarpon: &'a Path,
    pub(crate) registry: &'a str,
    pub(crate) tag: &'a str,
    /// Whether this only tries out whether the benchmark works: with traces of its own.
    pub(crate) quick: bool,
}

impl Packs<'_> {
    /// Forgets what was recorded: the registry may be another one than the last time.
    pub(crate) fn forget(&self) -> Result<()> {
        machine::remove(&self.folder("traces"))?;
        machine::remove(&self.folder("recording"))
    }

    /// Records what has not been recorded yet, and publishes all of it.
    pub(crate) fn prepare(&self, workloads: &[Workload]) -> Result<()> {
        let mut images: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
        let mut changed = Vec::new();
        for workload in workloads {
            let trace = self.folder("traces").join(format!("{}.{}.trace", workload.id, self.tag));
            if !trace.exists() {
                println!("recording {}", workload.id);
                self.record(workload, &trace)?;
                changed.push(workload.image.as_str());
            }
            images.entry(&workload.image).or_default().push(trace);
        }
        for (image, traces) in images.into_iter().filter(|(image, _)| changed.contains(image)) {
            self.publish(image, &traces)?;
        }
        Ok(())
    }

    fn record(&self, workload: &Workload, trace: &Path) -> Result<()> {
        fs::create_dir_all(trace.parent().context("a trace is in a folder")?)?;
        // Written when it is complete: an interrupted recording is none.
        let draft = trace.with_extension("draft");
        let mut record = self.command();
        record.args(["record", "--quiet", "--tls-verify=false", "--index", "registry", "--profile", &workload.id]);
        record.arg("-o").arg(&draft);
        match &workload.ready {
            Ready::Port { port, .. } => record.args(["--until-port", &port.to_string()]),
            // Until it has ended, as is usual.
            Ready::Exit { .. } => &mut record,
            Ready::Line { text, at_start } => {
                let start = if *at_start { "^" } else { "" };
                record.args(["--until-log", &format!("{start}{}", text.replace(['.', '(', ')', '['], "."))])
            }
        };
        record.arg(self.reference(&workload.image));
        record.args(["--", "/bin/sh", "-c", &workload.command]);
        process::check_logged(&mut record, &machine::folder().join("record.log"))?;
        fs::rename(draft, trace).context("cannot keep the trace")
    }

    fn publish(&self, image: &str, traces: &[PathBuf]) -> Result<()> {
        let mut push = self.command();
        push.args(["record", "--quiet", "--push", "--tls-verify=false"]);
        for trace in traces {
            push.arg("--trace").arg(trace);
        }
        push.arg(self.reference(image));
        process::check_logged(&mut push, &machine::folder().join("push.log"))
    }

    fn reference(&self, image: &str) -> String {
        format!("{}/{image}:{}", self.registry, self.tag)
    }

    fn folder(&self, name: &str) -> PathBuf {
        machine::folder().join(machine::kept(name, self.quick))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.tarpon);
        command.env("TARPON_STORE", self.folder("recording"));
        command
    }
}
