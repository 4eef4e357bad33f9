//! Boots virtual machines whose root is an image that tarpon mounts on the host, by virtiofs, and compares them with the host.
//!
//! ```text
//! registry ─► tarpon mount ─► virtiofsd ─► qemu ─► virtiofs ─► overlayfs in memory ─► the workload is process 1's child
//!                  │
//!                  └─► the same workload on the host, from another empty store ─► bytes, contents, attributes are compared
//! ```
//!
//! `init.sh` is the first process of a machine, `start.sh` what it executes in the image. qemu emulates the processor: KVM is not needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::workloads::{self, Workload};
use tarpon_harness::{paths, process, program};

use crate::images::TestImages;
use crate::kernel::Kernel;

mod check;
mod containerd;
mod daemon;
mod guest;
mod host;
mod message;
mod mount;
mod report;
mod scripts;
mod shared;
mod starts;

use containerd::Containerd;
use guest::Parts;
use mount::Mount;
use report::Report;

/// The options of `cargo xtask virtiofs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads of fixtures/corpus/workloads.tsv to start; all of the first one's image is read
    #[arg(default_values = ["python-numpy", "debian-sh"])]
    workloads: Vec<String>,
    /// The tag of the images: gzip, zstdchunked, estargz
    #[arg(long, default_value = "zstdchunked")]
    tag: String,
    /// The mode of the mounts: auto, native, fuse
    #[arg(long, default_value = "auto")]
    mode: String,
    /// What the machine may cache, as virtiofsd's option of this name takes it: auto, always, none
    #[arg(long, default_value = "auto")]
    cache: String,
    /// The virtiofsd to use [default: that of the distribution]
    #[arg(long, value_name = "FILE")]
    virtiofsd: Option<PathBuf>,
    /// Repeat all starts this many times, each from empty stores
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Write every run to this file, as JSON lines [default: target/bench/virtiofs.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append to the file
    #[arg(long)]
    add: bool,
    /// The program to test [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

/// Debian 12 has virtiofsd in a package that qemu needs.
const TOOLS: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("cpio", "cpio"),
    tool("unshare", "util-linux"),
    tool("containerd", "containerd"),
    tool("curl", "curl"),
];

/// The registry and the images of a run, and the program that mounts them.
struct Source {
    tarpon: PathBuf,
    registry: String,
    tag: String,
    mode: String,
}

impl Source {
    fn image(&self, of: &Workload) -> String {
        format!("{}/{}:{}", self.registry, of.image, self.tag)
    }

    /// Mounts the image of a workload from an empty store in a folder of this name.
    fn mount(&self, parts: &Parts, workload: &Workload, name: &str, options: &[&str]) -> Result<Mount> {
        let options = [&["--mode", &self.mode], options].concat();
        Mount::new(&self.tarpon, &parts.work.join(&workload.id).join(name), &self.image(workload), &options)
    }
}

/// How much of a workload is tested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Starts from a mount.
    Starts,
    /// And from containerd's snapshot.
    Containerd,
    /// And all of the image is read and compared, and a writable mount is written to.
    All,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machine has an x86-64 processor, and the image's programs must run in it");
    }
    if !packages::is_root() {
        bail!("only root can share a directory with all its owners and start a workload in it");
    }
    packages::ensure(TOOLS)?;
    let workloads = workloads::load(None, &args.workloads)?;
    if let Some(other) = workloads.iter().find(|workload| !starts::is_possible(workload)) {
        bail!("{} does not show by its output that it was ready, or needs a network", other.id);
    }
    let virtiofsd = daemon::find(args.virtiofsd.as_deref())?;
    let tarpon = program::named_or_built(args.bin.as_deref())?;
    let work = make_folder()?;
    let names: Vec<_> = workloads.iter().map(|workload| workload.image.clone()).collect();
    let images = TestImages::with(&names, &args.tag)?;
    let source =
        Source { tarpon, registry: images.registry().to_owned(), tag: args.tag.clone(), mode: args.mode.clone() };
    let kernel = Kernel::get(guest::MODULES, &[])?;
    let mut report = begin(args, &virtiofsd, &source.tarpon, &kernel)?;
    report.remark(&format!("DAX: qemu {} show a machine its window", if has_dax()? { "can" } else { "cannot" }))?;
    let parts = Parts { kernel, virtiofsd, cache: args.cache.clone(), work };
    measure(args.runs, &source, parts, &workloads, &mut report)?;
    println!("{}", report.sum());
    match report.failures() {
        0 => Ok(()),
        failures => bail!("{failures} sentences are not true; logs: {}", folder().display()),
    }
}

