//! Cuts the power of a virtual machine while tarpon writes to a store in it, and checks the store after each cut.
//!
//! ```text
//! boot ─► hash objects ─► [read through mounts] ─► cache verify ─► hash again ─► read ─► ready ─► change … ─► kill -9 qemu
//!  ▲                                                                                                             │
//!  └──────────────────────────────────────── the same disk ◄─────────────────────────────────────────────────────┘
//! ```
//!
//! One boot is the check of the last cut and the writer for the next. Some cuts are within the check. `guest.sh` is the work inside of the machine, the
//! images come from a second disk, and the machine has no network.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, program};

mod account;
mod disk;
mod initramfs;
mod layout;
mod machine;
mod message;

use crate::kernel::Kernel;
use crate::random::Random;
use account::Account;
use disk::Disk;
use machine::{Machine, Parts, Run};
use message::Message;

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

/// The modules that the machine needs.
const NEEDED: &[&str] = &["virtio_pci", "virtio_blk", "fuse"];
/// Those of the mode `native`, which not every kernel supports.
const USEFUL: &[&str] = &["overlay", "erofs"];

/// Changes before a cut, at most: each takes about a second.
const CHANGES: u64 = 12;
/// One of this many cuts is within the check of the one before.
const CHECKED_CUTS: u64 = 8;
/// Messages of a check that reads files of all images, besides the lists of objects.
const CHECK_MESSAGES: u64 = 8;
/// Time from the last of these changes or messages to the cut, at most: longer than most changes.
const LAST_MOMENTS_MS: u64 = 1500;

pub(crate) fn run(args: &Args) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the virtual machine has an x86-64 processor, and the program to test must run in it");
    }
    packages::ensure(TOOLS)?;
    let work = paths::target().join("crash/run");
    let _absent = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let outcome = cut_and_check(args, &work);
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

fn cut_and_check(args: &Args, work: &Path) -> Result<Account> {
    let tarpon = program::named_or_built(args.tarpon.as_deref())?;
    let kernel = Kernel::get(NEEDED, USEFUL)?;
    let (initramfs, images) = (work.join("initramfs.cpio"), work.join("images.raw"));
    initramfs::build(&initramfs, &tarpon, &kernel)?;
    let mut account = Account::new(layout::build(&images, &work.join("images"), &tarpon)?);
    let parts = Parts { kernel: kernel.image, initramfs, images, logs: work.to_owned() };
    let disk = Disk::create(work)?;
    let mut random = Random::new(args.seed);
    let began = Instant::now();
    for _ in 0..args.cuts {
        let (began, machine) = (Instant::now(), start(&parts, &disk, &mut random, false)?);
        let when = run_until_cut(&machine, &mut account, &mut random)?;
        machine.cut()?.into_iter().for_each(|message| account.note(message));
        disk.detach()?;
        account.cuts += 1;
        println!("cut {} {when}, {:.1} s; until now {account}", account.cuts, began.elapsed().as_secs_f64());
    }
    let machine = start(&parts, &disk, &mut random, true)?;
    check(&machine, &mut account, None)?;
    while let Some(message) = machine.next()? {
        account.note(message);
    }
    report(&account, args, began.elapsed().as_secs_f64())?;
    Ok(account)
}

fn start(parts: &Parts, disk: &Disk, random: &mut Random, is_last: bool) -> Result<Machine> {
    let run = Run {
        store: disk.attach(random.below(2) == 0)?,
        cache: disk.cache,
        seed: random.below(1 << 15),
        reads_first: random.below(2) == 0,
        is_last,
    };
    Machine::start(parts, &run)
}

/// Returns at a random moment, and describes it.
fn run_until_cut(machine: &Machine, account: &mut Account, random: &mut Random) -> Result<String> {
    let messages = (random.below(CHECKED_CUTS) == 0).then(|| random.below(CHECK_MESSAGES) + 1);
    let when = if check(machine, account, messages)? {
        let changes = random.below(CHANGES) + 1;
        change(machine, account, changes)?;
        format!("after {changes} changes")
    } else {
        "within the check".to_owned()
    };
    thread::sleep(Duration::from_millis(random.below(LAST_MOMENTS_MS)));
    Ok(when)
}

/// Waits until the store is checked, or until this many messages of the check. Returns whether it was checked.
fn check(machine: &Machine, account: &mut Account, messages: Option<u64>) -> Result<bool> {
    let (mut is_compared, mut seen) = (false, 0);
    while messages.is_none_or(|limit| seen < limit) {
        let message = machine.expect()?;
        if message == Message::Ready {
            return Ok(true);
        }
        let is_list = matches!(message, Message::Boot | Message::Found { .. } | Message::Sound(_));
        if !is_list && !is_compared {
            account.compare();
            is_compared = true;
        }
        seen += u64::from(!matches!(message, Message::Sound(_)));
        account.note(message);
    }
    Ok(false)
}

/// Waits for this many changes.
fn change(machine: &Machine, account: &mut Account, changes: u64) -> Result<()> {
    let mut left = changes;
    while left > 0 {
        let message = machine.expect()?;
        left -= u64::from(message == Message::Step);
        account.note(message);
    }
    Ok(())
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
