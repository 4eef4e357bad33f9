//! The probes: operations on a tree whose time is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tarpon_harness::process;

use crate::machine;
use crate::trees::Tree;

/// An operation on a tree.
pub(super) struct Probe {
    pub(super) name: &'static str,
    /// Whether it is fast enough for quick runs.
    pub(super) quick: bool,
    what: What,
}

enum What {
    /// A shell line, run in the tree's root directory.
    Shell(&'static str),
    /// fio with these options, on the tree's largest file; the result is fio's own time, without its startup.
    Fio(&'static str),
}

/// With a warm page cache one pass is too short, so the file is read several times.
const AGAIN: &str = "--loops=20";

/// All probes. tar does not read files when it writes to /dev/null, so the output goes through `cat`.
pub(super) const PROBES: [Probe; 8] = [
    Probe { name: "find", quick: true, what: What::Shell("find . -xdev") },
    Probe {
        name: "stat",
        quick: true,
        what: What::Shell("for i in 1 2 3; do find . -xdev -printf '%s %m %u %T@ %p\\n'; done"),
    },
    Probe { name: "tar", quick: false, what: What::Shell("tar --one-file-system -cf - . | cat") },
    Probe {
        name: "small-files",
        quick: false,
        what: What::Shell("find . -xdev -type f -size -33k -print0 | sort -z | xargs -0 cat"),
    },
    Probe {
        name: "exec",
        quick: false,
        what: What::Shell("chroot . /bin/sh -c 'i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done'"),
    },
    Probe {
        name: "exec-parallel",
        quick: false,
        what: What::Shell(
            "for w in 1 2 3 4 5 6 7 8; do chroot . /bin/sh -c 'i=0; while [ $i -lt 60 ]; do /usr/bin/env true; i=$((i+1)); done' & done; wait",
        ),
    },
    Probe { name: "sequential", quick: false, what: What::Fio("--rw=read --bs=1M") },
    Probe { name: "random-4k", quick: false, what: What::Fio("--rw=randread --bs=4k --randseed=1") },
];

impl Probe {
    /// Prepares data that is needed before the page cache is dropped.
    pub(super) fn prepare(&self, tree: &Tree) -> Result<()> {
        match self.what {
            What::Shell(_) => Ok(()),
            What::Fio(_) => largest(tree.command("find"), &tree.root).map(drop),
        }
    }

    /// Reads the tools back into the page cache: only the tree is cold.
    pub(super) fn read_tools(&self) -> Result<()> {
        let tools: &[&str] = match self.what {
            What::Shell(_) => &["sh", "find", "sort", "xargs", "cat", "tar", "chroot"],
            What::Fio(_) => &["fio"],
        };
        for tool in tools {
            let program = process::find(tool).with_context(|| format!("{tool} is not installed"))?;
            machine::read_back(&program)?;
        }
        Ok(())
    }

    /// Runs the probe; returns its duration in seconds.
    pub(super) fn run(&self, tree: &Tree, cache: &str) -> Result<f64> {
        match self.what {
            What::Shell(line) => shell(tree.command("sh"), line, &tree.root),
            What::Fio(options) => {
                let file = largest(tree.command("find"), &tree.root)?;
                let again = if cache == "warm" { AGAIN } else { "" };
                fio(
                    tree.command("fio"),
                    options.split(' ').chain([again].into_iter().filter(|it| !it.is_empty())),
                    &file,
                )
            }
        }
    }
}

/// The time of a line that `sh` runs in the tree.
fn shell(mut sh: Command, line: &str, root: &Path) -> Result<f64> {
    sh.args(["-c", &format!("cd \"$0\" || exit 1; {line}")]).arg(root).stdin(Stdio::null()).stdout(Stdio::null());
    let began = Instant::now();
    let status = sh.status().context("cannot start sh")?;
    let took = began.elapsed();
    if !status.success() {
        bail!("{line} ended with {status}");
    }
    Ok(took.as_secs_f64())
}

fn fio<'o>(mut command: Command, options: impl Iterator<Item = &'o str>, file: &Path) -> Result<f64> {
    // Without `invalidate=0` fio drops the file from the page cache.
    command.args(["--name=probe", "--output-format=json", "--readonly", "--invalidate=0", "--ioengine=psync"]);
    command.args(options).arg(format!("--filename={}", file.display()));
    let output = command.stdin(Stdio::null()).output().context("cannot start fio")?;
    if !output.status.success() {
        bail!("fio ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    // Warnings may precede the JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap_or(0)..]).context("fio printed no JSON")?;
    reading(&report).context("fio reported no reads")
}

/// The total time of the reads in seconds; there is one job at a time.
fn reading(report: &Value) -> Option<f64> {
    let read = &report["jobs"][0]["read"];
    let count = read["total_ios"].as_f64().filter(|count| *count > 0.0)?;
    Some(read["clat_ns"]["mean"].as_f64()? * count / 1e9)
}

/// The largest file of a tree, the same in each form of it. `find` stays on the file system of the root.
fn largest(mut find: Command, root: &Path) -> Result<PathBuf> {
    find.arg(root).args(["-xdev", "-type", "f", "-printf", "%s %p\\0"]);
    let output = find.stdin(Stdio::null()).output().context("cannot start find")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let files = text.split_terminator('\0').filter_map(|line| line.split_once(' '));
    let best = files.filter_map(|(size, path)| Some((size.parse::<u64>().ok()?, path))).max();
    let best = best.filter(|(size, _)| *size > 0).with_context(|| format!("there is no file in {}", root.display()))?;
    Ok(best.1.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_file_is_found_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("deep")).unwrap();
        std::fs::write(folder.path().join("a"), "a").unwrap();
        std::fs::write(folder.path().join("deep/b"), "bb").unwrap();
        assert_eq!(largest(Command::new("find"), folder.path()).unwrap(), folder.path().join("deep/b"));
    }

    #[test]
    fn the_time_of_fio_is_that_of_its_reads() {
        let report = serde_json::json!({"jobs": [{"read": {"total_ios": 1000, "clat_ns": {"mean": 2000.0}}}]});
        assert_eq!(reading(&report), Some(0.002));
        assert_eq!(reading(&serde_json::json!({"jobs": []})), None);
    }

    #[test]
    fn a_line_that_fails_is_no_time() {
        assert!(
            shell(Command::new("sh"), "exit 3", Path::new(".")).is_err()
                && shell(Command::new("sh"), "true", Path::new(".")).is_ok()
        );
    }
}
