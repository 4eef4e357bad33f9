//! Boots virtual machines with the distributions and kernels that users have, and tests tarpon in each.
//!
//! ```text
//! debootstrap ─► disk (kept) ─► boot on a layer over it ─► sentences.sh ─► boot again ─► sentences.sh ─► a row of the table
//!                                    ▲ tools: the program, the suite, the digests of the image's files
//! registry on the host ──────────────┘ 10.0.2.2, through qemu's network for users
//! ```
//!
//! Every machine runs systemd, and nothing of the host's kernel: qemu emulates a processor. `sentences.sh` is the suite.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, program};

use crate::images::registry::Registry;
use crate::{debian, sample_image};

mod disk;
mod outcome;
mod suites;

use crate::vm::{self, Machine, Parts};
use disk::Disk;
use outcome::Outcome;
use suites::{SUITES, Suite};

/// The options of `cargo xtask machines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The machines to boot [default: all]; an unknown name lists them
    names: Vec<String>,
    /// Run only the sentences that contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program to test; it must run on all of these machines, so best a static one [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

const TOOLS: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("qemu-img", "qemu-utils"),
    tool("debootstrap", "debootstrap"),
    tool("docker-registry", "docker-registry"),
    tool("mkfs.ext4", "e2fsprogs"),
    tool("strip", "binutils"),
];

const SENTENCES: &str = include_str!("sentences.sh");
/// The files of the image: enough that every sentence finds some that are not local.
const FILES: usize = 400;
/// The suite's containers and Podman's own processes, with room for the page cache.
const MEMORY: &str = "1536M";
/// Several times the program.
const TOOLS_BYTES: u64 = 512 << 20;
/// Longest time between two messages. The longest is a boot on a busy host.
const MESSAGE_LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machines have x86-64 processors, and the program to test must run in them");
    }
    let suites = select(&args.names)?;
    if !packages::is_root() {
        bail!("only root can make the disks");
    }
    packages::ensure(TOOLS)?;
    let folder = paths::target().join("machines");
    fs::create_dir_all(&folder)?;
    let tarpon = program::stripped(args.bin.as_deref(), &folder.join("tarpon"))?;
    let registry = Registry::private("machines/registry")?;
    let _stop = registry.start_until_dropped()?;
    let base = debian::root(&folder.join("image-root"), "bookworm", "bash")?;
    let image = sample_image::get(&folder, &base, &registry, &tarpon, FILES)?;
    let tools = make_tools(&folder, &tarpon, &image, args.only.as_deref())?;
    let mut outcomes = Vec::new();
    for suite in suites {
        let began = Instant::now();
        let outcome = test(suite, &folder, &tools).with_context(|| format!("cannot test {}", suite.name))?;
        println!("{}: {}, {:.0} s", suite.name, outcome.sum(), began.elapsed().as_secs_f64());
        outcomes.push(outcome);
    }
    report(args, &outcomes)
}

/// The disk with the program, the suite, and what it compares files with.
fn make_tools(folder: &Path, tarpon: &Path, image: &sample_image::Image, only: Option<&str>) -> Result<PathBuf> {
    let (content, disk) = (folder.join("tools"), folder.join("tools.raw"));
    let _absent = fs::remove_dir_all(&content);
    fs::create_dir_all(&content)?;
    fs::copy(tarpon, content.join("tarpon"))?;
    fs::write(content.join("sentences.sh"), SENTENCES)?;
    let sums = image.files.iter().map(|(path, sum)| format!("{sum}  .{path}\n")).collect::<String>();
    fs::write(content.join("sums"), sums)?;
    let (address, name) = image.reference.split_once('/').context("the image is in no registry")?;
    let (_, port) = address.split_once(':').context("the registry has no port")?;
    // The host, in qemu's network for users.
    fs::write(content.join("registry"), format!("10.0.2.2:{port}\n"))?;
    fs::write(content.join("image"), format!("127.0.0.1:5000/{name}\n"))?;
    fs::write(content.join("only"), only.unwrap_or_default())?;
    let units = paths::root().join("contrib/systemd");
    for unit in ["tarpon.service", "tarpon.socket"] {
        fs::copy(units.join(unit), content.join(unit))?;
    }
    vm::make_disk(&content, &disk, TOOLS_BYTES)?;
    Ok(disk)
}

/// Boots the machine until it has ended by itself.
fn test(suite: &Suite, folder: &Path, tools: &Path) -> Result<Outcome> {
    let work = folder.join(suite.name);
    fs::create_dir_all(&work)?;
    let disk = Disk::get(suite, &work)?;
    for log in ["console.log", "messages.log"] {
        let _absent = fs::remove_file(work.join(log));
    }
    let overlay = disk.overlay(&work)?;
    let drives = [
        format!("file={},format=qcow2,cache=unsafe", overlay.display()),
        format!("file={},format=raw,readonly=on", tools.display()),
    ];
    let machine = Machine::start(&Parts {
        kernel: &disk.kernel,
        initramfs: &disk.initramfs,
        append: "root=/dev/vda rw",
        memory: MEMORY,
        drives: &drives,
        arguments: &["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net", "-device", "virtio-rng-pci"],
        logs: &work,
    })?;
    let mut outcome = Outcome::new(suite.name);
    while let Some(line) = machine.next(MESSAGE_LIMIT)? {
        if let Some(text) = outcome.note(line.trim_end()) {
            println!("{}: {text}", suite.name);
        }
    }
    if !outcome.is_whole() {
        bail!("the machine ended before its suite{}", machine.end_of_console());
    }
    fs::remove_file(overlay)?;
    Ok(outcome)
}

fn report(args: &Args, outcomes: &[Outcome]) -> Result<()> {
    println!("\n{}", outcome::table(outcomes));
    if let Some(file) = &args.json {
        let machines: Vec<_> = outcomes.iter().map(Outcome::to_json).collect();
        let text = format!("{:#}\n", json!({ "machines": machines }));
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let failed: usize = outcomes.iter().map(Outcome::failures).sum();
    if failed > 0 {
        bail!("{failed} sentences are not true on some machine");
    }
    Ok(())
}

fn select(names: &[String]) -> Result<Vec<&'static Suite>> {
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|suite| suite.name == **name)) {
        let all: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("no machine is named {unknown}; there are {}", all.join(", "));
    }
    Ok(SUITES.iter().filter(|suite| names.is_empty() || names.iter().any(|name| name == suite.name)).collect())
}
