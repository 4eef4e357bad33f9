//! `bench start`: the time from nothing on this machine until a container is ready.
//!
//! Each run begins with an empty store, a fresh server and a cold page cache; the registry is warm. The systems take turns, so that
//! other load on this machine affects all of them alike.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tarpon_harness::packages::{self, tool};
use tarpon_harness::ready::{FIRST_EXEC, Running};
use tarpon_harness::workloads::{self, Ready, Workload};
use tarpon_harness::{process, registry};

use super::behind;
use super::link_end::Here;
use super::machine::{self, Accounting, Resources};
use super::runs::{self, Log, Runs};
use super::warm;
use super::wire::{Request, Wire};

pub(crate) mod next;
pub(super) mod packs;
pub(crate) mod published;
mod systems;
pub(super) mod table;

use next::Next;
use packs::Packs;
use systems::{Server, System, Systems, nydus, soci};

/// The options of `cargo xtask bench start`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The links to measure over, as RATE,RTT
    #[arg(long, value_name = "RATE,RTT", default_values_t = ["1gbit,1ms".to_owned(), "100mbit,10ms".to_owned(), "25mbit,80ms".to_owned()])]
    link: Vec<String>,
    /// The ids of the workloads
    #[arg(
        long,
        value_name = "ID",
        value_delimiter = ',',
        default_value = "python-numpy,python-pandas,python-flask,node-express,redis,nginx"
    )]
    workload: Vec<String>,
    /// A file of workloads [default: fixtures/corpus/workloads.tsv, which shows the columns]
    #[arg(long, value_name = "FILE")]
    workloads: Option<PathBuf>,
    /// The systems: podman (pull and run), podman-warm (the image is local), tarpon-streamed (no index), tarpon-index, tarpon-index-fuse, tarpon-estargz
    /// (the image as eStargz), tarpon-no-learn (index, without learning), tarpon-learned and tarpon-estargz-learned (after a start by
    /// tarpon-index or tarpon-estargz), tarpon-next (the next version of the image, in which some files of /usr differ, after a
    /// start of this one by tarpon-index), tarpon-next-no-learn (the same without learning), tarpon-predicted (index, and the pack of the predicted start of the image's command), tarpon-pack, tarpon-pack-fuse, tarpon-warm, podman-tarpon (additional image store), podman-tarpon-pack, podman-tarpon-warm (the image is in it and its files were fetched), podman-stargz (needs
    /// stargz-store), nydus-zran (nydusd over unconverted layers and an index), nydus-prefetch (nydusd over a converted image, of which it
    /// fetches the files of a recorded start in the background; both need nydusd and nydus-image), containerd (pull and run; needs ctr, runc and curl), containerd-tarpon (tarpon's snapshotter),
    /// containerd-tarpon-pack, containerd-stargz (needs containerd-stargz-grpc), containerd-soci (needs soci and
    /// soci-snapshotter-grpc), and of an ordinary user user-podman (pull and run), user-tarpon-index and user-tarpon-pack [default: podman, tarpon-index, tarpon-pack, tarpon-warm, podman-tarpon-pack, and where they are
    /// installed podman-stargz, nydus-zran, nydus-prefetch, containerd, containerd-tarpon-pack, containerd-stargz and containerd-soci]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    system: Vec<String>,
    /// Runs of each workload on each system and link
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// The tag of the images: gzip (unconverted), estargz, zstdchunked
    #[arg(long, default_value = "gzip")]
    tag: String,
    /// Check that the benchmark works: one workload, two systems, one run
    #[arg(long, conflicts_with_all = ["link", "workload", "system", "runs"])]
    quick: bool,
    /// The program to measure [default: a new release build]
    #[arg(long, value_name = "FILE")]
    tarpon: Option<PathBuf>,
    /// Write each run to this file, as JSON lines [default: target/bench/start.jsonl, or start-quick.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append to the file
    #[arg(long)]
    add: bool,
    /// Set by this program when it runs behind the link
    #[arg(long, hide = true)]
    behind: Option<String>,
}

