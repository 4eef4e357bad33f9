//! Hosts that start one image at once: what the registry sends, what passes between the hosts and what is beside them, and the time until
//! each is ready.
//!
//! A host is a network namespace with a store and a server of its own. Hosts, caches and tiers have links of 1 Gbit/s to one bridge, and
//! from there share one slow link to the registry. Each run begins with empty stores, caches and tiers.

use std::ffi::OsString;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use tarpon_harness::{packages, registry};

use super::crowd::{received_in_all, workload};
use super::engine::Engine;
use super::form::{Form, TAG};
use super::setting::{Axis, PULLS, Setting, log_named, log_run};
use super::store::of_host;
use crate::behind;
use crate::link_end::Here;
use crate::machine::{self, Accounting, Processors};
use crate::podman::Podman;
use crate::runs::{Log, figures};
use crate::start::packs::Packs;
use crate::stats::median;
use crate::store::BenchStore;
use crate::together::{Together, WAIT};
use crate::warm;

mod beside;
mod gluster;
mod pull;
mod site;
mod swarm;

use beside::Beside;
use site::Site;

/// The part in front of the link.
pub(super) fn run(setting: &Setting<'_>, again: &[OsString]) -> Result<()> {
    packages::ensure(&site::TOOLS)?;
    let engines: Vec<Engine> = chosen(&setting.args.engines).into_iter().filter(|engine| is_usable(*engine)).collect();
    if engines.is_empty() {
        bail!("nothing to measure is installed");
    }
    let registry = registry::address();
    let packs = Packs { tarpon: &setting.tarpon, registry: &registry, tag: TAG, quick: setting.args.quick };
    packs.prepare(&[workload(setting)?])?;
    let more = [listed("--engines", &engines), listed("--forms", &chosen(&setting.args.forms))].concat();
    behind::run(&setting.args.link, &[again, &more].concat())
}

/// Whether the programs of an engine are installed now; prints why not.
fn is_usable(engine: Engine) -> bool {
    let ensured = engine.ensure();
    if let Err(error) = &ensured {
        println!("skipped: {}: {error:#}", engine.name());
    }
    ensured.is_ok()
}

/// The named ones, else all.
fn chosen<T: ValueEnum>(named: &[T]) -> Vec<T> {
    if named.is_empty() { T::value_variants().to_vec() } else { named.to_vec() }
}

/// The words of an option for these.
fn listed<T: ValueEnum>(option: &str, values: &[T]) -> Vec<OsString> {
    let names = values.iter().filter_map(|value| Some(value.to_possible_value()?.get_name().to_owned()));
    vec![option.into(), names.collect::<Vec<_>>().join(",").into()]
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str, log: &mut Log) -> Result<()> {
    let (here, sizes) = (Here::find()?, setting.sizes(Axis::Hosts));
    log.add(&here.measured(link))?;
    let site = Site::new(&here, sizes.iter().copied().max().unwrap_or_default())?;
    if setting.args.pull {
        return pulls(setting, &here, &site, log);
    }
    for number in 1..=setting.runs {
        for &size in sizes {
            for form in chosen(&setting.args.forms) {
                // What is compared runs one after the other.
                for engine in chosen(&setting.args.engines).into_iter().filter(|engine| engine.is_for(form)) {
                    let system = format!("{}, {}", form.name(), engine.name());
                    let stores: Vec<_> = (1..=size).map(|host| of_host(setting, host)).collect();
                    let line = one(setting, &here, form, engine, &site, &stores);
                    stores.iter().try_for_each(BenchStore::remove)?;
                    log_run(log, Axis::Hosts, size, &system, number, failed(line))?;
                }
            }
        }
    }
    Ok(())
}

/// The same with pulls: by tarpon with the engines, and by Podman.
fn pulls(setting: &Setting<'_>, here: &Here, site: &Site, log: &mut Log) -> Result<()> {
    for number in 1..=setting.runs {
        for &size in setting.sizes(Axis::Hosts) {
            let line = with_podman(setting, here, site, size);
            log_named(log, PULLS, size, "podman", number, failed(line))?;
            for engine in chosen(&setting.args.engines) {
                let system = format!("tarpon, {}", engine.name());
                let stores: Vec<_> = (1..=size).map(|host| of_host(setting, host)).collect();
                let line = one(setting, here, Form::Gzip, engine, site, &stores);
                stores.iter().try_for_each(BenchStore::remove)?;
                log_named(log, PULLS, size, &system, number, failed(line))?;
            }
        }
    }
    Ok(())
}

/// A failed run is also a result, and no reason to lose the others.
fn failed(line: Result<Value>) -> Value {
    line.unwrap_or_else(|error| json!({"error": format!("{error:#}")}))
}

/// Pulls the image with Podman on many hosts.
fn with_podman(setting: &Setting<'_>, here: &Here, site: &Site, hosts: u64) -> Result<Value> {
    let podmans = pull::podmans(hosts)?;
    let image = workload(setting)?.image;
    machine::make_cold(&podmans.first().map(Podman::programs).unwrap_or_default())?;
    warm::ask(here, &image, TAG)?;
    let reference = format!("{}/{image}:{TAG}", here.registry);
    let commands = podmans.iter().map(|podman| pull::with_podman(podman, &reference)).collect();
    let measured = measured(site, commands).and_then(|(line, together)| together.end().map(|_| line));
    podmans.iter().try_for_each(Podman::wipe)?;
    measured
}

