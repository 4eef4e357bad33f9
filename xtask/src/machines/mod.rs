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
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, process, program};

use crate::images::registry::Registry;
use crate::{debian, document, sample_image};

mod disk;
mod outcome;
mod suites;
mod tables;

use crate::vm::{self, Machine, Parts};
use disk::Disk;
use outcome::Outcome;
use suites::{SENTENCES, SUITES, Suite};
use tables::MARKS;

/// The options of `cargo xtask machines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The machines to boot [default: all]; an unknown name lists them
    names: Vec<String>,
    /// Run only the sentences that match this extended regular expression
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program to test; it must run on all of these machines, so best a static one [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
    /// Install this package of Debian, and test the program in it
    #[arg(long, value_name = "FILE", conflicts_with = "bin")]
    package: Option<PathBuf>,
    /// Boot so many machines at once, each of which needs a processor and 1.5 GiB of memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// Boot nothing: write the last results into docs/machines.md, where machines that were not tested here keep theirs
    #[arg(long, conflicts_with_all = ["names", "only", "json", "bin", "package"])]
    document: bool,
}

const TOOLS: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("qemu-img", "qemu-utils"),
    tool("debootstrap", "debootstrap"),
    tool("docker-registry", "docker-registry"),
    tool("mkfs.ext4", "e2fsprogs"),
    tool("strip", "binutils"),
    tool("skopeo", "skopeo"),
    tool("dpkg-deb", "dpkg"),
];

/// The files of the image: enough that every sentence finds some that are not local.
const FILES: usize = 400;
/// Those of the image with plain layers, which is read as a whole once.
const PLAIN_FILES: usize = 100;
/// The suite's containers and Podman's own processes, with room for the page cache.
const MEMORY: &str = "1536M";
/// Several times the program.
const TOOLS_BYTES: u64 = 512 << 20;
/// Longest time between two messages. The longest is a boot on a busy host.
const MESSAGE_LIMIT: Duration = Duration::from_secs(600);

