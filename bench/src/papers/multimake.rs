//! Slacker's MultiMake: one program built and tested in many versions of a compiler's image at once, on a host that has none of them.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tarpon_harness::paths;

use super::output::{PaperTable, medians, most_runs, of, shown, table};
use super::setting::{LINK, Part, Setting};
use super::trial::Trial;
use super::versions;
use crate::link_end::Here;
use crate::machine;
use crate::podman::Podman;
use crate::runs::{Log, Runs};
use crate::store::BenchStore;
use crate::together::{Together, WAIT};
use crate::warm;

const EXPERIMENT: &str = "multimake";
/// As in the paper.
const VERSIONS: u32 = 16;
const QUICK: u32 = 2;

/// The program, with its tests.
const SOURCE: &str = include_str!("calc.c");

/// The number of versions that this run needs.
pub(super) fn versions(setting: &Setting<'_>) -> u32 {
    if setting.quick { QUICK } else { VERSIONS }
}

/// Builds the program, tests it, and then waits.
pub(super) fn script() -> String {
    format!("cd /tmp && cat > calc.c <<'END'\n{SOURCE}END\ngcc -O2 -Wall -o calc calc.c && ./calc && {WAIT}")
}

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    versions::publish(setting, versions(setting))?;
    setting.behind(LINK, Part::Multimake)
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str) -> Result<()> {
    let (here, mut log) = (Here::find()?, Log::append(&setting.file)?);
    log.add(&here.measured(link))?;
    let case = format!("{} images", versions(setting));
    for number in 1..=setting.runs {
        for system in ["podman", "tarpon"] {
            let line = one(setting, &here, system);
            Trial { experiment: EXPERIMENT, case: &case, system, number }.log(&mut log, line)?;
        }
    }
    Ok(())
}

fn one(setting: &Setting<'_>, here: &Here, system: &str) -> Result<Value> {
    let versions: Vec<u32> = (1..=versions(setting)).collect();
    let images: Vec<String> = versions
        .iter()
        .map(|version| format!("{}/{}:{}", here.registry, versions::IMAGE, versions::tag(*version)))
        .collect();
    for version in versions {
        warm::ask(here, versions::IMAGE, &versions::tag(version))?;
    }
    if system == "podman" {
        let podman = Podman::new(paths::benchmarks().join("multimake-podman"), String::new())?;
        podman.wipe()?;
        machine::make_cold(&podman.programs())?;
        let line =
            measured(images.iter().enumerate().map(|(number, image)| with_podman(&podman, image, number)).collect());
        podman.wipe()?;
        return line;
    }
    let store = BenchStore::named(&setting.tarpon, "multimake-tarpon");
    store.begin()?;
    machine::make_cold(&[&setting.tarpon])?;
    let line = measured(images.iter().enumerate().map(|(number, image)| with_tarpon(&store, image, number)).collect());
    store.remove()?;
    line
}

fn measured(commands: Vec<Command>) -> Result<Value> {
    let before = machine::received();
    let together = Together::start(commands)?;
    let bytes = before.zip(machine::received()).map(|(before, after)| after - before);
    let (seconds, first) = (together.up(), together.ups.first().copied().context("no container")?);
    together.end()?;
    Ok(json!({"seconds": seconds.as_secs_f64(), "first": first.as_secs_f64(), "bytes": bytes}))
}

/// `podman run` of an image, which is pulled first if it is not there.
pub(super) fn with_podman(podman: &Podman, image: &str, number: usize) -> Command {
    let line = "exec $P run --pull missing -q --tls-verify=false -i --rm --network host --entrypoint /bin/sh $LIMITS \
                --name $CONTAINER \"$IMAGE\" -c \"$SCRIPT\"";
    let mut command = podman.shell("", line);
    command.env("IMAGE", image).env("SCRIPT", script()).env("CONTAINER", format!("tarpon-bench-{number}"));
    command
}

/// `tarpon run` of an image by its index.
pub(super) fn with_tarpon(store: &BenchStore, image: &str, number: usize) -> Command {
    let mut command = store.command();
    command.args(["run", "--quiet", "-i", "--rm", "--network", "host", "--tls-verify=false", "--index", "registry"]);
    command.args(["--name", &format!("tarpon-bench-{number}"), "--entrypoint", "/bin/sh", image, "-c", &script()]);
    command
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let mut rows = Vec::new();
    for case in super::output::cases(runs, EXPERIMENT) {
        let of = |system: &str, field: &str| of(runs, [EXPERIMENT, &case, system], field);
        let fast = of("podman", "seconds").zip(of("tarpon", "seconds")).map(|(podman, tarpon)| podman / tarpon);
        for (system, fast, paper) in
            [("podman", Some(1.0), ["646 (Docker)", "1"]), ("tarpon", fast, ["68 (Slacker)", "9.5"])]
        {
            let cells = [
                shown(of(system, "seconds"), 1),
                shown(of(system, "first"), 1),
                shown(of(system, "bytes").map(|bytes| bytes / 1e6), 0),
                shown(fast, 1),
            ];
            rows.push([&[case.clone(), system.to_owned()], &cells[..], &paper.map(str::to_owned)].concat());
        }
    }
    if rows.is_empty() {
        return Vec::new();
    }
    let number = most_runs(runs, ["experiment", "case", "system"], |key| key[0] == EXPERIMENT);
    vec![PaperTable {
        title: "Slacker (FAST 2016): MultiMake".to_owned(),
        about: format!(
            "A small compiler built by gcc and tested in {VERSIONS} versions of an image at once, from an empty store, over a link of {LINK}; \
             {}. The versions share Debian's layer, and each has its own layer with the compiler, in which another twentieth of the files \
             differs. In the paper (section 7) the images are 16 releases of GCC.",
            medians(number)
        ),
        table: table(
            &[
                "",
                "",
                ">seconds until all are built",
                ">until the first is",
                ">MB fetched",
                ">times as fast",
                ">paper: s",
                ">paper: times as fast",
            ],
            &rows,
        ),
    }]
}
