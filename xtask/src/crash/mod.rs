//! Cuts the power of a virtual machine while tarpon writes to a store in it, and checks the store after each cut.
//!
//! ```text
//! boot ─► hash objects ─► [read through mounts] ─► cache verify ─► hash again ─► read ─► ready ─► change … ─► kill -9 qemu
//!  ▲                                                                                                             │
//!  └──────────────────────────────────────── the same disk ◄─────────────────────────────────────────────────────┘
//! ```
//!
//! One boot is the check of the last cut and the writer for the next. `guest.sh` is the work inside of the machine, the
//! images come from a second disk, and the machine has no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, process};

mod account;
mod disk;
mod initramfs;
mod kernel;
mod layout;
mod machine;
mod message;
mod random;

use account::Account;
use disk::Disk;
use kernel::Kernel;
use machine::{Machine, Parts, Run};
use message::Message;
use random::Random;

/// The options of `cargo xtask crash`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often the power is cut
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    cuts: u32,
    /// Determines what the machine does and after how many changes it is cut
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the disk and the logs, as after a finding
    #[arg(long)]
    keep: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program to test [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    tarpon: Option<PathBuf>,
}

const TOOLS: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("qemu-img", "qemu-utils"),
    tool("busybox", "busybox-static"),
    tool("cpio", "cpio"),
    tool("mkfs.ext4", "e2fsprogs"),
    tool("strip", "binutils"),
];

/// Changes before a cut, at most: each takes about a second.
const CHANGES: u64 = 12;
/// Time from the last of these changes to the cut, at most: longer than most changes.
const LAST_MOMENTS_MS: u64 = 1500;

pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machine has an x86-64 processor, and the program to test must run in it");
    }
    packages::ensure(TOOLS)?;
    let folder = paths::target().join("crash");
    let work = folder.join("run");
    let _absent = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let outcome = cut_and_check(args, &folder, &work);
    let is_sound = outcome.as_ref().is_ok_and(Account::is_sound);
    if is_sound && !args.keep {
        fs::remove_dir_all(&work)?;
    } else {
        println!("kept: {}", work.display());
    }
    if !outcome?.is_sound() {
        bail!("the store did not survive every power cut");
    }
    Ok(())
}

fn cut_and_check(args: &Args, folder: &Path, work: &Path) -> Result<Account> {
    let tarpon = program(args.tarpon.as_deref())?;
    let kernel = Kernel::get(&folder.join("kernel"))?;
    let (initramfs, images) = (work.join("initramfs.cpio"), work.join("images.raw"));
    initramfs::build(&initramfs, &tarpon, &kernel)?;
    let mut account = Account::new(layout::build(&images, &work.join("images"), &tarpon)?);
    let parts = Parts { kernel: kernel.image, initramfs, images, logs: work.to_owned() };
    let disk = Disk::create(work)?;
    let mut random = Random::new(args.seed);
    let began = Instant::now();
    for number in 0..=args.cuts {
        let is_last = number == args.cuts;
        account.cuts = number;
        let is_forgetful = random.below(2) == 0;
        let began = Instant::now();
        let run = Run {
            store: disk.attach(is_forgetful)?,
            cache: disk.cache,
            seed: random.below(1 << 15),
            reads_first: random.below(2) == 0,
            is_last,
        };
        let machine = Machine::start(&parts, &run)?;
        check(&machine, &mut account)?;
        if is_last {
            while let Some(message) = machine.next()? {
                account.note(message);
            }
        } else {
            let changes = change(&machine, &mut account, &mut random)?;
            machine.cut()?.into_iter().for_each(|message| account.note(message));
            let seconds = began.elapsed().as_secs_f64();
            println!("cut {} after {changes} changes, {seconds:.1} s; until now {account}", number + 1);
        }
        disk.detach()?;
    }
    let seconds = began.elapsed().as_secs_f64();
    report(&account, args, seconds)?;
    Ok(account)
}

/// Waits until the store is checked.
fn check(machine: &Machine, account: &mut Account) -> Result<()> {
    let mut is_compared = false;
    loop {
        let message = machine.expect()?;
        if matches!(message, Message::Ready) {
            return Ok(());
        }
        let is_listed = !matches!(message, Message::Boot(_) | Message::Found { .. } | Message::Sound(_));
        if is_listed && !is_compared {
            account.compare();
            is_compared = true;
        }
        account.note(message);
    }
}

/// Waits for a random number of changes and a random time. Returns the number.
fn change(machine: &Machine, account: &mut Account, random: &mut Random) -> Result<u64> {
    let changes = 1 + random.below(CHANGES);
    let mut left = changes;
    while left > 0 {
        let message = machine.expect()?;
        left -= u64::from(message == Message::Step);
        account.note(message);
    }
    thread::sleep(Duration::from_millis(random.below(LAST_MOMENTS_MS)));
    Ok(changes)
}

fn report(account: &Account, args: &Args, seconds: f64) -> Result<()> {
    account.findings.iter().for_each(|finding| println!("{finding}"));
    println!("{} cuts: {account}; {:.1} s per cut", account.cuts, seconds / f64::from(args.cuts));
    if let Some(file) = &args.json {
        let text = format!("{:#}\n", account.to_json(args.seed, seconds));
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn program(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return fs::canonicalize(named).with_context(|| format!("cannot find {}", named.display()));
    }
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "--package", "tarpon"]).current_dir(paths::root());
    process::check(&mut build)?;
    Ok(paths::target().join("release/tarpon"))
}
