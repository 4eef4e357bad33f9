//! Sees to it that each image has an index and a boot pack for each workload beside it in the registry.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bench::machine;
use crate::process;
use xtask::workloads::{Ready, Workload};

/// Forgets what was recorded: the registry may be another one than the last time.
pub(crate) fn forget() -> Result<()> {
    machine::remove(&machine::folder().join("traces"))?;
    machine::remove(&machine::folder().join("recording"))
}

/// Records what has not been recorded yet, and publishes all of it.
pub(crate) fn prepare(workloads: &[Workload], tarpon: &Path, registry: &str, tag: &str) -> Result<()> {
    let mut images: BTreeMap<&str, Vec<PathBuf>> = BTreeMap::new();
    let mut changed = Vec::new();
    for workload in workloads {
        let trace = machine::folder().join("traces").join(format!("{}.{tag}.trace", workload.id));
        if !trace.exists() {
            println!("recording {}", workload.id);
            record(workload, tarpon, registry, tag, &trace)?;
            changed.push(workload.image.as_str());
        }
        images.entry(&workload.image).or_default().push(trace);
    }
    for (image, traces) in images.into_iter().filter(|(image, _)| changed.contains(image)) {
        let mut push = command(tarpon);
        push.args(["record", "--quiet", "--push", "--tls-verify=false"]);
        for trace in traces {
            push.arg("--trace").arg(trace);
        }
        push.arg(format!("{registry}/{image}:{tag}"));
        process::check_logged(&mut push, &machine::folder().join("push.log"))?;
    }
    Ok(())
}

fn record(workload: &Workload, tarpon: &Path, registry: &str, tag: &str, trace: &Path) -> Result<()> {
    fs::create_dir_all(trace.parent().context("a trace is in a folder")?)?;
    // Written when it is complete: an interrupted recording is none.
    let draft = trace.with_extension("draft");
    let mut record = command(tarpon);
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
    record.arg(format!("{registry}/{}:{tag}", workload.image));
    record.args(["--", "/bin/sh", "-c", &workload.command]);
    process::check_logged(&mut record, &machine::folder().join("record.log"))?;
    fs::rename(draft, trace).context("cannot keep the trace")
}

fn command(tarpon: &Path) -> Command {
    let mut command = Command::new(tarpon);
    command.env("TARPON_STORE", machine::folder().join("recording"));
    command
}
