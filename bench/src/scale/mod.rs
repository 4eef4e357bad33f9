//! `bench scale`: the cost of more layers, files, bytes, mounts, containers, and concurrent starts of one image.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;
use tarpon_harness::packages::{self, tool};
use tarpon_harness::process;

use super::machine;
use super::runs::{self, Log, Runs, figures};
use super::stats::{median, spread};

mod containers;
mod crowd;
mod engine;
mod form;
mod hosts;
mod images;
mod mounting;
mod mounts;
mod setting;
mod store;

pub(crate) use setting::{Args, PULLS};
use setting::{Axis, Setting};

pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(file) = measure(args)? else { return Ok(()) };
    let runs = Runs::read(&file)?;
    println!("{}", table(&runs));
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
        bail!("mounts and containers need root");
    }
    let tarpon = tarpon_harness::program::named_or_built(args.tarpon.as_deref())?;
    let setting = Setting { args, tarpon, runs: if args.quick { 1 } else { args.runs } };
    let file = machine::data(args.json.as_deref(), "scale", args.quick);
    if let Some(link) = &args.behind {
        let mut log = Log::append(&file)?;
        return match args.only[..] {
            [Axis::Hosts] => hosts::behind(&setting, link, &mut log),
            _ => crowd::behind(&setting, link, &mut log),
        }
        .map(|()| None);
    }
    packages::ensure(&[tool("runc", "runc"), tool("podman", "podman"), tool("unshare", "util-linux")])?;
    let others: Vec<PathBuf> = ["runc", "crun", "podman"].into_iter().filter_map(process::find).collect();
    let programs: Vec<&Path> = [&setting.tarpon].into_iter().chain(&others).map(PathBuf::as_path).collect();
    let mut log = runs::begin(&file, &programs, args.add)?;
    for axis in Axis::value_variants().iter().filter(|axis| args.only.is_empty() || args.only.contains(axis)) {
        println!("== {}", axis.name());
        match axis {
            Axis::Layers | Axis::Files | Axis::Bytes => mounting::run(&setting, *axis, &mut log)?,
            Axis::Mounts => mounts::run(&setting, &mut log)?,
            Axis::Containers => containers::run(&setting, &mut log)?,
            Axis::Crowd => crowd::run(&setting, &again(&setting, *axis, &file))?,
            Axis::Hosts => hosts::run(&setting, &again(&setting, *axis, &file))?,
        }
    }
    Ok(Some(file))
}

/// The arguments to run this again behind a link.
fn again(setting: &Setting<'_>, axis: Axis, file: &Path) -> Vec<OsString> {
    let args = setting.args;
    let words = ["scale", "--only", axis.name(), "--behind", &args.link, "--workload", &args.workload];
    let mut again: Vec<OsString> = words.map(OsString::from).into();
    again.extend(["--tarpon".into(), setting.tarpon.clone().into(), "--json".into(), file.into()]);
    if args.quick {
        again.push("--quick".into());
    } else {
        again.extend(["--runs".into(), args.runs.to_string().into()]);
    }
    if args.pull {
        again.push("--pull".into());
    }
    for size in &args.sizes {
        again.extend(["--sizes".into(), size.to_string().into()]);
    }
    again
}

