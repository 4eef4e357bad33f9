//! Hosts that start one image at once, over one slow link to the registry: what the registry sends, and the time until each is ready.
//!
//! A host is a store with a server of its own. The hosts and their caches are on this side of the link; what is between them is
//! loopback. Each run begins with empty stores and empty caches.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use tarpon_harness::bucket::{self, Bucket};
use tarpon_harness::nginx::Nginx;
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{paths, registry};

use super::crowd::{TAG, received_in_all, workload};
use super::setting::{Axis, Setting, log_run};
use super::store::BenchStore;
use super::together::{Together, WAIT};
use crate::behind;
use crate::link_end::Here;
use crate::machine::{self, Accounting};
use crate::runs::Log;
use crate::start::packs::Packs;
use crate::warm;

/// What is known of the image before the start.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    tag: &'static str,
    /// Whether its index is used.
    index: bool,
    /// Whether its boot pack is used.
    pack: bool,
}

const FORMS: [Form; 4] = [
    Form { name: "boot pack", tag: TAG, index: true, pack: true },
    Form { name: "index", tag: TAG, index: true, pack: false },
    Form { name: "estargz", tag: "estargz", index: false, pack: false },
    Form { name: "gzip without an index", tag: TAG, index: false, pack: false },
];

/// What is between the hosts and the registry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    Cache,
    ThreeCaches,
    /// A folder on the disk of the hosts, as a stand-in for a shared file system.
    Folder,
    Bucket,
}

impl Between {
    const ALL: [Self; 5] = [Self::Nothing, Self::Cache, Self::ThreeCaches, Self::Folder, Self::Bucket];

    /// Layers that have an index are not shared through a tier.
    fn is_for(self, form: Form) -> bool {
        !matches!(self, Self::Folder | Self::Bucket) || form.is_whole()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no cache",
            Self::Cache => "one cache",
            Self::ThreeCaches => "three caches",
            Self::Folder => "tier in a folder",
            Self::Bucket => "tier in a bucket",
        }
    }
}

impl Form {
    /// Whether its layers are streamed whole.
    fn is_whole(self) -> bool {
        !self.index && self.tag == TAG
    }
}

/// Running caches, or a tier. Dropping them ends them.
struct Caches {
    /// The one that the hosts use is the last.
    running: Vec<Nginx>,
    bucket: Option<Bucket>,
    /// The URL of the tier.
    tier: Option<String>,
    /// The registries.conf(5) of the hosts.
    configuration: PathBuf,
    folder: PathBuf,
}

impl Caches {
    fn start(between: Between, registry: &str) -> Result<Self> {
        let folder = paths::benchmarks().join("scale-caches");
        let configuration = folder.join("registries.conf");
        let mut caches = Self { running: Vec::new(), bucket: None, tier: None, configuration, folder };
        machine::remove(&caches.folder)?;
        let count = match between {
            Between::Nothing | Between::Folder | Between::Bucket => 0,
            Between::Cache => 1,
            Between::ThreeCaches => 3,
        };
        for number in 0..count {
            caches.running.push(Nginx::cache(registry, &made(&caches.folder.join(number.to_string()))?)?);
        }
        if let [one, two, three] = &caches.running[..] {
            let addresses = [one.address(), two.address(), three.address()];
            let folder = made(&caches.folder.join("balancer"))?;
            caches.running.push(Nginx::balancer(addresses.each_ref().map(String::as_str), &folder)?);
        }
        match between {
            Between::Folder => {
                caches.tier = Some(format!("file://{}", made(&caches.folder.join("tier"))?.display()));
            }
            Between::Bucket => {
                let bucket = Bucket::start(&made(&caches.folder.join("bucket"))?)?;
                caches.tier = Some(bucket.url());
                caches.bucket = Some(bucket);
            }
            Between::Nothing | Between::Cache | Between::ThreeCaches => {}
        }
        caches.configure(registry)?;
        Ok(caches)
    }

    fn configure(&self, registry: &str) -> Result<()> {
        let mut text = format!("[[registry]]\nlocation = '{registry}'\ninsecure = true\n");
        if let Some(cache) = self.running.last() {
            text.push_str(&format!("[[registry.mirror]]\nlocation = '{}'\ninsecure = true\n", cache.address()));
        }
        made(&self.folder)?;
        fs::write(&self.configuration, text).with_context(|| format!("cannot write {}", self.configuration.display()))
    }
}

impl Drop for Caches {
    fn drop(&mut self) {
        self.running.clear();
        self.bucket = None;
        // The next run removes it otherwise.
        let _left = machine::remove(&self.folder);
    }
}

