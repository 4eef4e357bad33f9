//! Slacker's development cycle: a developer changes a file in a container and publishes the result, and another host starts it.

use std::process::{Command, Stdio};

use anyhow::Result;
use serde_json::{Value, json};
use tarpon_harness::workloads::Workload;
use tarpon_harness::{paths, process};

use super::images::{self, TAG};
use super::output::{PaperTable, cases, medians, most_runs, of, shown, table};
use super::setting::{LINK, Setting};
use super::slacker::{quotients, ready};
use super::trial::Trial;
use crate::link_end::Here;
use crate::podman::Podman;
use crate::runs::{Log, Runs};
use crate::start;
use crate::stats::median;
use crate::store::BenchStore;

const EXPERIMENT: &str = "development";
/// The container of the developer.
const CONTAINER: &str = "tarpon-bench-developer";

/// A developer's host.
enum Developer {
    Podman(Podman),
    Tarpon(BenchStore),
}

/// The part behind the link.
pub(super) fn behind(setting: &Setting<'_>, link: &str) -> Result<()> {
    let (here, mut log) = (Here::find()?, Log::append(&setting.file)?);
    log.add(&here.measured(link))?;
    for number in 1..=setting.runs {
        for workload in images::workloads(setting)? {
            for system in ["podman", "tarpon"] {
                let line = one(setting, &here, &workload, system, number);
                Trial { experiment: EXPERIMENT, case: &workload.id, system, number }.log(&mut log, line)?;
            }
        }
    }
    Ok(())
}

fn one(setting: &Setting<'_>, here: &Here, workload: &Workload, system: &str, number: u32) -> Result<Value> {
    let tag = format!("papers-{system}");
    let image = format!("{}/{}", here.registry, workload.image);
    let change = format!("echo {number} > /etc/version");
    let developer = Developer::new(setting, system)?;
    let published = developer.change(&format!("{image}:{TAG}"), &change).and_then(|()| {
        let began = std::time::Instant::now();
        developer.publish(&format!("{image}:{tag}")).map(|()| began.elapsed().as_secs_f64())
    });
    developer.remove()?;
    let push = published?;
    let started =
        start::once(if system == "podman" { system } else { "tarpon-index" }, &setting.tarpon, workload, here, &tag)?;
    let first = started["ready"].as_f64().unwrap_or_default();
    Ok(json!({"push": push, "first": first, "bytes": started["bytes"], "seconds": push + first}))
}

impl Developer {
    fn new(setting: &Setting<'_>, system: &str) -> Result<Self> {
        Ok(if system == "podman" {
            let podman = Podman::new(paths::benchmarks().join("developer-podman"), String::new())?;
            podman.wipe()?;
            Self::Podman(podman)
        } else {
            let store = BenchStore::named(&setting.tarpon, "developer-tarpon");
            store.begin()?;
            Self::Tarpon(store)
        })
    }

    /// Fetches the whole image, starts it and changes a file in it.
    fn change(&self, image: &str, script: &str) -> Result<()> {
        logged(match self {
            Self::Podman(podman) => {
                let run = "$P pull -q --tls-verify=false \"$IMAGE\" && exec $P run --pull never --network host --entrypoint /bin/sh \
                           $LIMITS --name $CONTAINER \"$IMAGE\" -c \"$SCRIPT\"";
                let mut command = podman.shell("", run);
                command.env("IMAGE", image).env("SCRIPT", script).env("CONTAINER", CONTAINER);
                command
            }
            Self::Tarpon(store) => {
                let mut pull = store.command();
                pull.args(["pull", "--quiet", "--tls-verify=false", image]);
                logged(pull)?;
                let mut command = store.command();
                command.args(["run", "--quiet", "--network", "host", "--tls-verify=false"]);
                command.args(["--name", CONTAINER, "--entrypoint", "/bin/sh", image, "-c", script]);
                command
            }
        })
    }

    /// Makes an image of the change and pushes it; with tarpon also its index, without which other hosts would stream the layers.
    fn publish(&self, image: &str) -> Result<()> {
        match self {
            Self::Podman(podman) => {
                let line = "$P commit -q $CONTAINER \"$IMAGE\" && exec $P push -q --tls-verify=false \"$IMAGE\"";
                let mut command = podman.shell("", line);
                command.env("IMAGE", image).env("CONTAINER", CONTAINER);
                logged(command)
            }
            Self::Tarpon(store) => {
                let on = |words: &[&str]| {
                    let mut command = store.command();
                    command.args(words);
                    logged(command)
                };
                on(&["commit", "--quiet", "--tls-verify=false", CONTAINER, image])?;
                on(&["push", "--quiet", "--tls-verify=false", image])?;
                on(&["index", "--quiet", "--push", "--tls-verify=false", image])
            }
        }
    }

    fn remove(&self) -> Result<()> {
        match self {
            Self::Podman(podman) => podman.wipe(),
            Self::Tarpon(store) => store.remove(),
        }
    }
}

fn logged(mut command: Command) -> Result<()> {
    command.stdin(Stdio::null());
    process::check_logged(&mut command, &paths::benchmarks().join("development.log"))
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let cases = cases(runs, EXPERIMENT);
    let by_case = |system: &str, field: &str| -> Vec<(String, f64)> {
        cases.iter().filter_map(|case| Some((case.clone(), of(runs, [EXPERIMENT, case, system], field)?))).collect()
    };
    let values = |pairs: &[(String, f64)]| median(&pairs.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    let mut rows = Vec::new();
    for (name, field, paper) in [
        ("push of a new version, s", "push", ["61", ""]),
        ("its first start on another host, s", "first", ["", ""]),
        ("development: both, s", "seconds", ["", ""]),
    ] {
        let [podman, tarpon] = ["podman", "tarpon"].map(|system| by_case(system, field));
        if podman.is_empty() || tarpon.is_empty() {
            return Vec::new();
        }
        let fast = |digits| shown(median(&quotients(&podman, &tarpon)), digits);
        let [theirs, its] = [&podman, &tarpon].map(|pairs| shown(values(pairs), 2));
        rows.push([vec![name.to_owned(), theirs, its, fast(1)], paper.map(str::to_owned).to_vec()].concat());
    }
    // The paper's ratios of these rows: its abstract and section 6.1.
    rows[0][5] = "153".to_owned();
    rows[1][5] = "5.3".to_owned();
    rows[2][5] = "20".to_owned();
    let deployments = ready(runs, "podman").len();
    let number = most_runs(runs, ["experiment", "case", "system"], |key| key[0] == EXPERIMENT);
    vec![PaperTable {
        title: "Slacker (FAST 2016): development".to_owned(),
        about: format!(
            "Medians over {} images of {}, over a link of {LINK}. A container of the image writes one file; timed are `commit` and `push` \
             (tarpon: also `index --push`) on a host that has the whole image, then the start on a host with an empty store. Here the \
             registry has the layers below; in the paper an image is pushed whole. Deployment, the start of an image that was in the registry before, is in the table above{}.",
            cases.len(),
            medians(number),
            if deployments == 0 { " if it was measured" } else { "" },
        ),
        table: table(
            &[
                "",
                ">Podman",
                ">tarpon, index and predicted pack",
                ">times as fast",
                ">paper: Docker, s",
                ">paper: Slacker, times as fast",
            ],
            &rows,
        ),
    }]
}