/// The link, the workload and the systems of `--quick`.
const QUICK: (&str, &str, [&str; 2]) = ("100mbit,10ms", "redis", ["podman", "tarpon-pack"]);

pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(file) = measure(args)? else { return Ok(()) };
    let runs = Runs::read(&file)?;
    println!("{}\n{}\n{}", table::table(&runs), table::comparison(&runs), table::summary(&runs).join("\n"));
    println!("every run: {}; `cargo xtask bench report` draws them", file.display());
    let failed = runs.lines.iter().filter(|line| line.get("error").is_some()).count();
    if failed > 0 {
        bail!("{failed} runs failed, see above");
    }
    Ok(())
}

/// Writes the runs to a file, and returns it; `None` behind the link, where a part of them is measured.
pub(crate) fn measure(args: &Args) -> Result<Option<PathBuf>> {
    if !packages::is_root() {
        bail!("containers, namespaces and a cold page cache need root");
    }
    if let Some(link) = &args.behind {
        return behind(args, link).map(|()| None);
    }
    let tarpon = tarpon_harness::program::named_or_built(args.tarpon.as_deref())?;
    packages::ensure(&[tool("crun", "crun"), tool("podman", "podman"), tool("unshare", "util-linux")])?;
    let (workloads, systems) = chosen(args, &tarpon)?;
    let packs = Packs { tarpon: &tarpon, registry: &registry::address(), tag: &args.tag, quick: args.quick };
    if args.quick {
        packs.forget()?;
    }
    packs.prepare(&workloads)?;
    for system in systems.iter().filter(|system| system.needs_prediction()) {
        Packs { tag: &system.tag(&args.tag), ..packs }.predict(&workloads)?;
    }
    let is_started = |tag: &str| systems.iter().any(|system| system.tag(&args.tag) == tag);
    if is_started(soci::TAG) {
        soci::prepare(&workloads, &registry::address())?;
    }
    for kind in nydus::Kind::ALL.into_iter().filter(|kind| is_started(kind.tag())) {
        nydus::prepare(kind, &workloads, &packs)?;
    }
    if is_started(&next::tag(&args.tag)) {
        Next { tarpon: &tarpon, registry: &registry::address(), tag: &args.tag }.prepare(&workloads)?;
    }
    let runtime = runtime()?;
    let mut programs: Vec<&Path> = systems.iter().flat_map(|system| system.programs()).collect();
    programs.push(&runtime);
    let file = machine::data(args.json.as_deref(), "start", args.quick);
    runs::begin(&file, &programs, args.add)?;
    for link in links(args) {
        behind::run(&link, &again(args, &link, &tarpon, &file))?;
    }
    Ok(Some(file))
}

/// The arguments to run this again behind a link.
fn again(args: &Args, link: &str, tarpon: &Path, file: &Path) -> Vec<OsString> {
    let mut again: Vec<OsString> = ["start", "--behind", link, "--tag", &args.tag].map(OsString::from).into();
    again.extend(["--tarpon".into(), tarpon.into(), "--json".into(), file.into()]);
    if let Some(workloads) = &args.workloads {
        again.extend(["--workloads".into(), workloads.into()]);
    }
    if args.quick {
        again.push("--quick".into());
    } else {
        let rest = ["--workload", &args.workload.join(","), "--runs", &args.runs.to_string()];
        again.extend(rest.map(OsString::from));
        if !args.system.is_empty() {
            again.extend(["--system".into(), args.system.join(",").into()]);
        }
    }
    again
}

fn links(args: &Args) -> Vec<String> {
    if args.quick { vec![QUICK.0.to_owned()] } else { args.link.clone() }
}