fn made(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// The part in front of the link.
pub(super) fn run(setting: &Setting<'_>, again: &[OsString]) -> Result<()> {
    packages::ensure(&[tool("nginx", "nginx-light")])?;
    bucket::ensure()?;
    let registry = registry::address();
    let packs = Packs { tarpon: &setting.tarpon, registry: &registry, tag: TAG, quick: setting.args.quick };
    packs.prepare(&[workload(setting)?])?;
    behind::run(&setting.args.link, again)
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str, log: &mut Log) -> Result<()> {
    let here = Here::find()?;
    log.add(&here.measured(link))?;
    for number in 1..=setting.runs {
        for &size in Axis::Hosts.sizes(setting.args.quick) {
            for form in FORMS {
                // What is compared runs one after the other.
                for between in Between::ALL.into_iter().filter(|between| between.is_for(form)) {
                    let system = format!("{}, {}", form.name, between.name());
                    let hosts: Vec<_> = (1..=size).map(|host| BenchStore::of_host(setting, host)).collect();
                    let line = one(setting, &here, form, between, &hosts);
                    hosts.iter().try_for_each(BenchStore::remove)?;
                    let line = line.with_context(|| format!("{size} hosts, {system}"))?;
                    log_run(log, Axis::Hosts, size, &system, number, line)?;
                }
            }
        }
    }
    Ok(())
}

/// Starts the image on all hosts.
fn one(
    setting: &Setting<'_>,
    here: &Here,
    form: Form,
    between: Between,
    hosts: &[BenchStore],
) -> Result<serde_json::Value> {
    hosts.iter().try_for_each(BenchStore::begin)?;
    let image = workload(setting)?.image;
    machine::make_cold(&[&setting.tarpon])?;
    warm::ask(here, &image, form.tag)?;
    let caches = Caches::start(between, &here.registry)?;
    let commands = (1..).zip(hosts).map(|(number, host)| command(setting, here, form, host, number, &caches));
    let commands = commands.collect::<Result<Vec<_>>>()?;
    let accounting = Accounting::begin();
    let (before, began) = (machine::received(), Instant::now());
    let together = Together::start(commands)?;
    let busy = accounting.as_ref().and_then(Accounting::seconds).map(|seconds| busy(seconds, began.elapsed()));
    let bytes = before.zip(received_in_all()?).map(|(before, after)| after - before);
    let line = json!({
        "seconds": together.up().as_secs_f64(),
        "median": quantile(&together.ups, 50).as_secs_f64(),
        "bytes": bytes,
        "busy": busy,
    });
    let servers: Vec<u32> = hosts.iter().filter_map(BenchStore::server).collect();
    together.end()?;
    servers.into_iter().try_for_each(machine::wait_for_end)?;
    Ok(line)
}

/// `tarpon run` on a host, which prints that it is up and waits.
fn command(
    setting: &Setting<'_>,
    here: &Here,
    form: Form,
    host: &BenchStore,
    number: u64,
    caches: &Caches,
) -> Result<Command> {
    let workload = workload(setting)?;
    let mut command = host.command();
    command.env("CONTAINERS_REGISTRIES_CONF", &caches.configuration);
    command.args(["run", "--quiet", "-i", "--rm", "--no-learn", "--network", "host", "--tls-verify=false"]);
    match &caches.tier {
        Some(tier) => {
            command.args(["--tier", tier]).envs(caches.bucket.iter().flat_map(Bucket::environment));
        }
        None => {
            command.args(["--index", if form.index { "registry" } else { "none" }]);
        }
    }
    command.args(["--profile", if form.pack { &workload.id } else { "none" }]);
    command.args(["--name", &format!("tarpon-bench-{number}"), "--entrypoint", "/bin/sh"]);
    command.arg(format!("{}/{}:{}", here.registry, workload.image, form.tag));
    command.args(["-c", &format!("{{ {}; }} && {WAIT}", workload.command)]);
    Ok(command)
}

/// The part of all processors that was in use.
fn busy(processor_seconds: f64, elapsed: Duration) -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processor_seconds / (elapsed.as_secs_f64() * processors as f64)
}

/// The smallest of these ascending times that at least `percent` of them do not exceed.
fn quantile(ascending: &[Duration], percent: usize) -> Duration {
    let at = (ascending.len() * percent).div_ceil(100).saturating_sub(1);
    ascending.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_hosts_are_ready_at_the_median() {
        let seconds = |seconds: &[u64]| seconds.iter().copied().map(Duration::from_secs).collect::<Vec<_>>();
        assert_eq!(quantile(&seconds(&[1, 2, 3, 9]), 50), Duration::from_secs(2));
        assert_eq!(quantile(&seconds(&[1, 2, 9]), 50), Duration::from_secs(2));
        assert_eq!(quantile(&seconds(&[7]), 50), Duration::from_secs(7));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn two_processors_that_are_half_in_use_are_half_busy() {
        let all = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        assert!((busy(all, Duration::from_secs(2)) - 0.5).abs() < 1e-9);
    }
}
