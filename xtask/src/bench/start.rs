//! `bench start`: how long it takes from nothing on this machine until a container is ready.
//!
//! Each run begins with an empty store, a fresh server and a cold page cache; the registry is warm. The systems take turns, so that
//! whatever else this machine does hits all of them alike.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::machine::{self, Accounting};
use super::ready::Running;
use super::report::Cells;
use super::systems::{self, System};
use super::workloads::{self, Workload};
use super::{chart, packs, report};
use crate::packages::{self, tool};
use crate::{paths, process};

/// The options of `cargo xtask bench start`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The links, as RATE,RTT
    #[arg(long, value_name = "RATE,RTT", default_values_t = ["1gbit,1ms".to_owned(), "100mbit,10ms".to_owned(), "25mbit,80ms".to_owned()])]
    link: Vec<String>,
    /// The workloads, by their ids in fixtures/corpus/workloads.tsv
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "python-numpy,python-pandas,python-flask,node-express,redis,nginx"
    )]
    workload: Vec<String>,
    /// The systems: podman, tarpon-streamed (without an index), tarpon-index, tarpon-pack, tarpon-warm, tarpon-pack-fuse
    #[arg(
        long,
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "podman,tarpon-index,tarpon-pack,tarpon-warm"
    )]
    system: Vec<String>,
    /// Runs of each workload on each system and link
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// The tag of the images: gzip (as they come), estargz, zstdchunked
    #[arg(long, default_value = "gzip")]
    tag: String,
    /// One workload, two systems, one run: whether the benchmark still works
    #[arg(long, conflicts_with_all = ["link", "workload", "system", "runs"])]
    quick: bool,
    /// The program to measure [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    tarpon: Option<PathBuf>,
    /// Every single run, as JSON lines [default: target/bench/start.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Set by this program when it runs behind the link
    #[arg(long, hide = true)]
    behind: Option<String>,
}

/// The registry that `cargo xtask images` keeps.
const REGISTRY_PORT: u16 = 5000;

pub(crate) fn run(args: &Args) -> Result<()> {
    if !packages::is_root() {
        bail!("containers, namespaces and a cold page cache need root");
    }
    if let Some(link) = &args.behind {
        return behind(args, link);
    }
    let tarpon = match &args.tarpon {
        Some(program) => program.clone(),
        None => build()?,
    };
    let (workloads, systems) = chosen(args, &tarpon)?;
    packages::ensure(&[tool("crun", "crun"), tool("podman", "podman"), tool("unshare", "util-linux")])?;
    fs::create_dir_all(machine::folder())?;
    packs::prepare(&workloads, &tarpon, &format!("127.0.0.1:{REGISTRY_PORT}"), &args.tag)?;
    let programs: Vec<_> = systems.iter().map(|system| (system.name, system.program())).collect();
    let file = json_file(args);
    fs::write(&file, format!("{}\n", json!({"machine": machine::description(&programs)})))?;
    for link in links(args) {
        let (rate, rtt) = link.split_once(',').with_context(|| format!("a link is RATE,RTT, not {link}"))?;
        let program = std::env::current_exe()?;
        let mut command = Command::new(&program);
        command.args(["link", "--rate", rate, "--rtt", rtt, "--"]).arg(&program).args(["bench", "start"]);
        command.args(["--behind", &link, "--tag", &args.tag, "--tarpon"]).arg(&tarpon).arg("--json").arg(&file);
        if args.quick {
            command.arg("--quick");
        } else {
            command.args(["--workload", &args.workload.join(","), "--system", &args.system.join(",")]);
            command.args(["--runs", &args.runs.to_string()]);
        }
        process::check(&mut command)?;
    }
    let lines = report::parse(&fs::read_to_string(&file)?)?;
    println!("{}", report::table(&lines));
    println!("every run: {}", file.display());
    let cells = Cells::of(&lines);
    for link in links(args) {
        if let Some(picture) = chart::chart(&cells, &link) {
            let name =
                format!("{}-{}.svg", file.file_stem().unwrap_or_default().to_string_lossy(), link.replace(',', "-"));
            let drawn = file.with_file_name(name);
            fs::write(&drawn, picture).with_context(|| format!("cannot write {}", drawn.display()))?;
            println!("a picture: {}", drawn.display());
        }
    }
    Ok(())
}

