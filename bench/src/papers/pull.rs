//! Docker-pi (Ahmed and Pierre, EDGE 2018): pulls of whole images on a slow disk and a slow link.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, process};

use super::disk::{self, Disk};
use super::images::TAG;
use super::output::{PaperTable, cases, medians, most_runs, of, shown, table};
use super::setting::{LINK, Part, Setting};
use super::trial::Trial;
use crate::link_end::Here;
use crate::machine::{self, Accounting};
use crate::podman::Podman;
use crate::runs::{Log, Runs};
use crate::service::Service;
use crate::store::BenchStore;
use crate::warm;

const EXPERIMENT: &str = "pull";
/// A slow link, as of a small host at the edge of a network.
const SLOW_LINK: &str = "25mbit,80ms";
/// A slow disk, as a memory card: bytes per second.
const SLOW_DISK: u64 = 20_000_000;

/// An image, and where it is pulled.
struct Case {
    name: &'static str,
    image: &'static str,
    disk: Option<u64>,
}

const FAST: Case = Case { name: "dev/python", image: "dev/python", disk: None };
const ON_SLOW_DISK: Case = Case { name: "dev/python, disk of 20 MB/s", image: "dev/python", disk: Some(SLOW_DISK) };
const OVER_SLOW_LINK: Case = Case { name: "dev/redis, link of 25 Mbit/s and 80 ms", image: "dev/redis", disk: None };

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    packages::ensure(&[tool("losetup", "mount"), tool("mkfs.ext4", "e2fsprogs")])?;
    if !disk::can_be_limited() {
        println!("skipped: the slow disk: this machine has no blkio cgroup of version 1");
    }
    if !has_containerd() {
        println!("skipped: containerd, which is not installed");
    }
    setting.behind(LINK, Part::Pull)?;
    setting.behind(SLOW_LINK, Part::Pull)
}

fn has_containerd() -> bool {
    ["containerd", "ctr"].iter().all(|program| process::find(program).is_some())
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str) -> Result<()> {
    let (here, mut log) = (Here::find()?, Log::append(&setting.file)?);
    log.add(&here.measured(link))?;
    let mut cases = if link == SLOW_LINK { vec![OVER_SLOW_LINK] } else { vec![FAST] };
    if link == LINK && disk::can_be_limited() {
        cases.push(ON_SLOW_DISK);
    }
    for number in 1..=setting.runs {
        for case in &cases {
            for system in ["podman", "containerd", "tarpon"] {
                if system == "containerd" && !has_containerd() {
                    continue;
                }
                let line = one(setting, &here, case, system);
                Trial { experiment: EXPERIMENT, case: case.name, system, number }.log(&mut log, line)?;
            }
        }
    }
    Ok(())
}

/// One pull into an empty store, until everything is on the disk.
fn one(setting: &Setting<'_>, here: &Here, case: &Case, system: &str) -> Result<Value> {
    let disk = Disk::new(case.disk)?;
    let accounting = Accounting::begin();
    let puller = Puller::new(setting, system, disk.root())?;
    let command = puller.command(&format!("{}/{}:{TAG}", here.registry, case.image));
    machine::make_cold(&puller.programs())?;
    warm::ask(here, case.image, TAG)?;
    disk.sync()?;
    let (written, received) = (disk.written()?, machine::received());
    let processor = || accounting.as_ref().and_then(Accounting::seconds);
    let (before, began) = (processor(), Instant::now());
    let pulled = process::check_logged(&mut { command }, &paths::benchmarks().join("pull.log"));
    let took = began.elapsed();
    disk.sync()?;
    let seconds = began.elapsed();
    let line = json!({
        "command": took.as_secs_f64(),
        "seconds": seconds.as_secs_f64(),
        "cpu": before.zip(processor()).map(|(before, now)| now - before),
        "written": disk.written()? - written,
        "bytes": received.zip(machine::received()).map(|(before, now)| now - before),
    });
    puller.end()?;
    pulled.map(|()| line)
}

/// A system with an empty store on the disk.
enum Puller {
    Podman(Podman),
    Containerd { ctr: PathBuf, program: PathBuf, socket: PathBuf, service: Service },
    Tarpon { store: BenchStore, program: PathBuf },
}

