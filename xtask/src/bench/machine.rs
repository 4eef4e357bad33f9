//! This machine as a benchmark sees it: made cold, and asked what something cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::paths;

/// Everything of the benchmark on disk.
pub(super) fn folder() -> PathBuf {
    paths::target().join("bench")
}

/// Forgets all cached pages, then reads back the tools themselves: what is cold is the image.
pub(super) fn make_cold(tools: &[&Path]) -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")?;
    for tool in tools {
        let mut version = Command::new(tool);
        version.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        version.status().with_context(|| format!("cannot run {}", tool.display()))?;
    }
    Ok(())
}

/// Reads the blobs of an image into the page cache of the registry that `cargo xtask images` runs here: a registry that serves an
/// image to many has it there.
pub(super) fn warm_registry(image: &str) {
    let registry = paths::target().join("registry/data/docker/registry/v2");
    let links = registry.join("repositories").join(image).join("_layers/sha256");
    let Ok(blobs) = fs::read_dir(links) else { return };
    for blob in blobs.flatten() {
        let name = blob.file_name().to_string_lossy().into_owned();
        let data = registry.join("blobs/sha256").join(name.get(..2).unwrap_or_default()).join(&name).join("data");
        let copied = fs::File::open(data).and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()));
        // A registry elsewhere has a cache of its own.
        let _not_here = copied;
    }
}

/// Bytes that have come in over the link, if this is behind one.
pub(super) fn received() -> Option<u64> {
    let devices = fs::read_to_string("/proc/net/dev").ok()?;
    let link = devices.lines().find_map(|line| line.trim().strip_prefix("tarpon-link:"))?;
    link.split_whitespace().next()?.parse().ok()
}

/// A group of processes whose processor time the kernel adds up, daemons included. Removed when dropped.
pub(super) struct Accounting {
    group: PathBuf,
    usage: &'static str,
}

impl Accounting {
    /// What is started from now on belongs to it. `None` where the kernel offers none.
    pub(super) fn begin() -> Option<Self> {
        static GROUPS: AtomicU32 = AtomicU32::new(0);
        // What outlives its run keeps its group.
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tarpon-bench-{}-{number}", std::process::id());
        let kinds = [("/sys/fs/cgroup/cpuacct", "cpuacct.usage"), ("/sys/fs/cgroup", "cpu.stat")];
        kinds.into_iter().find_map(|(root, usage)| {
            let group = Path::new(root).join(&name);
            fs::create_dir(&group).ok()?;
            let accounting = Self { group, usage };
            accounting.seconds()?;
            fs::write(accounting.group.join("cgroup.procs"), std::process::id().to_string()).ok()?;
            Some(accounting)
        })
    }

    /// Processor time so far, in seconds.
    pub(super) fn seconds(&self) -> Option<f64> {
        let text = fs::read_to_string(self.group.join(self.usage)).ok()?;
        match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
            Some(micros) => Some(micros.trim().parse::<f64>().ok()? / 1e6),
            None => Some(text.trim().parse::<f64>().ok()? / 1e9),
        }
    }
}

impl Drop for Accounting {
    fn drop(&mut self) {
        let parent = self.group.parent().unwrap_or(&self.group).join("cgroup.procs");
        let _left = fs::write(parent, std::process::id().to_string());
        let _left = fs::remove_dir(&self.group);
    }
}

/// The most memory that a process had so far, in bytes: all of it, and how much it has now that is not from files.
pub(super) fn memory(pid: u32) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some((value("VmHWM:")?, value("RssAnon:")?))
}

/// Processor, kernel and programs, for whoever reads the figures.
pub(super) fn description(programs: &[(&str, &Path)]) -> serde_json::Value {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let versions: serde_json::Map<_, _> =
        programs.iter().map(|(name, program)| ((*name).to_owned(), version(program).into())).collect();
    serde_json::json!({
        "processor": model.trim_start_matches([' ', '\t', ':']),
        "cores": cores,
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "programs": versions,
    })
}

fn version(program: &Path) -> String {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    said.lines().next().unwrap_or_default().to_owned()
}
