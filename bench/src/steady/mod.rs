//! `bench steady`: the speed of reads after the start, when everything is local.
//!
//! Each probe is a shell line that is easy to repeat. The page cache is cold before the first of two runs and warm before the
//! second; the trees take turns.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tarpon_harness::packages::{self, tool};
use tarpon_harness::{process, registry};

use super::machine::{self, Accounting};
use super::runs::{self, Runs, figures, numbered};
use super::stats::{median, ratios, spread};
use super::trees::{self, ARRANGEMENTS, Arrangement, Tree};
use super::userns::UserNamespace;

mod probes;

use probes::{PROBES, Probe};

/// The options of `cargo xtask bench steady`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image in the registry, with its tag
    #[arg(long, default_value = "dev/debian-base:gzip")]
    image: String,
    /// The probes [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Runs of each probe on each tree, each with a cold and a warm page cache
    #[arg(long, default_value_t = 5)]
    runs: u32,
    /// One run, with the quick probes
    #[arg(long, conflicts_with_all = ["only", "runs"])]
    quick: bool,
    /// The arrangements to measure beside plain overlayfs: tarpon-native, tarpon-fuse, tarpon-loop (native, metadata from a loop
    /// device), tarpon-ordinary (native, as on Linux 5.15 to 6.4)
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["tarpon-native", "tarpon-fuse"])]
    system: Vec<String>,
    /// Mount and read in a user namespace, as for an ordinary user
    #[arg(long)]
    user: bool,
    /// The program to measure [default: a new release build]
    #[arg(long, value_name = "FILE")]
    tarpon: Option<PathBuf>,
    /// Write each run to this file, as JSON lines [default: target/bench/steady.jsonl, or steady-quick.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !packages::is_root() {
        bail!("mounts and a cold page cache need root");
    }
    packages::ensure(&[tool("podman", "podman"), tool("fio", "fio")])?;
    let chosen = chosen(&args.only, args.quick)?;
    let tarpon = tarpon_harness::program::named_or_built(args.tarpon.as_deref())?;
    let image = format!("{}/{}", registry::address(), args.image);
    let namespace = args.user.then(UserNamespace::new).transpose()?.map(Rc::new);
    let mut trees = vec![trees::plain(&image, namespace.clone())?];
    for arrangement in arrangements(&args.system)? {
        trees.push(trees::tarpon(arrangement, &tarpon, &image, namespace.clone())?);
    }
    let name = if args.user { "steady-user" } else { "steady" };
    let file = machine::data(args.json.as_deref(), name, args.quick);
    let others: Vec<PathBuf> = ["podman", "fio", "find", "tar"].into_iter().filter_map(process::find).collect();
    let programs: Vec<&Path> = [&tarpon].into_iter().chain(&others).map(PathBuf::as_path).collect();
    let mut log = runs::begin(&file, &programs, false)?;
    for number in 1..=if args.quick { 1 } else { args.runs } {
        for probe in &chosen {
            for tree in &trees {
                for cache in ["cold", "warm"] {
                    log.add(&one(probe, tree, cache, number)?)?;
                }
            }
        }
        println!("run {number} is over");
    }
    println!("{}", table(&Runs::read(&file)?));
    println!("every run: {}; `cargo xtask bench report` draws them", file.display());
    Ok(())
}

fn arrangements(names: &[String]) -> Result<Vec<&'static Arrangement>> {
    if let Some(unknown) = names.iter().find(|name| !ARRANGEMENTS.iter().any(|known| known.name == **name)) {
        let known: Vec<_> = ARRANGEMENTS.iter().map(|known| known.name).collect();
        bail!("no system {unknown}: there are {}", known.join(", "));
    }
    Ok(ARRANGEMENTS.iter().filter(|known| names.iter().any(|name| *name == known.name)).collect())
}

