//! First starts of one image at once, over a slow link: the total bytes fetched, and the time until the last is ready.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::registry;
use tarpon_harness::workloads;

use super::form::TAG;
use super::setting::{Axis, Setting, log_run};
use super::store::{fresh_store, on_store};
use crate::behind;
use crate::link_end::Here;
use crate::machine::{self, Resources};
use crate::runs::Log;
use crate::start::packs::Packs;
use crate::together::{Together, WAIT};
use crate::warm;
use crate::wire::Wire;

/// A link is silent if fewer than [`SILENT_BYTES`] arrive in this time: neighbour discovery causes some traffic now and then.
const SILENCE: Duration = Duration::from_millis(300);
const SILENT_BYTES: u64 = 1000;
/// How long a link may take to become silent.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The total bytes received once the link is silent: the rest of a boot pack arrives after the first container is up, and the last of
/// many containers is up later than a single one.
pub(super) fn received_in_all() -> Result<Option<u64>> {
    let (began, mut before) = (Instant::now(), machine::received());
    while began.elapsed() < TIMEOUT {
        std::thread::sleep(SILENCE);
        let now = machine::received();
        if now.zip(before).is_none_or(|(now, before)| now - before < SILENT_BYTES) {
            return Ok(now);
        }
        before = now;
    }
    bail!("bytes come in {} s after the last container was up", TIMEOUT.as_secs())
}

pub(super) fn workload(setting: &Setting<'_>) -> Result<workloads::Workload> {
    let found = workloads::load(None, std::slice::from_ref(&setting.args.workload))?;
    found.into_iter().next().context("no workload")
}

/// The part in front of the link.
pub(super) fn run(setting: &Setting<'_>, again: &[OsString]) -> Result<()> {
    let registry = registry::address();
    let packs = Packs { tarpon: &setting.tarpon, registry: &registry, tag: TAG, quick: setting.args.quick };
    packs.prepare(&[workload(setting)?])?;
    behind::run(&setting.args.link, again)
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str, log: &mut Log) -> Result<()> {
    let (here, workload) = (Here::find()?, workload(setting)?);
    log.add(&here.measured(link))?;
    let image = format!("{}/{}:{TAG}", here.registry, workload.image);
    let script = format!("{{ {}; }} && {WAIT}", workload.command);
    for number in 1..=setting.runs {
        for &size in setting.sizes(Axis::Crowd) {
            let store = fresh_store(setting)?;
            machine::make_cold(&[&setting.tarpon])?;
            warm::ask(&here, &workload.image, TAG)?;
            let commands = (0..size).map(|number| {
                let mut command = on_store(setting);
                command.args(["run", "--quiet", "-i", "--rm", "--network", "host", "--tls-verify=false"]);
                command.args([
                    "--index",
                    "registry",
                    "--profile",
                    &workload.id,
                    "--name",
                    &format!("tarpon-bench-{number}"),
                ]);
                command.args(["--entrypoint", "/bin/sh", &image, "-c", &script]);
                command
            });
            let mut wire = Wire::open()?.context("this is not behind a link")?;
            wire.mark()?;
            let before = machine::received();
            let together = Together::start(commands.collect()).with_context(|| format!("{size} starts"))?;
            let bytes = before.zip(received_in_all()?).map(|(before, after)| after - before);
            let requests = wire.requests()?.len();
            let server = machine::server(&setting.tarpon, &store).context("no server of the containers")?;
            let held = Resources::by(server).context("the server is gone")?;
            let line = json!({
                "seconds": together.up().as_secs_f64(),
                "bytes": bytes,
                "requests": requests,
                "resident": held.resident,
                "proportional": held.proportional,
                "descriptors": held.descriptors,
            });
            together.end()?;
            machine::wait_for_end(server)?;
            log_run(log, Axis::Crowd, size, "tarpon run", number, line)?;
        }
    }
    fresh_store(setting).map(drop)
}
