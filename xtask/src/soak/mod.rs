//! Runs containers for hours, with a store that is too small, a registry that ends and returns, and a server that is
//! killed; then reports whether memory, descriptors, threads, mounts or the store grow.
//!
//! The seed determines images, files, and the times of outages and kills; what runs at that moment depends on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, process, program};

mod account;
mod disturb;
mod images;
mod registry;
mod report;
mod sample;
mod slope;
mod worker;

use account::Account;
use disturb::Ends;
use registry::Registry;
use report::Run;
use sample::Reading;
use worker::Setting;

/// The options of `cargo xtask soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long
    #[arg(long, default_value_t = 2.0)]
    hours: f64,
    /// Determines images, files, outages and kills
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mean minutes between kills of the server: each life must be long enough for a slope
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    kill_every: u32,
    /// The program to test [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    tarpon: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Containers one after the other, per hour: 50 rounds in two hours.
const ROUNDS_PER_HOUR: f64 = 25.0;
/// The smallest limit that a store accepts; the images have about three times as much.
const STORE_SIZE: &str = "64MiB";
/// Interval of samples.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time limit for server and holder to end after the last mount.
const END_LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) fn run(args: &Args) -> Result<()> {
    if !packages::is_root() || !Path::new("/dev/fuse").exists() {
        bail!("containers need root and /dev/fuse");
    }
    let needed = ["docker-registry", "skopeo", "umoci", "runc"].map(|name| tool(name, name));
    packages::ensure(&needed)?;
    let tarpon = program::named_or_built(args.tarpon.as_deref())?;
    let folder = paths::target().join("soak");
    prepare(&folder)?;
    let mut registry = Registry::start(&folder.join("registry"))?;
    let images = images::build(&folder, registry.address(), &tarpon, args.seed)?;
    let run = soak(args, &tarpon, &folder, &mut registry, &images)?;
    fs::write(folder.join("report.json"), serde_json::to_vec_pretty(&run.json())?)?;
    fs::write(folder.join("samples.json"), serde_json::to_vec(&run.samples())?)?;
    if args.json {
        println!("{:#}", run.json());
    } else {
        println!("{}", run.table());
    }
    let problems = run.problems();
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    Ok(())
}

/// An empty folder. A store of an earlier run may still be mounted, and is not removed then.
fn prepare(folder: &Path) -> Result<()> {
    let mounts = sample::mounts(folder);
    if let Some(mount) = mounts.first() {
        bail!("{mount} is mounted, by an earlier run: unmount it (tarpon umount) first");
    }
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    for part in ["lists", "logs", "mount", "registry"] {
        fs::create_dir_all(folder.join(part))?;
    }
    Ok(())
}

fn soak(args: &Args, tarpon: &Path, folder: &Path, registry: &mut Registry, images: &[images::Image]) -> Result<Run> {
    let store = folder.join("store");
    let address = registry.address().to_owned();
    // Keeps the server alive when no container runs, and is never evicted.
    let kept = Kept::mount(tarpon, &store, folder, &format!("{address}/{}", images[0].name))?;
    let began = Instant::now();
    let kill_every = Duration::from_secs(60 * u64::from(args.kill_every.max(1)));
    let setting = Setting {
        tarpon,
        store: &store,
        folder,
        registry: &address,
        images,
        pause: 3600.0 / ROUNDS_PER_HOUR / f64::from(worker::BATCHES),
        rounds: rounds(args.hours),
        seed: args.seed,
        began,
        end: began + Duration::from_secs_f64(args.hours * 3600.0),
    };
    let (account, running) = (Account::default(), AtomicU32::new(worker::COUNT));
    let readings = thread::scope(|scope| -> Result<Vec<Reading>> {
        let (setting, account, running, store) = (&setting, &account, &running, &store);
        let workers: Vec<_> = (0..worker::COUNT)
            .map(|number| {
                scope.spawn(move || {
                    let result = worker::run(setting, number, account);
                    running.fetch_sub(1, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        let ends = Ends { at: setting.end, running };
        let outages = scope.spawn(move || disturb::outages(registry, args.seed + 1, began, ends, account));
        let kills = scope.spawn(move || disturb::kills(store, args.seed + 2, kill_every, began, ends, account));
        let readings = sample_until(running, folder, store, began);
        for thread in workers.into_iter().chain([outages, kills]) {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(readings)
    })?;
    let seconds = began.elapsed().as_secs_f64();
    kept.unmount()?;
    Ok(Run { seed: args.seed, seconds, readings, sum: account.sum(), left: left(folder, &store) })
}

/// At least one.
fn rounds(hours: f64) -> u32 {
    let rounds = (hours * ROUNDS_PER_HOUR).round().clamp(1.0, f64::from(u16::MAX));
    // The range makes it exact.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rounds = rounds as u32;
    rounds
}

/// Samples until no worker runs.
fn sample_until(running: &AtomicU32, folder: &Path, store: &Path, began: Instant) -> Vec<Reading> {
    let mut readings = Vec::new();
    let mut next = began;
    while running.load(Ordering::Relaxed) > 0 {
        if Instant::now() >= next {
            next += INTERVAL;
            readings.extend(sample::read(folder, store, began.elapsed().as_secs_f64()));
        }
        thread::sleep(POLL_INTERVAL);
    }
    readings
}

/// The mount that keeps the server alive.
struct Kept<'a> {
    tarpon: &'a Path,
    store: &'a Path,
    at: PathBuf,
}

impl<'a> Kept<'a> {
    fn mount(tarpon: &'a Path, store: &'a Path, folder: &Path, image: &str) -> Result<Self> {
        let kept = Self { tarpon, store, at: folder.join("mount") };
        process::check(kept.command("mount").args(["--store-size", STORE_SIZE, image]).arg(&kept.at))?;
        Ok(kept)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.tarpon);
        command.arg("--quiet").arg("--store").arg(self.store).arg(name).stdin(Stdio::null());
        command
    }

    fn unmount(&self) -> Result<()> {
        process::check(self.command("umount").arg(&self.at))
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if sample::mounts(&self.at).is_empty() {
            return;
        }
        // After an error: containers may still run, and the error is what matters.
        let _ignored = self.command("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// The processes and mounts that do not end.
fn left(folder: &Path, store: &Path) -> Vec<String> {
    let end = Instant::now() + END_LIMIT;
    loop {
        let processes = sample::processes(store).into_iter().map(|pid| format!("process {pid}"));
        let left: Vec<_> = processes.chain(sample::mounts(folder)).collect();
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        thread::sleep(POLL_INTERVAL);
    }
}
