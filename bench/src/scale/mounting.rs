//! The first mount of an image with more layers, more files or more bytes.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::{paths, process};

use super::images::{self, Shape};
use super::setting::{Axis, MIB, Setting, log_run};
use super::store::{fresh_store, on_store};
use crate::machine::{self, Resources};
use crate::runs::Log;

/// How often the memory of a client is polled: the kernel keeps the peak only until the process ends.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Number of different contents of the many files: the tree should grow, not the store.
const CONTENTS: u64 = 1000;

/// Maximum size of streamed images, to save time: each byte is read, hashed and written.
const STREAMED: u64 = 1024 * MIB;

pub(super) fn run(setting: &Setting<'_>, axis: Axis, log: &mut Log) -> Result<()> {
    for &size in setting.sizes(axis) {
        for (system, image) in forms(setting, axis, size)? {
            for number in 1..=runs(setting, axis, size) {
                let line = one(setting, &image).with_context(|| format!("{} {size}, {system}", axis.name()))?;
                log_run(log, axis, size, system, number, line)?;
            }
        }
    }
    Ok(())
}

/// Number of runs: the largest images take minutes, and are mounted once.
fn runs(setting: &Setting<'_>, axis: Axis, size: u64) -> u32 {
    let is_largest = axis.sizes(false).last() == Some(&size);
    if is_largest && axis != Axis::Layers { 1 } else { setting.runs }
}

/// The images of a size, and the ways in which they are mounted.
fn forms(setting: &Setting<'_>, axis: Axis, size: u64) -> Result<Vec<(&'static str, String)>> {
    let shape = match axis {
        Axis::Layers => Shape { layers: size, files: 100, bytes: 100, contents: u64::MAX, gzip: false },
        Axis::Files => Shape { layers: 1, files: size, bytes: 16, contents: CONTENTS, gzip: false },
        _ => Shape { layers: 1, files: size / MIB, bytes: MIB, contents: u64::MAX, gzip: true },
    };
    let name = format!("{}-{size}", axis.name());
    let made = images::made(&name, shape)?;
    if axis != Axis::Bytes {
        return Ok(vec![("streamed", made)]);
    }
    let lazy = ("table of contents", converted(setting, &name, &made)?);
    Ok(if size <= STREAMED { vec![("streamed", made), lazy] } else { vec![lazy] })
}

/// The same image as eStargz.
fn converted(setting: &Setting<'_>, name: &str, image: &str) -> Result<String> {
    let folder = paths::benchmarks().join("layouts").join(format!("{name}-estargz"));
    let reference = format!("oci:{}:made", folder.display());
    if !folder.join("index.json").exists() {
        machine::remove(&folder)?;
        let mut convert = on_store(setting);
        convert.args(["convert", "--quiet", "--format", "estargz", "--level", "1", image, &reference]);
        process::check_logged(&mut convert, &paths::benchmarks().join("scale.log"))?;
    }
    Ok(reference)
}

/// Mounts an image for the first time, measures the server, and mounts it once more.
fn one(setting: &Setting<'_>, image: &str) -> Result<serde_json::Value> {
    let store = fresh_store(setting)?;
    let root = paths::benchmarks().join("scale-root");
    fs::create_dir_all(&root)?;
    machine::make_cold(&[&setting.tarpon])?;
    let mount = || {
        let mut mount = on_store(setting);
        mount.args(["mount", "--quiet", image]).arg(&root);
        watched(mount)
    };
    let (seconds, peak) = mount()?;
    let server = machine::server(&setting.tarpon, &store).context("no server of the mount")?;
    let held = Resources::by(server).context("the server is gone")?;
    process::check(on_store(setting).arg("umount").arg(&root))?;
    machine::wait_for_end(server)?;
    let (again, _) = mount()?;
    fresh_store(setting)?;
    Ok(json!({
        "seconds": seconds,
        "again": again,
        "client_peak": peak,
        "resident": held.resident,
        "proportional": held.proportional,
        "descriptors": held.descriptors,
    }))
}

/// Runs a command; returns its duration in seconds and the peak memory of it and its workers.
pub(super) fn watched(mut command: Command) -> Result<(f64, u64)> {
    let began = Instant::now();
    let mut child =
        command.stdout(Stdio::null()).spawn().with_context(|| format!("cannot start {}", process::name(&command)))?;
    let mut peak = 0;
    let status = loop {
        peak = peak.max(machine::peak_with_children(child.id()));
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(POLL_INTERVAL);
    };
    let seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        bail!("{} ended with {status}", process::name(&command));
    }
    Ok((seconds, peak))
}
