//! Starts: their duration, the bytes over the link, and their phases.

use serde_json::Value;

use super::section::{Part, Picture, Section};
use super::slower::Contest;
use super::starts::{Cell, cells, link_words, medians, usual_link};
use super::{phases, readme};
use crate::chart::axis::Unit;
use crate::chart::bars::{Bars, Group};
use crate::chart::lines::{Curve, Lines};
use crate::runs::{Runs, command_of, figures, text};
use crate::start::table::kinds::{competes, is_next, is_warm};
use crate::start::table::{comparison, summary, table};
use crate::stats::distribution;

const CONTEST: Contest<3> = Contest { fields: ["link", "workload", "system"], figure: "ready", competes };

const ABOUT: &str = "The systems took turns, each with an empty store and a cold page cache. tarpon-warm is the exception: it begins with what \
                     tarpon-pack left, shows what a start takes with hardly anything on the wire, and is compared with none. Each of the others is compared with \
                     what pulls everything first, podman or containerd.";

const COMPETITORS: &str = "Compared are medians: tarpon in Podman with others in Podman, in containerd with others in containerd, and where it runs \
                           the container by itself with all others.";

const OTHERS: &str = "What to know of the others: the eStargz images name no files to be prefetched, so no system prefetches any from them. The SOCI \
                      indexes cover all layers, where SOCI's default leaves out small ones, and its snapshotter reaches the registry through a \
                      forwarder on this machine, because it speaks plain HTTP with its own host alone. containerd starts containers with runc, \
                      all other systems with crun.";

pub(super) fn section(runs: &Runs) -> Section {
    let title = "Start: from nothing on this machine to a container that is ready";
    Section { title, parts: parts(runs, readme::pictures(runs)) }
}

/// A measurement of its own, whose systems did not take turns with those of the other.
pub(super) fn in_containerd(runs: &Runs) -> Section {
    Section { title: "Start in containerd, and of eStargz images", parts: parts(runs, Vec::new()) }
}

fn parts(runs: &Runs, first: Vec<Picture>) -> Vec<Part> {
    let mut parts = vec![Part::Text(links(runs)), Part::Text(ABOUT.to_owned()), Part::Pictures(first)];
    let summary = summary(runs);
    for link in runs.values("link") {
        parts.push(Part::Heading(link_words(&link)));
        let of_link: Vec<_> = summary.iter().filter(|line| line.starts_with(&format!("{link}: "))).cloned().collect();
        parts.push(Part::Text(of_link.join("\n")));
        let pictures = [ready(runs, &link).draw(), bytes(runs, &link).draw(), distributions(runs, &link).draw()];
        parts.push(Part::Pictures(pictures.into_iter().flatten().map(Picture::inside).collect()));
    }
    parts.push(Part::Heading("Against the others".to_owned()));
    parts.push(Part::Text(COMPETITORS.to_owned()));
    parts.push(Part::Text(OTHERS.to_owned()));
    parts.extend(CONTEST.parts(runs));
    parts.extend(failures(runs).map(Part::Text));
    parts.push(Part::Heading("One cold start of each system: its phases, and every request that it made".to_owned()));
    parts.push(Part::Pictures(timelines(runs)));
    parts.push(Part::Heading("All figures".to_owned()));
    parts.push(Part::LongTable("Times as fast: medians of the ratios of neighbouring runs", comparison(runs)));
    parts.push(Part::LongTable("Medians of all runs", table(runs)));
    parts
}

/// The calibration of the links, for each command that used them.
fn links(runs: &Runs) -> String {
    let measured = runs.lines.iter().filter_map(|line| {
        let (rate, rtt) = (line["bits_per_second"].as_f64()?, line["round_trip"].as_f64()?);
        let link = text(line, "link");
        let whose = if runs.headers.len() > 1 { format!(" for command {}", command_of(line)?) } else { String::new() };
        Some(format!("{link}{whose}: {:.1} Mbit/s with all headers, {:.1} ms to connect", rate / 1e6, rtt * 1e3))
    });
    let measured: Vec<_> = measured.collect();
    format!("The links as they were measured before the runs: {}.", measured.join("; "))
}

fn ready(runs: &Runs, link: &str) -> Bars {
    let groups = medians(runs, link, "ready", |_| true);
    bars(format!("From nothing local to ready, {}: medians, least to most", link_words(link)), Unit::Seconds, groups)
}

fn bytes(runs: &Runs, link: &str) -> Bars {
    // With a warm store little is fetched, but not always nothing.
    let groups = medians(runs, link, "bytes", |_| true);
    bars(format!("Bytes over the wire until ready, {}: medians, least to most", link_words(link)), Unit::Bytes, groups)
}

/// Bars that name their systems: there are too many for a legend.
fn bars(title: String, unit: Unit, mut groups: Vec<Group>) -> Bars {
    for bar in groups.iter_mut().flat_map(|group| &mut group.bars) {
        let system = &bar.series;
        bar.note = match (is_warm(system), is_next(system)) {
            (true, _) => format!("{system} (not cold)"),
            (_, true) => format!("{system} (next version of the image)"),
            _ => system.clone(),
        };
    }
    Bars { title, unit, groups, mark: None, legend: Vec::new(), caption: String::new() }
}