/// Medians side by side.
pub(super) fn table(runs: &Runs) -> String {
    let mut text = String::from(
        "| what | how many | system | seconds | min to max | median host | 99 % of hosts | MB over the wire | images of one host | \
         MB between | processors busy | resident MB | shared out MB | peak MB of client and worker | descriptors |\n\
         |---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let cells = runs.cells(["axis", "size", "system"]);
    for ([axis, size, system], lines) in &cells {
        let of = |field: &str| median(&figures(lines, field));
        let host = |field: &str| of(field).map_or_else(String::new, |seconds| format!("{seconds:.3}"));
        let images = hosts::one_host(&cells, axis, system).zip(of("bytes")).map(|(one, all)| all / one);
        let mega = |field: &str| of(field).map_or_else(String::new, |bytes| format!("{:.1}", bytes / 1e6));
        let seconds = figures(lines, "seconds");
        let range = spread(&seconds).map_or_else(String::new, |(least, most)| format!("{least:.3} to {most:.3}"));
        text.push_str(&format!(
            "| {axis} | {size} | {system} | {} | {range} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            median(&seconds).map_or_else(|| "failed".to_owned(), |seconds| format!("{seconds:.3}")),
            host("median"),
            host("p99"),
            mega("bytes"),
            images.map_or_else(String::new, |images| format!("{images:.3}")),
            mega("between"),
            of("busy").map_or_else(String::new, |part| format!("{:.0} %", part * 100.0)),
            mega("resident"),
            mega("proportional"),
            mega("client_peak"),
            of("descriptors").map_or_else(String::new, |count| format!("{count:.0}")),
        ));
    }
    text
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

    #[test]
    fn axes_are_chosen_by_name() {
        let args = Line::try_parse_from(["bench", "--only", "mounts,containers", "--quick"]).unwrap().args;
        assert_eq!(args.only, [Axis::Mounts, Axis::Containers]);
        assert!(Line::try_parse_from(["bench", "--only", "smells"]).is_err());
    }

    #[test]
    fn sizes_grow_and_quick_ones_are_smaller() {
        for axis in Axis::value_variants() {
            let (all, quick) = (axis.sizes(false), axis.sizes(true));
            assert!(all.is_sorted() && quick.is_sorted() && quick.last() < all.last(), "{axis:?}");
        }
    }

    #[test]
    fn behind_the_link_the_same_is_asked_for() {
        let args =
            Line::try_parse_from(["bench", "--workload", "w", "--runs", "7", "--forms", "pack,gzip"]).unwrap().args;
        assert_eq!(args.forms, [form::Form::Pack, form::Form::Gzip]);
        let setting = Setting { args: &args, tarpon: "t".into(), runs: 7 };
        let words = again(&setting, Axis::Hosts, Path::new("j"));
        let there = Line::try_parse_from(words).unwrap().args;
        assert_eq!((there.workload.as_str(), there.runs, there.behind.as_deref()), ("w", 7, Some("100mbit,10ms")));
        assert_eq!(there.only, [Axis::Hosts]);
    }

    #[test]
    fn a_size_is_one_line_of_medians() {
        let text = "{\"machine\":{}}\n\
            {\"axis\":\"mounts\",\"size\":10,\"system\":\"tarpon\",\"number\":1,\"seconds\":1.0,\"resident\":5000000}\n\
            {\"axis\":\"mounts\",\"size\":10,\"system\":\"tarpon\",\"number\":2,\"seconds\":3.0,\"descriptors\":7}\n";
        let table = table(&Runs::parse(text).unwrap());
        assert!(
            table.contains("| mounts | 10 | tarpon | 2.000 | 1.000 to 3.000 |  |  |  |  |  |  | 5.0 |  |  | 7 |"),
            "{table}"
        );
    }

    #[test]
    fn a_size_that_was_not_measured_failed() {
        let text = "{\"machine\":{}}\n{\"axis\":\"hosts\",\"size\":4,\"system\":\"index, one cache\",\"number\":1,\"error\":\"no\"}\n";
        let table = table(&Runs::parse(text).unwrap());
        assert!(table.contains("| hosts | 4 | index, one cache | failed |  |"), "{table}");
    }

    #[test]
    fn what_hosts_fetch_is_also_shown_in_images_of_one_host_without_a_cache() {
        let line = |size: u64, system: &str, bytes: u64| {
            format!(
                "{{\"axis\":\"hosts\",\"size\":{size},\"system\":\"{system}\",\"seconds\":1.0,\"p99\":0.9,\"bytes\":{bytes}}}\n"
            )
        };
        let lines = [line(1, "index, no cache", 8_000_000), line(10, "index, one cache", 10_000_000)];
        let alone = line(10, "estargz, one cache", 5_000_000);
        let table = table(&Runs::parse(&["{\"machine\":{}}\n", &lines.concat(), &alone].concat()).unwrap());
        assert!(table.contains("| index, one cache | 1.000 | 1.000 to 1.000 |  | 0.900 | 10.0 | 1.250 |"), "{table}");
        assert!(table.contains("| estargz, one cache | 1.000 | 1.000 to 1.000 |  | 0.900 | 5.0 |  |"), "{table}");
    }
}
