//! Runs every check and every test, and counts them all in one last line.
//!
//! A failed check or run does not stop the following ones: the result must be complete.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use tarpon_harness::instructions::{self, Outcome};
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{bucket, paths, process};

use crate::{bench, images, tidy};

pub(crate) mod cargo;
mod check;
mod claims;
mod count;
mod dependencies;
mod disk;
mod output;
mod programs;
mod schedule;
mod unsafe_crates;

use check::{Skipped, cargo, check, skip};
use count::Count;
use programs::Which;

/// The options of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Omit the end-to-end tests, which need system packages and images
    #[arg(long)]
    quick: bool,
    /// Test all combinations of formats, modes and kinds of damage, and count instructions
    #[arg(long, conflicts_with = "quick")]
    all: bool,
    /// Only print how many lines of unsafe code each dependency of the program has
    #[arg(long, conflicts_with_all = ["quick", "all"])]
    unsafe_crates: bool,
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
    // Where Debian and Ubuntu install it, which is not on the path.
    tool("/usr/lib/podman/netavark", "netavark"),
    tool("pasta", "passt"),
    tool("iptables-save", "iptables"),
    tool("newuidmap", "uidmap"),
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
    tool("minisign", "minisign"),
    tool("nginx", "nginx-light"),
    tool("openssl", "openssl"),
    // What installs the S3 server, which Debian does not package.
    tool("python3", "python3"),
    tool("pip3", "python3-pip"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.unsafe_crates {
        return unsafe_crates::print();
    }
    let start = Instant::now();
    let mut skipped = Vec::new();
    let all = if args.quick { quick(&mut skipped)? } else { complete(args.all, &mut skipped)? };
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

/// Runs what needs no system packages and no images.
fn quick(skipped: &mut Skipped) -> Result<Count> {
    let checked = checks(skipped);
    let (built, programs) = build(false);
    Ok(checked + built + tests(&Which::AllButEndToEnd, programs)?)
}

/// Runs everything. The images are built beside the checks and the tests, because their scripts mostly keep one processor busy or wait.
fn complete(is_full: bool, skipped: &mut Skipped) -> Result<Count> {
    let (images, checked, programs) = thread::scope(|scope| {
        let images = scope.spawn(prepare_images);
        let checked = checks(skipped);
        let (built, programs) = build(true);
        (images.join().unwrap_or_else(|panic| resume_unwind(panic)), checked + built, programs)
    });
    if programs.is_empty() {
        return Ok(checked);
    }
    let registry = images.as_ref().map(images::TestImages::registry);
    let _disk = images.as_ref().and_then(|_| {
        let made = disk::Disk::mount();
        made.inspect_err(|error| println!("the tests use the disk of {}: {error:#}", paths::root().display())).ok()
    });
    // Before the tests, because it measures.
    let mut count = checked + benchmark(images.as_ref(), skipped);
    if is_full {
        count += count_instructions(skipped);
    }
    Ok(count + tests(&Which::All { registry, is_full }, programs)?)
}

/// The checks that run no test program.
fn checks(skipped: &mut Skipped) -> Count {
    check("format", cargo(&["fmt", "--all", "--check"]))
        + check("rules", tidy::run)
        + check("unsafe crates", unsafe_crates::check)
        + dependencies::checks(skipped)
}

/// Builds the test programs, and counts the lints as one test. No programs if the build failed.
fn build(with_end_to_end: bool) -> (Count, Vec<cargo::Program>) {
    println!("== build and lints");
    let began = Instant::now();
    let built = match cargo::build(&paths::root(), with_end_to_end) {
        Ok(built) => built,
        Err(error) => {
            println!("build failed: {error:#}");
            return (Count::failed(), Vec::new());
        }
    };
    println!("built {} test programs in {} s", built.programs.len(), began.elapsed().as_secs());
    if built.lints.is_empty() {
        return (Count::passed(), built.programs);
    }
    println!("{}\nlints failed: {} warnings", built.lints.join("\n"), built.lints.len());
    (Count::failed(), built.programs)
}

/// Runs the test programs.
fn tests(which: &Which<'_>, programs: Vec<cargo::Program>) -> Result<Count> {
    if programs.is_empty() {
        return Ok(Count::default());
    }
    println!("== tests");
    programs::run(&paths::root(), which, programs)
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
        // Most tests do without it; the others report that it is missing.
        bucket::ensure().unwrap_or_else(|error| println!("no S3 server can be installed: {error:#}"));
        images::TestImages::prepare()
    });
    prepared
        .inspect_err(|error| println!("the tests that need root, system packages or images are skipped: {error:#}"))
        .ok()
}
