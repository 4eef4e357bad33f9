//! Kills, restarts and upgrades tarpon under a real systemd, with containers of Podman and containerd that read meanwhile.
//!
//! ```text
//! Debian root ─► boot a guest ─► units, image, containers ─► [ event ─► readers go on ] × rounds ─► remove all ─► what is left?
//!                     ▲                                                                                             │
//!                     └──────────────────────────────────── the next case, an empty store ◄─────────────────────────┘
//! ```
//!
//! The guest is systemd as process 1 of new namespaces (`boot.sh`); no virtual machine is needed. `read.sh` is the program of the containers.
//! What they read after an event is not local, so it needs a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::packages::{self, Tool, tool};
use tarpon_harness::{paths, program};

use crate::debian;
use crate::images::registry::Registry;
use crate::sample_image;

mod cases;
mod containers;
mod guest;
mod install;
mod leftover;
mod log;
mod outcome;
mod relay;
mod run;

use cases::{CASES, Case};
use outcome::Outcome;
use run::Parts;

/// The options of `cargo xtask systemd`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The cases to run [default: all that containers are to survive]; an unknown name lists all
    cases: Vec<String>,
    /// How often the event of each case is repeated
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Drop the machine's page cache before each event, so that programs are read again
    #[arg(long)]
    drop_caches: bool,
    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The program to test [default: the release build, which is made]
    #[arg(long, value_name = "FILE")]
    bin: Option<PathBuf>,
}

const TOOLS: &[Tool] = &[
    tool("debootstrap", "debootstrap"),
    tool("docker-registry", "docker-registry"),
    tool("nsenter", "util-linux"),
    tool("setpriv", "util-linux"),
    tool("strip", "binutils"),
];

const SUITE: &str = "trixie";
/// `curl` sends requests to containerd, `fuse3` has fusermount3.
const PACKAGES: &str = "systemd,dbus,ca-certificates,podman,crun,containerd,runc,fuse3,curl,procps";

/// Files for each round: several times what is read in one, so that there is always one that is not local.
const FILES_OF_A_ROUND: usize = 250;
/// For what is read before the first event.
const FILES_AT_START: usize = 400;

/// Bytes per second from the registry: what a round reads then lasts longer than the slowest restart, that of containerd after 5 s.
const RATE: u32 = 1 << 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    let cases = select(&args.cases)?;
    if !packages::is_root() {
        bail!("only root can create these namespaces");
    }
    packages::ensure(TOOLS)?;
    let folder = paths::target().join("systemd");
    fs::create_dir_all(&folder)?;
    let tarpon = program::stripped(args.bin.as_deref(), &folder.join("tarpon"))?;
    let root = debian::root(&folder.join("root"), SUITE, PACKAGES)?;
    let registry = Registry::private("systemd/registry")?;
    let _stop = registry.start_until_dropped()?;
    let files = FILES_AT_START + FILES_OF_A_ROUND * args.rounds as usize;
    let mut image = sample_image::get(&folder, &root, &registry, &tarpon, files)?;
    image.set_registry(&relay::start(registry.address(), RATE)?.to_string());
    let parts = Parts {
        root: &root,
        tarpon: &tarpon,
        image: &image,
        folder: &folder,
        rounds: args.rounds,
        drop_caches: args.drop_caches,
    };
    let outcomes = run_cases(&parts, &cases);
    let _absent = fs::remove_dir_all(folder.join("guest"));
    report(args, &outcomes?, &folder.join("logs"))
}

fn run_cases(parts: &Parts<'_>, cases: &[&Case]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for case in cases {
        let began = Instant::now();
        let outcome = run::run(parts, case).with_context(|| format!("cannot run the case {}", case.name))?;
        let result = if outcome.is_good() { "good" } else { "FAILED" };
        println!(
            "[{}/{}] {}: {result}, {:.0} s",
            outcomes.len() + 1,
            cases.len(),
            case.name,
            began.elapsed().as_secs_f64()
        );
        outcome.problems().for_each(|problem| println!("  {problem}"));
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

fn report(args: &Args, outcomes: &[Outcome], logs: &Path) -> Result<()> {
    println!("\n{}", Outcome::heading());
    outcomes.iter().for_each(|outcome| println!("{}", outcome.row()));
    outcomes.iter().flat_map(Outcome::problems).for_each(|problem| println!("{problem}"));
    if let Some(file) = &args.json {
        let cases: Vec<_> = outcomes.iter().map(Outcome::to_json).collect();
        let text = format!("{:#}\n", json!({ "rounds": args.rounds, "cases": cases }));
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let failed = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    if failed > 0 {
        bail!("{failed} of {} cases failed; journals and logs of readers: {}", outcomes.len(), logs.display());
    }
    Ok(())
}

/// The cases with these names, or those that are to succeed.
fn select(names: &[String]) -> Result<Vec<&'static Case>> {
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|case| case.name == **name)) {
        let all: Vec<_> = CASES.iter().map(|case| case.name).collect();
        bail!("no case is named {unknown}; there are {}", all.join(", "));
    }
    let is_selected = |case: &&Case| match names.is_empty() {
        true => !case.is_limit,
        false => names.iter().any(|name| name == case.name),
    };
    Ok(CASES.iter().filter(is_selected).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_selected_by_name_and_without_names_all_that_are_no_limits() {
        let limits = CASES.iter().filter(|case| case.is_limit).count();
        assert_eq!(select(&[]).unwrap().len(), CASES.len() - limits);
        assert!(select(&["alone-kill-unit".to_owned()]).unwrap()[0].is_limit);
        let named = select(&["reload".to_owned(), "restart".to_owned()]).unwrap();
        assert_eq!(named.iter().map(|case| case.name).collect::<Vec<_>>(), ["restart", "reload"]);
        let error = select(&["relaod".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("relaod") && error.contains("reload"), "{error}");
    }
}