/// Starts the image on as many hosts as there are stores.
fn one(
    setting: &Setting<'_>,
    here: &Here,
    form: Form,
    engine: Engine,
    site: &Site,
    stores: &[BenchStore],
) -> Result<Value> {
    stores.iter().try_for_each(BenchStore::begin)?;
    let image = workload(setting)?.image;
    machine::make_cold(&[&setting.tarpon])?;
    warm::ask(here, &image, form.tag())?;
    let beside = Beside::start(engine, site, &here.registry, stores.len())?;
    let commands = stores.iter().enumerate().map(|(host, store)| command(setting, here, form, store, host, &beside));
    let commands = commands.collect::<Result<Vec<_>>>()?;
    let (line, together) = measured(site, commands)?;
    let servers: Vec<u32> = stores.iter().filter_map(BenchStore::server).collect();
    together.end()?;
    servers.into_iter().try_for_each(machine::wait_for_end)?;
    Ok(line)
}

/// Starts a command on each of the first hosts, and waits until all are up.
fn measured(site: &Site, commands: Vec<Command>) -> Result<(Value, Together)> {
    let hosts = commands.len();
    let (accounting, processors) = (Accounting::begin(), Processors::now());
    let (received, carried, began) = (machine::received(), site.carried(hosts)?, Instant::now());
    let together = Together::start_in(commands.into_iter().zip(site.hosts.iter().map(|host| Some(&host.namespace))))?;
    let busy = processors.and_then(|before| before.busy_since());
    let seconds = accounting.as_ref().and_then(Accounting::seconds);
    let busy_by_hosts = seconds.map(|seconds| share(seconds, began.elapsed()));
    let bytes = received.zip(received_in_all()?).map(|(before, after)| after - before);
    let between = site.carried(hosts)? - carried;
    let line = json!({
        "seconds": together.up().as_secs_f64(),
        "median": quantile(&together.ups, 50).as_secs_f64(),
        "p99": quantile(&together.ups, 99).as_secs_f64(),
        "bytes": bytes,
        "between": between,
        "busy": busy,
        "busy_by_hosts": busy_by_hosts,
    });
    Ok((line, together))
}

/// `tarpon run` on a host, which prints that it is up and waits; or `tarpon pull`.
fn command(
    setting: &Setting<'_>,
    here: &Here,
    form: Form,
    store: &BenchStore,
    host: usize,
    beside: &Beside,
) -> Result<Command> {
    let workload = workload(setting)?;
    if setting.args.pull {
        let image = format!("{}/{}:{}", here.registry, workload.image, form.tag());
        return pull::with_tarpon(setting, store.folder(), &image, host, beside);
    }
    let mut command = store.command();
    command.args(["run", "--quiet", "-i", "--rm", "--no-learn", "--network", "host", "--tls-verify=false"]);
    if !beside.configure(&mut command, host)? {
        command.args(["--index", if form.uses_index() { "registry" } else { "none" }]);
    }
    command.args(["--profile", if form == Form::Pack { &workload.id } else { "none" }]);
    command.args(["--name", &format!("tarpon-bench-{}", host + 1), "--entrypoint", "/bin/sh"]);
    command.arg(format!("{}/{}:{}", here.registry, workload.image, form.tag()));
    command.args(["-c", &format!("{{ {}; }} && {WAIT}", workload.command)]);
    Ok(command)
}

/// What one host fetches without a cache, by the form in the name of a system: the median of its bytes, if that was measured.
pub(super) fn one_host(cells: &[([String; 3], Vec<&Value>)], axis: &str, system: &str) -> Option<f64> {
    let (form, _) = system.split_once(", ")?;
    let key = [axis.to_owned(), "1".to_owned(), format!("{form}, {}", Engine::None.name())];
    let (_, lines) = cells.iter().find(|(found, _)| *found == key)?;
    median(&figures(lines, "bytes")).filter(|bytes| *bytes > 0.0)
}

/// The part of all processors that was in use.
fn share(processor_seconds: f64, elapsed: Duration) -> f64 {
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
        assert_eq!(quantile(&seconds(&[1, 2, 9]), 99), Duration::from_secs(9));
        assert_eq!(quantile(&seconds(&[7]), 50), Duration::from_secs(7));
        assert_eq!(quantile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn two_processors_that_are_half_in_use_are_half_busy() {
        let all = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        assert!((share(all, Duration::from_secs(2)) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_named_is_all() {
        assert_eq!(chosen(&[Form::Gzip]), [Form::Gzip]);
        assert_eq!(listed("--forms", &chosen::<Form>(&[])), ["--forms", "pack,index,estargz,gzip"]);
        assert_eq!(listed("--engines", &[Engine::None, Engine::ThreeCaches]), ["--engines", "none,three-caches"]);
    }
}