fn chosen(args: &Args, tarpon: &Path) -> Result<(Vec<Workload>, Systems)> {
    let (workloads, systems) = match (args.quick, args.system.is_empty()) {
        (true, _) => (vec![QUICK.1.to_owned()], QUICK.2.map(str::to_owned).into()),
        (false, true) => (args.workload.clone(), systems::usual()),
        (false, false) => (args.workload.clone(), args.system.clone()),
    };
    Ok((workloads::load(args.workloads.as_deref(), &workloads)?, systems::find(&systems, tarpon)?))
}

/// Runs all starts over the link of this process.
fn behind(args: &Args, link: &str) -> Result<()> {
    let here = Here::find()?;
    let tarpon = args.tarpon.as_deref().context("no program to measure")?;
    let (workloads, systems) = chosen(args, tarpon)?;
    let mut log = Log::append(args.json.as_deref().context("no file for the runs")?)?;
    log.add(&here.measured(link))?;
    let runs = if args.quick { 1 } else { args.runs };
    for number in 1..=runs {
        for workload in &workloads {
            let mut failed: Vec<&str> = Vec::new();
            for system in &systems {
                let run = match system.begins_with().filter(|before| failed.contains(before)) {
                    Some(before) => Err(anyhow!("it begins with what {before} leaves, and that failed")),
                    None => one(system.as_ref(), workload, &here, &args.tag, number == 1),
                };
                failed.extend(run.is_err().then(|| system.name()));
                let run = run.with_context(|| format!("{} with {}", workload.id, system.name()));
                // A failed run is also a result, and no reason to lose the others.
                let mut line = run.unwrap_or_else(|error| json!({"error": format!("{error:#}")}));
                line["link"] = link.into();
                line["workload"] = workload.id.clone().into();
                line["system"] = system.name().into();
                line["number"] = number.into();
                log.add(&line)?;
                print_run(&line);
            }
        }
    }
    systems.iter().try_for_each(|system| system.wipe())
}

/// One start of an image by the system of this name, behind a link, from an empty store.
pub(crate) fn once(system: &str, tarpon: &Path, workload: &Workload, here: &Here, tag: &str) -> Result<Value> {
    let systems = systems::find(&[system.to_owned()], tarpon)?;
    let system = systems.first().context("no system")?;
    let line = one(system.as_ref(), workload, here, tag, false);
    system.wipe()?;
    line
}

/// Prints the result of a run.
fn print_run(line: &Value) {
    let field = |name: &str| line[name].to_string();
    match line["error"].as_str() {
        Some(error) => println!("{} {} failed: {error}", field("system"), field("number")),
        None => println!(
            "{} {} run {}: ready after {} s",
            field("workload"),
            field("system"),
            field("number"),
            field("ready")
        ),
    }
}

/// The runtime of all containers except containerd's.
fn runtime() -> Result<PathBuf> {
    process::find("crun").context("crun is not installed")
}

/// One run: made cold, started, measured, ended.
fn one(system: &dyn System, workload: &Workload, here: &Here, tag: &str, with_requests: bool) -> Result<Value> {
    let mut begun = Begun::default();
    let line = measured(system, workload, here, tag, with_requests, &mut begun);
    // Also after a failure: a container that is left would answer in place of the next one.
    let ended = begun.end(system);
    let line = line?;
    ended.map(|()| line)
}

/// Resources of a run that must be released.
#[derive(Default)]
struct Begun {
    running: Option<Running>,
    /// Its cgroup can be removed once no process is left.
    accounting: Option<Accounting>,
}

impl Begun {
    fn end(self, system: &dyn System) -> Result<()> {
        system.end()?;
        self.running.map_or(Ok(()), Running::wait_for_end)
    }
}