impl Puller {
    fn new(setting: &Setting<'_>, system: &str, root: &Path) -> Result<Self> {
        Ok(match system {
            "podman" => Self::Podman(Podman::new(root.join("papers-podman"), String::new())?),
            "containerd" => containerd(root)?,
            _ => {
                let store = BenchStore::at(&setting.tarpon, root.join("tarpon"));
                store.begin()?;
                Self::Tarpon { store, program: setting.tarpon.clone() }
            }
        })
    }

    fn programs(&self) -> Vec<&Path> {
        match self {
            Self::Podman(podman) => podman.programs(),
            Self::Containerd { ctr, program, .. } => vec![ctr, program],
            Self::Tarpon { program, .. } => vec![program],
        }
    }

    fn command(&self, image: &str) -> Command {
        match self {
            Self::Podman(podman) => {
                let mut command = podman.command("pull -q --tls-verify=false \"$IMAGE\"");
                command.env("IMAGE", image);
                command
            }
            Self::Containerd { ctr, socket, .. } => {
                let mut command = Command::new(ctr);
                command.arg("--address").arg(socket);
                command.args(["images", "pull", "--plain-http", "--snapshotter", "overlayfs", image]);
                command
            }
            Self::Tarpon { store, .. } => {
                let mut command = store.command();
                command.args(["pull", "--quiet", "--tls-verify=false", "--index", "none", image]);
                command
            }
        }
    }

    fn end(self) -> Result<()> {
        match self {
            Self::Podman(podman) => podman.wipe(),
            Self::Containerd { service, .. } => service.end(),
            Self::Tarpon { store, .. } => store.remove(),
        }
    }
}

/// A containerd with its images and snapshots on the disk.
fn containerd(root: &Path) -> Result<Puller> {
    let found = |program: &str| process::find(program).with_context(|| format!("{program} is not installed"));
    let run = machine::made(Path::new("/run/tarpon-bench/papers-containerd"))?;
    let (socket, config, program) = (run.join("socket"), run.join("config.toml"), found("containerd")?);
    let text = format!(
        "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
         \"io.containerd.internal.v1.opt\", \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.zfs\"]\n\
         [grpc]\naddress = {:?}\n",
        root.join("containerd"),
        run.join("state"),
        socket
    );
    std::fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = Command::new(&program);
    command.arg("--config").arg(config);
    let is_up = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
    let service = Service::start(command, &run.join("log"), is_up)?;
    Ok(Puller::Containerd { ctr: found("ctr")?, program, socket, service })
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let mut rows = Vec::new();
    for case in cases(runs, EXPERIMENT) {
        let podman = of(runs, [EXPERIMENT, &case, "podman"], "seconds");
        for system in ["podman", "containerd", "tarpon"] {
            let of = |field: &str| of(runs, [EXPERIMENT, &case, system], field);
            let Some(seconds) = of("seconds") else { continue };
            let less = podman.map(|podman| (1.0 - seconds / podman) * 100.0);
            rows.push(vec![
                case.clone(),
                system.to_owned(),
                shown(of("command"), 2),
                shown(Some(seconds), 2),
                shown(of("cpu"), 2),
                shown(of("written").map(|bytes| bytes / 1e6), 0),
                shown(of("bytes").map(|bytes| bytes / 1e6), 0),
                if system == "podman" { String::new() } else { shown(less, 0) },
                if system == "tarpon" { "73, 65, 58".to_owned() } else { String::new() },
            ]);
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let number = most_runs(runs, ["experiment", "case", "system"], |key| key[0] == EXPERIMENT);
    vec![PaperTable {
        title: "Docker-pi (EDGE 2018): pulls of whole images".to_owned(),
        about: format!(
            "{} over a link of {LINK}, where no other is named. Written is what the block layer counts at the loop device of the store, until \
             all of it is on the disk. The paper's figures are the time that its Docker saves for its three images on a Raspberry Pi 3, \
             compared with Docker.",
            capitalised(&medians(number)),
        ),
        table: table(
            &[
                "image",
                "system",
                ">command, s",
                ">until on the disk, s",
                ">processor, s",
                ">MB written",
                ">MB fetched",
                ">% less time than Podman",
                ">paper: % less than Docker",
            ],
            &rows,
        ),
    }]
}

fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