/// The distribution of cold starts of each system, over all workloads.
fn distributions(runs: &Runs, link: &str) -> Lines {
    let systems = runs.values("system").into_iter().filter(|system| !is_warm(system));
    let curve = |system: String| {
        let here: Vec<&Value> =
            runs.lines.iter().filter(|line| line["link"] == link && line["system"] == system.as_str()).collect();
        let failed = here.iter().filter(|line| line.get("error").is_some()).count();
        let points = distribution(&figures(&here, "ready"), failed);
        Curve { series: system, points }
    };
    Lines {
        title: format!("Cold starts of all workloads, {}", link_words(link)),
        across: ("time to ready", Unit::Seconds),
        up: ("share of runs that were ready", Unit::Share),
        curves: systems.map(curve).filter(|curve| !curve.points.is_empty()).collect(),
        steps: true,
        size: (820.0, 400.0),
    }
}

/// The first run of each system over the usual link, of the first workload.
fn timelines(runs: &Runs) -> Vec<Picture> {
    let (Some(link), Some(workload)) = (usual_link(runs), runs.values("workload").into_iter().next()) else {
        return Vec::new();
    };
    let here = cells(runs).into_iter().filter(|(key, _)| key[0] == link && key[1] == workload);
    let draw = |([_, _, system], lines): Cell<'_>| {
        let run =
            lines.into_iter().find(|line| line["timeline"].as_array().is_some_and(|requests| !requests.is_empty()))?;
        let timeline = phases::timeline(format!("{workload}: {system}, {}", link_words(&link)), run)?;
        timeline.draw().map(Picture::inside)
    };
    here.filter_map(draw).collect()
}

/// The failed runs, if there are any.
fn failures(runs: &Runs) -> Option<String> {
    let failed: Vec<String> = runs
        .lines
        .iter()
        .filter_map(|line| {
            let [link, workload, system, number] =
                ["link", "workload", "system", "number"].map(|field| text(line, field));
            Some(format!("\n{link}, {workload}, {system}, run {number}: {}", line["error"].as_str()?))
        })
        .collect();
    (!failed.is_empty()).then(|| format!("Runs that failed, {}:{}", failed.len(), failed.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_written_with_its_units() {
        assert_eq!(link_words("100mbit,10ms"), "100 Mbit/s, 10 ms");
        assert_eq!(link_words("2gbit,1ms"), "2 Gbit/s, 1 ms");
        assert_eq!(link_words("loopback"), "loopback");
    }

    #[test]
    fn each_command_has_its_own_links() {
        let measured = |rate: u32| {
            format!("{{\"machine\":{{}}}}\n{{\"link\":\"l\",\"bits_per_second\":{rate}e6,\"round_trip\":0.01}}\n")
        };
        let one = links(&Runs::parse(&measured(90)).unwrap());
        assert!(one.contains("runs: l: 90.0 Mbit/s"), "{one}");
        let two = links(&Runs::parse(&(measured(90) + &measured(80))).unwrap());
        assert!(two.contains("l for command 1: 90.0 Mbit/s") && two.contains("l for command 2: 80.0 Mbit/s"), "{two}");
    }

    #[test]
    fn runs_that_failed_are_listed() {
        let line = "{\"link\":\"l\",\"workload\":\"w\",\"system\":\"s\",\"number\":2,\"error\":\"it broke\"}\n";
        let told = failures(&Runs::parse(line).unwrap()).unwrap();
        assert_eq!(told, "Runs that failed, 1:\nl, w, s, run 2: it broke");
        assert!(failures(&Runs::parse("").unwrap()).is_none());
    }

    #[test]
    fn what_a_warm_start_fetches_is_shown() {
        let run = |system: &str, bytes: u32| {
            format!("{{\"link\":\"l\",\"workload\":\"w\",\"system\":\"{system}\",\"number\":1,\"bytes\":{bytes}}}\n")
        };
        let bars = bytes(&Runs::parse(&[run("podman", 9_000_000), run("tarpon-warm", 824_383)].concat()).unwrap(), "l");
        let warm = &bars.groups[0].bars[1];
        assert_eq!((warm.note.as_str(), warm.value), ("tarpon-warm (not cold)", 824_383.0));
        assert!(bars.draw().unwrap().contains("824"));
    }

    #[test]
    fn a_distribution_is_over_all_workloads_and_cold_starts_only() {
        let line = |workload: &str, system: &str| {
            format!(
                "{{\"link\":\"l\",\"workload\":\"{workload}\",\"system\":\"{system}\",\"number\":1,\"ready\":1.0}}\n"
            )
        };
        let text = [line("a", "podman"), line("b", "podman"), line("a", "tarpon-warm")].concat();
        let lines = distributions(&Runs::parse(&text).unwrap(), "l");
        assert_eq!(lines.curves.len(), 1);
        assert_eq!(lines.curves[0].points.len(), 2);
    }

    #[test]
    fn a_distribution_with_failures_does_not_reach_all_runs() {
        let run =
            |end: &str| format!("{{\"link\":\"l\",\"workload\":\"w\",\"system\":\"podman\",\"number\":1,{end}}}\n");
        let text = [run("\"ready\":1.0"), run("\"error\":\"no\"")].concat();
        assert_eq!(distributions(&Runs::parse(&text).unwrap(), "l").curves[0].points, [(1.0, 0.5)]);
    }
}