/// Starts the container and measures; the caller ends the run.
fn measured(
    system: &dyn System,
    workload: &Workload,
    here: &Here,
    tag: &str,
    with_requests: bool,
    begun: &mut Begun,
) -> Result<Value> {
    system.wipe()?;
    begun.accounting = Accounting::begin();
    let tag = system.tag(tag);
    let image = format!("{}/{}:{tag}", here.registry, workload.image);
    system.prepare(workload, &here.registry, &image)?;
    let runtime = runtime()?;
    let mut programs = system.programs();
    programs.push(&runtime);
    machine::make_cold(&programs)?;
    warm::ask(here, &workload.image, &tag)?;
    let command = system.command(workload, &image, &format!("echo {FIRST_EXEC}; {}", workload.command))?;
    let mut wire = Wire::open()?;
    if let Some(wire) = &mut wire {
        wire.mark()?;
    }
    let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let processor = |begun: &Begun| begun.accounting.as_ref().and_then(Accounting::seconds);
    let (received, seconds) = (machine::received(), processor(begun));
    let running = begun.running.insert(Running::start(command)?);
    let times = running.wait(workload, |mountpoint| system.is_root(mountpoint))?;
    let bytes = received.and_then(|before| machine::received().map(|now| now - before));
    let cpu = seconds.and_then(|before| processor(begun).map(|now| now - before));
    let requests = wire.map(|mut wire| wire.requests()).transpose()?;
    let server = system.server();
    let held: Option<Vec<Resources>> =
        server.as_ref().and_then(|server| server.processes().map(Resources::by).collect());
    let memory = |of: fn(&Resources) -> u64| held.as_ref().map(|held| held.iter().map(of).sum::<u64>());
    let checked = check(system, workload, server.as_ref());
    let counters = server.and_then(|server| server.counters);
    system.check_mounts()?;
    checked?;
    let mut line = json!({
        "mounted": times.mounted.map(|mounted| mounted.as_secs_f64()),
        "exec": times.exec.map(|exec| exec.as_secs_f64()),
        "ready": times.ready.as_secs_f64(),
        "bytes": bytes,
        "requests": requests.as_ref().map(Vec::len),
        "cpu": cpu,
        "server_peak": memory(|held| held.peak),
        "server_anonymous": memory(|held| held.anonymous),
        "from_pack": counters.as_ref().map(|counters| counters.bytes_trace),
        "stalls": counters.as_ref().map(|counters| counters.stalls),
        "stall_millis": counters.as_ref().map(|counters| counters.stall_millis),
    });
    if let Some(requests) = requests.filter(|_| with_requests) {
        line["timeline"] = requests.iter().map(|request: &Request| request.json(began)).collect();
    }
    Ok(line)
}