fn chosen(names: &[String], quick: bool) -> Result<Vec<&'static Probe>> {
    if let Some(unknown) = names.iter().find(|name| !PROBES.iter().any(|probe| probe.name == **name)) {
        let known: Vec<_> = PROBES.iter().map(|probe| probe.name).collect();
        bail!("no probe {unknown}: there are {}", known.join(", "));
    }
    let is_chosen =
        |probe: &&Probe| if quick { probe.quick } else { names.is_empty() || names.iter().any(|n| *n == probe.name) };
    Ok(PROBES.iter().filter(is_chosen).collect())
}

fn one(probe: &Probe, tree: &Tree, cache: &str, number: u32) -> Result<serde_json::Value> {
    let about = || format!("{} on {}, {cache}", probe.name, tree.name);
    probe.prepare(tree).with_context(about)?;
    if cache == "cold" {
        machine::make_cold(&[])?;
        probe.read_tools().with_context(about)?;
    }
    let accounting = Accounting::begin();
    let server = tree.server().map(|pid| (pid, machine::processor_seconds(pid)));
    let seconds = probe.run(tree, cache).with_context(about)?;
    let served = server.and_then(|(pid, before)| Some(machine::processor_seconds(pid)? - before?));
    let cpu = accounting.as_ref().and_then(Accounting::seconds);
    Ok(
        json!({"probe": probe.name, "system": tree.name, "cache": cache, "number": number, "seconds": seconds, "cpu": cpu, "server_cpu": served}),
    )
}

/// Medians side by side, relative to plain overlayfs.
pub(super) fn table(runs: &Runs) -> String {
    let mut text = String::from(
        "| probe | page cache | system | seconds | least | times plain overlayfs | min to max | CPU s | server's CPU s |\n|---|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let cells = runs.cells(["probe", "cache", "system"]);
    for ([probe, cache, system], lines) in &cells {
        let plain =
            cells.iter().find(|(key, _)| key[0] == *probe && key[1] == *cache).map_or(&[][..], |(_, lines)| lines);
        let ratios = ratios(&numbered(lines, "seconds"), &numbered(plain, "seconds"));
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.3}"));
        let ratio = median(&ratios).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        let range = spread(&ratios).map_or_else(String::new, |(least, most)| format!("{least:.2} to {most:.2}"));
        let seconds = figures(lines, "seconds");
        text.push_str(&format!(
            "| {probe} | {cache} | {system} | {} | {} | {ratio} | {range} | {} | {} |\n",
            number(median(&seconds)),
            number(spread(&seconds).map(|(least, _)| least)),
            number(median(&figures(lines, "cpu"))),
            number(median(&figures(lines, "server_cpu"))),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_compared_with_the_first_one() {
        let text = "{\"machine\":{}}\n\
            {\"probe\":\"find\",\"cache\":\"warm\",\"system\":\"overlayfs\",\"number\":1,\"seconds\":2.0}\n\
            {\"probe\":\"find\",\"cache\":\"warm\",\"system\":\"tarpon-native\",\"number\":1,\"seconds\":3.0}\n";
        let table = table(&Runs::parse(text).unwrap());
        assert!(table.contains("| find | warm | tarpon-native | 3.000 | 3.000 | 1.50 | 1.50 to 1.50 |"), "{table}");
    }

    #[test]
    fn probes_are_chosen_by_name() {
        assert_eq!(chosen(&["tar".to_owned()], false).unwrap().len(), 1);
        assert_eq!(chosen(&[], false).unwrap().len(), PROBES.len());
        assert!(chosen(&[], true).unwrap().len() < PROBES.len());
        assert!(chosen(&["smell".to_owned()], false).is_err());
    }

    #[test]
    fn arrangements_are_chosen_by_name() {
        let names = |names: &[&str]| -> Result<Vec<&str>> {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Ok(arrangements(&names)?.iter().map(|found| found.name).collect())
        };
        assert_eq!(names(&["tarpon-loop", "tarpon-native"]).unwrap(), ["tarpon-native", "tarpon-loop"]);
        assert!(names(&["nfs"]).is_err());
    }
}