fn links(args: &Args) -> Vec<String> {
    if args.quick { vec!["100mbit,10ms".to_owned()] } else { args.link.clone() }
}

fn chosen(args: &Args, tarpon: &Path) -> Result<(Vec<Workload>, Vec<System>)> {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let (workloads, systems) = if args.quick {
        (names(&["debian-sh"]), names(&["podman", "tarpon-pack"]))
    } else {
        (args.workload.clone(), args.system.clone())
    };
    Ok((workloads::load(&workloads)?, systems::find(&systems, tarpon)?))
}

fn json_file(args: &Args) -> PathBuf {
    args.json.clone().unwrap_or_else(|| machine::folder().join("start.jsonl"))
}

fn build() -> Result<PathBuf> {
    process::check(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--package", "tarpon"])
            .current_dir(paths::root()),
    )?;
    Ok(paths::target().join("release/tarpon"))
}

/// All runs over the link that this process is behind.
fn behind(args: &Args, link: &str) -> Result<()> {
    let host = std::env::var("TARPON_LINK_HOST").context("this is not behind a link")?;
    let tarpon = args.tarpon.as_deref().context("no program to measure")?;
    let (workloads, systems) = chosen(args, tarpon)?;
    let registry = format!("{host}:{REGISTRY_PORT}");
    let mut file = File::options().append(true).open(json_file(args)).context("cannot write the runs")?;
    let measured = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<f64>().ok());
    let about = json!({"link": link, "bits_per_second": measured("TARPON_LINK_RATE"), "round_trip": measured("TARPON_LINK_RTT")});
    writeln!(file, "{about}")?;
    let runs = if args.quick { 1 } else { args.runs };
    for number in 1..=runs {
        for workload in &workloads {
            for system in &systems {
                let run = one(system, workload, &registry, &args.tag);
                let run = run.with_context(|| format!("{} with {}", workload.id, system.name));
                let line = match &run {
                    Ok(figures) => figures.clone(),
                    // A failed run is a result too, but no reason to lose the others.
                    Err(error) => json!({"error": format!("{error:#}")}),
                };
                let mut line = line;
                line["link"] = link.into();
                line["workload"] = workload.id.clone().into();
                line["system"] = system.name.into();
                line["number"] = number.into();
                println!("{line}");
                writeln!(file, "{line}")?;
            }
        }
    }
    systems.iter().try_for_each(System::wipe)
}

/// One run: made cold, started, measured, ended.
fn one(system: &System, workload: &Workload, registry: &str, tag: &str) -> Result<Value> {
    system.wipe()?;
    let runtime = process::find("crun").context("crun is not installed")?;
    machine::make_cold(&[system.program(), &runtime])?;
    machine::warm_registry(&workload.image);
    let command = system.command(workload, registry, tag)?;
    let accounting = Accounting::begin();
    let (received, seconds) = (machine::received(), accounting.as_ref().and_then(Accounting::seconds));
    let mut running = Running::start(command)?;
    let waited = running.wait(workload);
    if waited.is_err() {
        // A container that is left would answer in the place of the next one.
        system.end()?;
    }
    let times = waited?;
    let bytes = received.and_then(|before| machine::received().map(|now| now - before));
    let cpu = seconds.and_then(|before| accounting.as_ref()?.seconds().map(|now| now - before));
    let mount = system.mount();
    let memory = mount.as_ref().and_then(|mount| machine::memory(mount.server));
    let counters = mount.map(|mount| mount.counters);
    system.end()?;
    running.wait_for_end()?;
    if system.needs_pack() && counters.as_ref().is_some_and(|counters| counters.bytes_trace == 0) {
        bail!("no boot pack was used: remove target/bench/traces, so that they are recorded and published anew");
    }
    Ok(json!({
        "ready": times.ready.as_secs_f64(),
        "exec": times.exec.map(|exec| exec.as_secs_f64()),
        "bytes": bytes,
        "cpu": cpu,
        "server_peak": memory.map(|(peak, _)| peak),
        "server_anonymous": memory.map(|(_, anonymous)| anonymous),
        "from_pack": counters.as_ref().map(|counters| counters.bytes_trace),
        "stalls": counters.as_ref().map(|counters| counters.stalls),
        "stall_millis": counters.as_ref().map(|counters| counters.stall_millis),
    }))
}