/// An error if the container did not start in the way that the system stands for.
fn check(system: &dyn System, workload: &Workload, server: Option<&Server>) -> Result<()> {
    if !system.needs_index() && !system.needs_pack() && !system.needs_learned() {
        return Ok(());
    }
    let Some(server) = server else {
        // When such a workload ends, its mount and the server are gone, and with them the counters.
        if matches!(workload.ready, Ready::Exit { .. }) {
            return Ok(());
        }
        bail!("the container had no server any more when it was ready, so it is unknown what its start used");
    };
    if system.needs_index() && server.streamed > 0 {
        bail!("{} layers were streamed whole: no index was used", server.streamed);
    }
    let has_trace = server.counters.as_ref().is_some_and(|counters| counters.bytes_trace > 0);
    if system.needs_pack() && !has_trace {
        bail!("no boot pack was used, although the registry has one");
    }
    if system.needs_learned() && !has_trace {
        bail!("nothing was fetched because an earlier start read it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(line: &[&str]) -> Result<Args, clap::Error> {
        Line::try_parse_from(["bench"].iter().chain(line)).map(|line| line.args)
    }

    #[test]
    fn behind_the_link_the_same_is_asked_for() {
        let line = ["--workload", "redis,nginx", "--system", "podman", "--runs", "3", "--tag", "estargz"];
        let args = parsed(&line).unwrap();
        let words: Vec<_> = again(&args, "1gbit,1ms", Path::new("t"), Path::new("j"));
        let words: Vec<_> = words.iter().skip(1).map(|word| word.to_str().unwrap()).collect();
        let there = parsed(&words).unwrap();
        assert_eq!((there.workload, there.system, there.runs, there.tag), (args.workload, args.system, 3, args.tag));
        assert_eq!(there.behind.as_deref(), Some("1gbit,1ms"));
    }

    /// A system that fails even to wipe its store, and records that it was ended.
    struct Broken(std::cell::Cell<bool>);

    impl System for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn programs(&self) -> Vec<&Path> {
            Vec::new()
        }

        fn wipe(&self) -> Result<()> {
            bail!("it is stuck")
        }

        fn command(&self, _workload: &Workload, _image: &str, _script: &str) -> Result<std::process::Command> {
            bail!("there is none")
        }

        fn is_root(&self, _mountpoint: &Path) -> bool {
            false
        }

        fn end(&self) -> Result<()> {
            self.0.set(true);
            Ok(())
        }
    }

    #[test]
    fn a_run_that_fails_is_ended_too_and_reports_why_it_failed() {
        let broken = Broken(std::cell::Cell::new(false));
        let here = Here { host: String::new(), registry: String::new() };
        let error = one(&broken, &workload(Ready::Port { port: 1, path: None }), &here, "gzip", false).unwrap_err();
        assert!(broken.0.get() && error.to_string().contains("stuck"), "{error}");
    }

    fn workload(ready: Ready) -> Workload {
        let (id, image, command) = Default::default();
        Workload { id, image, command, ready, patience: std::time::Duration::ZERO, on_host_network: false }
    }

    /// Runs the checks on a run of a system.
    fn checked(system: &str, ready: Ready, server: Option<Server>) -> Result<()> {
        let system = systems::find(&[system.to_owned()], Path::new("/bin/true")).unwrap().remove(0);
        check(system.as_ref(), &workload(ready), server.as_ref())
    }

    fn server(bytes_trace: Option<u64>, streamed: usize) -> Option<Server> {
        let counters = bytes_trace.map(|bytes_trace| systems::Counters { bytes_trace, stalls: 0, stall_millis: 0 });
        Some(Server { pid: 1, beside: None, counters, streamed })
    }

    #[test]
    fn a_run_without_the_pack_or_the_index_that_it_is_about_is_none() {
        let port = || Ready::Port { port: 1, path: None };
        assert!(checked("tarpon-pack", port(), server(Some(5), 0)).is_ok());
        for (system, server) in [
            ("tarpon-pack", server(Some(0), 0)),
            ("tarpon-pack", server(None, 0)),
            ("tarpon-pack", None),
            ("tarpon-pack", server(Some(5), 1)),
            ("tarpon-index", server(Some(0), 2)),
            ("tarpon-next-no-learn", server(Some(0), 2)),
        ] {
            assert!(checked(system, port(), server).is_err(), "{system}");
        }
        assert!(checked("tarpon-index", port(), server(Some(0), 0)).is_ok());
        assert!(checked("tarpon-streamed", port(), server(Some(0), 5)).is_ok());
    }

    #[test]
    fn a_run_that_followed_no_learned_start_is_none_if_it_is_about_one() {
        let systems = systems::find(&["tarpon-index".to_owned(), "tarpon-next".to_owned()], Path::new("/bin/true"));
        let (systems, workload) = (systems.unwrap(), workload(Ready::Port { port: 1, path: None }));
        let check = |at: usize, bytes| check(systems[at].as_ref(), &workload, server(Some(bytes), 0).as_ref());
        assert!(check(0, 0).is_ok() && check(1, 5).is_ok());
        assert!(check(1, 0).unwrap_err().to_string().contains("earlier start"));
    }

    #[test]
    fn a_workload_that_has_ended_needs_no_status_of_its_server() {
        assert!(checked("tarpon-pack", Ready::Exit { sha256: String::new() }, None).is_ok());
    }

    #[test]
    fn quick_is_one_workload_and_two_systems_and_takes_no_others() {
        let args = parsed(&["--quick"]).unwrap();
        assert_eq!(links(&args), [QUICK.0]);
        assert!(parsed(&["--quick", "--runs", "2"]).is_err());
    }
}