/// File with a machine's results: each sentence's last one.
const RESULTS: &str = "results.json";
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = paths::target().join("machines");
    if args.document {
        return write_document(&folder);
    }
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machines have x86-64 processors, and the program to test must run in them");
    }
    let suites = select(&args.names)?;
    if !packages::is_root() {
        bail!("only root can make the disks");
    }
    packages::ensure(TOOLS)?;
    fs::create_dir_all(&folder)?;
    let tarpon = take_program(args, &folder)?;
    let registry = Registry::private("machines/registry")?;
    let _stop = registry.start_until_dropped()?;
    let base = debian::root(&folder.join("image-root"), "bookworm", "bash")?;
    let image = sample_image::get(&folder, &base, &registry, &tarpon, FILES)?;
    let plain = sample_image::get_plain(&folder, &base, &registry, PLAIN_FILES)?;
    let tools = make_tools(&folder, &tarpon, [&image, &plain], args)?;
    let (next, outcomes) = (Mutex::new(suites.iter()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        // One at a time takes the next; the guard ends with the statement.
        while let Some(suite) = { next.lock().map_or(None, |mut suites| suites.next()) } {
            let mut outcome = Outcome::new(suite.title);
            let tested = test(suite, &folder, &tools, &mut outcome);
            let file = folder.join(suite.name).join(RESULTS);
            let is_whole = tested.is_ok() && args.only.is_none();
            let known = if is_whole { None } else { known(suite, &file)? };
            let all = known.map_or_else(|| outcome.clone(), |known| known.updated(&outcome));
            write_results(&file, &[&all])?;
            tested.with_context(|| format!("cannot test {}", suite.name))?;
            outcomes.lock().map_err(|_| anyhow!("a thread panicked"))?.push((suite.name, outcome));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let mut outcomes = outcomes.into_inner()?;
    outcomes.sort_by_key(|(name, _)| suites.iter().position(|suite| suite.name == *name));
    report(args, &outcomes.into_iter().map(|(_, outcome)| outcome).collect::<Vec<_>>())
}

/// The stripped program to test.
fn take_program(args: &Args, folder: &Path) -> Result<PathBuf> {
    let to = folder.join("tarpon");
    let Some(package) = &args.package else { return program::stripped(args.bin.as_deref(), &to) };
    let content = folder.join("package");
    let _absent = fs::remove_dir_all(&content);
    process::check(Command::new("dpkg-deb").arg("--extract").args([package, &content]))?;
    fs::copy(content.join("usr/bin/tarpon"), &to).context("the package has no usr/bin/tarpon")?;
    Ok(to)
}

/// The disk with the program, the suite, and what it compares files with.
fn make_tools(folder: &Path, tarpon: &Path, images: [&sample_image::Image; 2], args: &Args) -> Result<PathBuf> {
    let (content, disk) = (folder.join("tools"), folder.join("tools.raw"));
    let _absent = fs::remove_dir_all(&content);
    fs::create_dir_all(&content)?;
    fs::copy(tarpon, content.join("tarpon"))?;
    if let Some(package) = &args.package {
        fs::copy(package, content.join("tarpon.deb"))?;
    }
    fs::write(content.join("sentences.sh"), SENTENCES)?;
    for (image, name) in images.into_iter().zip(["image", "plain"]) {
        let sums = image.files.iter().map(|(path, sum)| format!("{sum}  .{path}\n")).collect::<String>();
        fs::write(content.join(format!("{name}-sums")), sums)?;
        let (address, path) = image.reference.split_once('/').context("the image is in no registry")?;
        let (_, port) = address.split_once(':').context("the registry has no port")?;
        // The host, in qemu's network for users.
        fs::write(content.join("registry"), format!("10.0.2.2:{port}\n"))?;
        fs::write(content.join(name), format!("127.0.0.1:5000/{path}\n"))?;
    }
    fs::write(content.join("only"), args.only.as_deref().unwrap_or_default())?;
    let root = paths::root();
    fs::copy(root.join("README.md"), content.join("README.md"))?;
    let containerd = fs::read_to_string(root.join("docs/containerd.md"))?;
    for version in ["2", "3"] {
        let with = format!("version = {version}");
        let block = document::block(&containerd, "toml", &with);
        let block = block.with_context(|| format!("docs/containerd.md has no configuration with {with}"))?;
        fs::write(content.join(format!("containerd-{version}.toml")), block)?;
    }
    let units = root.join("contrib/systemd");
    process::check(Command::new("cp").arg("--recursive").args([&units, &content.join("units")]))?;
    vm::make_disk(&content, &disk, TOOLS_BYTES)?;
    Ok(disk)
}

/// Boots the machine until it has ended by itself.
fn test(suite: &Suite, folder: &Path, tools: &Path, outcome: &mut Outcome) -> Result<()> {
    let work = folder.join(suite.name);
    fs::create_dir_all(&work)?;
    let disk = Disk::get(suite, &work)?;
    let began = Instant::now();
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
    while let Some(line) = machine.next(MESSAGE_LIMIT)? {
        if let Some(text) = outcome.note(line.trim_end()) {
            println!("{}: {text}", suite.name);
        }
    }
    if !outcome.is_whole() {
        bail!("the machine ended before its suite{}", machine.end_of_console());
    }
    fs::remove_file(overlay)?;
    let seconds = began.elapsed().as_secs();
    outcome.add_fact("minutes", format!("{:.0}", f64::from(u32::try_from(seconds)?) / 60.0));
    println!("{}: {}, {seconds} s", suite.name, outcome.sum());
    Ok(())
}

/// The last results of a machine, which those of a part of the sentences replace in part: of this checkout, or in the document.
fn known(suite: &Suite, file: &Path) -> Result<Option<Outcome>> {
    if file.exists() {
        return Outcome::read(file).map(Some);
    }
    let document = Document::read()?;
    Ok(document.outcomes()?.into_iter().find(|outcome| outcome.machine == suite.title))
}

fn report(args: &Args, outcomes: &[Outcome]) -> Result<()> {
    println!("\n{}", tables::write(outcomes));
    if let Some(file) = &args.json {
        write_results(file, &outcomes.iter().collect::<Vec<_>>())?;
    }
    let failed: usize = outcomes.iter().map(Outcome::failures).sum();
    if failed > 0 {
        bail!("{failed} sentences are not true on some machine");
    }
    Ok(())
}

fn write_results(file: &Path, outcomes: &[&Outcome]) -> Result<()> {
    let machines: Vec<_> = outcomes.iter().map(|outcome| outcome.to_json()).collect();
    let value = match &machines[..] {
        [one] => one.clone(),
        _ => json!({ "machines": machines }),
    };
    fs::write(file, format!("{value:#}\n")).with_context(|| format!("cannot write {}", file.display()))
}

/// docs/machines.md, with what is before, between and after its marks.
struct Document {
    file: PathBuf,
    before: String,
    tables: String,
    after: String,
}

impl Document {
    fn read() -> Result<Self> {
        let file = paths::root().join("docs/machines.md");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let missing = || format!("{} has no {}", file.display(), MARKS[0].trim());
        let (before, rest) = text.split_once(MARKS[0]).with_context(missing)?;
        let (tables, after) = rest.split_once(MARKS[1]).with_context(missing)?;
        Ok(Self { before: before.to_owned(), tables: tables.to_owned(), after: after.to_owned(), file })
    }

    fn outcomes(&self) -> Result<Vec<Outcome>> {
        tables::read(&self.tables).with_context(|| format!("cannot read the tables in {}", self.file.display()))
    }

    fn write(&self, outcomes: &[Outcome]) -> Result<()> {
        let (tables, [start, end]) = (tables::write(outcomes), MARKS);
        fs::write(&self.file, format!("{}{start}\n{tables}\n{end}{}", self.before, self.after))
            .with_context(|| format!("cannot write {}", self.file.display()))
    }
}

/// Replaces the tables in docs/machines.md. A machine that was not tested in this checkout keeps its column.
fn write_document(folder: &Path) -> Result<()> {
    let document = Document::read()?;
    let known = document.outcomes()?;
    let (mut outcomes, mut new) = (Vec::new(), 0_usize);
    for suite in SUITES {
        let results = folder.join(suite.name).join(RESULTS);
        if results.exists() {
            outcomes.push(Outcome::read(&results)?);
            new += 1;
        } else {
            outcomes.extend(known.iter().find(|outcome| outcome.machine == suite.title).cloned());
        }
    }
    if new == 0 {
        bail!("no machine was tested yet: cargo xtask machines");
    }
    for outcome in &mut outcomes {
        // The document may know some by older names.
        outcome.sentences.retain(|(name, _)| suites::position(name).is_some());
    }
    document.write(&outcomes)?;
    println!("wrote the results of {new} machines into {}, of {} in all", document.file.display(), outcomes.len());
    Ok(())
}

fn select(names: &[String]) -> Result<Vec<&'static Suite>> {
    if let Some(unknown) = names.iter().find(|name| !SUITES.iter().any(|suite| suite.name == **name)) {
        let all: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("no machine is named {unknown}; there are {}", all.join(", "));
    }
    Ok(SUITES.iter().filter(|suite| names.is_empty() || names.iter().any(|name| name == suite.name)).collect())
}