/// Tests all workloads this many times, each time in a folder of its own. Removes the folders if all sentences are true.
fn measure(runs: u32, source: &Source, parts: Parts, workloads: &[Workload], report: &mut Report) -> Result<()> {
    let all = parts.work.clone();
    let mut parts = parts;
    for number in 1..=runs {
        println!("run {number} of {runs}");
        report.next_run();
        parts.work = all.join(number.to_string());
        fs::create_dir_all(&parts.work)?;
        for (place, workload) in workloads.iter().enumerate() {
            let extent = match (place, number) {
                (0, 1) => Extent::All,
                (0, _) => Extent::Containerd,
                _ => Extent::Starts,
            };
            test(source, &parts, workload, extent, report)?;
        }
    }
    if report.failures() == 0 {
        let _used = fs::remove_dir_all(all);
    }
    Ok(())
}

/// The file of the findings, with what holds for all of them.
fn begin(args: &Args, virtiofsd: &Path, tarpon: &Path, kernel: &Kernel) -> Result<Report> {
    let file = args.json.clone().unwrap_or_else(|| paths::benchmarks().join("virtiofs.jsonl"));
    let facts = json!({
        "virtiofsd": daemon::version(virtiofsd)?,
        "cache": args.cache,
        "tag": args.tag,
        "machine_kernel": kernel.image.file_name().unwrap_or_default().to_string_lossy(),
    });
    let [qemu, containerd] =
        ["qemu-system-x86_64", "containerd"].map(|program| process::find(program).unwrap_or_default());
    Report::begin(&file, &[tarpon, virtiofsd, &qemu, &containerd], facts, args.add)
}

fn folder() -> PathBuf {
    paths::target().join("virtiofs")
}

/// A folder for the stores and logs of this command.
fn make_folder() -> Result<PathBuf> {
    let all = folder();
    // What a failed run left. The server of one of its stores may still write there: as long as any process has a copy of its mount.
    let _absent = fs::remove_dir_all(&all);
    let work = all.join(std::process::id().to_string());
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    Ok(work)
}

fn test(source: &Source, parts: &Parts, workload: &Workload, extent: Extent, report: &mut Report) -> Result<()> {
    let on_host = source.mount(parts, workload, "host", &["--rw"])?;
    let shared = source.mount(parts, workload, "shared", &[])?;
    let on_host = starts::compare(parts, on_host, &shared, workload, report)?;
    if extent == Extent::All {
        let other = source.mount(parts, workload, "other", &[])?;
        check::read_all(parts, &shared, &other, report)?;
        other.unmount()?;
        let upper = parts.work.join("upper");
        fs::create_dir_all(&upper)?;
        let writable = source.mount(parts, workload, "writable", &[&format!("--rw={}", upper.display())])?;
        check::write(parts, &writable, &upper, report)?;
        writable.unmount()?;
    }
    if extent != Extent::Starts {
        let containerd = Containerd::start(&source.tarpon, &parts.work.join("containerd"), &source.image(workload))?;
        starts::start_later(parts, &containerd, workload, on_host, report)?;
    }
    shared.unmount()
}

/// Whether qemu can show the machine a window for DAX. That of the project's releases cannot; patched ones have this property.
fn has_dax() -> Result<bool> {
    let help = process::output(Command::new("qemu-system-x86_64").args(["-device", "vhost-user-fs-pci,help"]))?;
    Ok(help.lines().any(|line| line.trim_start().starts_with("cache-size=")))
}
