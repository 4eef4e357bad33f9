//! Runs every check and every test, and counts them all in one last line.
//!
//! A failed check or run does not stop the following ones: the result must be complete.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use tarpon_harness::instructions::{self, Outcome};
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, process};

use crate::{bench, images, tidy};

mod cargo;
mod claims;
mod count;
mod disk;
mod output;
mod programs;
mod schedule;

use count::Count;
use programs::Which;

/// The options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only what needs no system packages and no images: no end-to-end tests
    #[arg(long)]
    quick: bool,
    /// All combinations of formats, modes and kinds of damage, as before a release
    #[arg(long, conflicts_with = "quick")]
    all: bool,
}

/// The device that a slow link needs.
const TUN: &str = "/dev/net/tun";

/// Programs that the end-to-end tests run or compare with.
const TOOLS: &[Tool] = &[
    tool("fusermount3", "fuse3"),
    tool("umoci", "umoci"),
    tool("skopeo", "skopeo"),
    tool("buildah", "buildah"),
    tool("podman", "podman"),
    tool("crun", "crun"),
    tool("runc", "runc"),
    tool("containerd", "containerd"),
    tool("docker-registry", "docker-registry"),
    tool("debootstrap", "debootstrap"),
    tool("fsck.erofs", "erofs-utils"),
    tool("mkfs.ext4", "e2fsprogs"),
    tool("setfattr", "attr"),
    tool("getfacl", "acl"),
    tool("curl", "curl"),
    tool("ip", "iproute2"),
    tool("zstd", "zstd"),
    tool("pigz", "pigz"),
    tool("jq", "jq"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    let (mut all, mut skipped) = (Count::default(), Vec::new());
    all += check("format", cargo(&["fmt", "--all", "--check"]));
    all += check("lints", cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]));
    all += check("rules", tidy::run);
    all += dependencies(&mut skipped);
    all +=
        if args.quick { tests(&Which::AllButEndToEnd, Count::default)? } else { end_to_end(args.all, &mut skipped)? };
    for line in skipped {
        println!("skipped: {line}");
    }
    println!("took {} s", start.elapsed().as_secs());
    println!("{all}");
    if all.failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// Runs one check, which counts as one test.
fn check(name: &str, check: impl FnOnce() -> Result<()>) -> Count {
    println!("== {name}");
    match check() {
        Ok(()) => Count::passed(),
        Err(error) => {
            println!("{name} failed: {error:#}");
            Count::failed()
        }
    }
}

/// The checks that could not run, with reasons: repeated at the end, before the line with the counts.
type Skipped = Vec<String>;

fn skip(skipped: &mut Skipped, name: &str, why: &str) -> Count {
    println!("== {name}: skipped, {why}");
    skipped.push(format!("{name}: {why}"));
    Count::skipped()
}

fn cargo(args: &'static [&'static str]) -> impl FnOnce() -> Result<()> {
    move || process::check(Command::new("cargo").args(args).current_dir(paths::root()))
}

/// Checks licences, sources and duplicates of the dependencies. Skipped without the tool, which is too big to be built just for this.
fn dependencies(skipped: &mut Skipped) -> Count {
    if process::find_in_cargo_home("cargo-deny").is_none() {
        return skip(skipped, "dependencies", "cargo-deny is not installed");
    }
    check("dependencies", cargo(&["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]))
}

/// Runs all cargo tests, and the benchmarks that serve as checks.
fn end_to_end(is_full: bool, skipped: &mut Skipped) -> Result<Count> {
    let images = prepare_images();
    let registry = images.as_ref().map(images::TestImages::registry);
    let _disk = images.as_ref().and_then(|_| {
        let made = disk::Disk::mount();
        made.inspect_err(|error| println!("the tests use the disk of {}: {error:#}", paths::root().display())).ok()
    });
    tests(&Which::All { registry, is_full }, || benchmark(images.as_ref(), skipped) + count_instructions(skipped))
}

/// Builds and runs tests. `meanwhile` runs between the two, alone on the machine, because it measures.
fn tests(which: &Which<'_>, meanwhile: impl FnOnce() -> Count) -> Result<Count> {
    println!("== build");
    let began = Instant::now();
    let root = paths::root();
    let programs = match cargo::build(&root, matches!(which, Which::All { .. })) {
        Ok(programs) => programs,
        Err(error) => {
            println!("build failed: {error:#}");
            return Ok(Count::failed());
        }
    };
    println!("built {} test programs in {} s", programs.len(), began.elapsed().as_secs());
    let measured = meanwhile();
    println!("== tests");
    Ok(measured + programs::run(&root, which, programs)?)
}

/// Checks that the start benchmark works, with one workload and two systems. Its figures do not matter.
fn benchmark(images: Option<&images::TestImages>, skipped: &mut Skipped) -> Count {
    let Some(images) = images.filter(|_| Path::new(TUN).exists()) else {
        return skip(skipped, "the benchmark", &format!("it needs root, images and {TUN}"));
    };
    check("the benchmark", || {
        let mut command = bench::command();
        command.args(["start", "--quick", "--tarpon"]).arg(paths::target().join("debug/tarpon"));
        process::check(command.env("REGISTRY", images.registry()))
    })
}

/// Checks that hot functions do not take more instructions than before.
fn count_instructions(skipped: &mut Skipped) -> Count {
    println!("== instructions");
    let counted = packages::ensure(&[tool("valgrind", "valgrind")])
        .map_or_else(|error| Ok(Outcome::Skipped(format!("{error:#}"))), |()| instructions::gate(false, &[]));
    match counted {
        Ok(Outcome::Same) => Count::passed(),
        Ok(Outcome::Skipped(why)) => skip(skipped, "instructions", &why),
        Err(error) => {
            println!("instructions failed: {error:#}");
            Count::failed()
        }
    }
}

/// Installs the tools and builds the images of the end-to-end tests. Tests that need a missing one are skipped.
fn prepare_images() -> Option<images::TestImages> {
    println!("== images");
    let prepared = packages::ensure(TOOLS).and_then(|()| {
        if !packages::is_root() {
            bail!("not root");
        }
        images::TestImages::prepare()
    });
    prepared
        .inspect_err(|error| println!("the tests that need root, system packages or images are skipped: {error:#}"))
        .ok()
}
