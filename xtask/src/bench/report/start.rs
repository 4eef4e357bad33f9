//! Starts: how long they take, what crosses the link, and what the time goes into.

use serde_json::Value;

use super::{Part, Picture, Section, file_name, phases};
use crate::bench::chart::axis::Unit;
use crate::bench::chart::bars::{Bar, Bars, Group};
use crate::bench::chart::lines::{Curve, Lines};
use crate::bench::runs::{Runs, figures, text};
use crate::bench::start::table::{comparison, table};
use crate::bench::stats::{distribution, median, spread};

pub(super) fn section(runs: &Runs) -> Section {
    let mut parts = vec![Part::Text(links(runs))];
    for link in runs.values("link") {
        let at = link.replace(',', ", ");
        let ready = bars(
            runs,
            &link,
            "ready",
            Unit::Seconds,
            format!("From nothing local to ready, {at}: medians, least to most"),
        );
        let bytes = bars(runs, &link, "bytes", Unit::Bytes, format!("Bytes over the link until ready, {at}"));
        let pictures = [("ready", ready), ("bytes", bytes)].into_iter();
        let drawn = pictures.filter_map(|(what, bars)| {
            Some(Picture { svg: bars.draw()?, file: Some(file_name(&["start", what, &link])) })
        });
        parts.push(Part::Pictures(drawn.collect()));
        parts.push(Part::Pictures(distributions(runs, &link)));
    }
    parts.push(Part::Text("One cold start of each system: its phases, and every request that it made.".to_owned()));
    parts.push(Part::Pictures(timelines(runs)));
    parts.push(Part::Table(table(runs)));
    parts.push(Part::Text(comparison(runs)));
    parts.push(Part::Text(slower(runs)));
    Section { title: "Start: from nothing on this machine to a container that is ready", parts }
}

/// What the links delivered.
fn links(runs: &Runs) -> String {
    let measured = runs.lines.iter().filter_map(|line| {
        let (rate, rtt) = (line["bits_per_second"].as_f64()?, line["round_trip"].as_f64()?);
        Some(format!("{}: {:.1} Mbit/s of payload, {:.1} ms to connect", text(line, "link"), rate / 1e6, rtt * 1e3))
    });
    let measured: Vec<_> = measured.collect();
    format!("The links as they were measured before the runs: {}.", measured.join("; "))
}

type Cell<'a> = ([String; 3], Vec<&'a Value>);

fn cells(runs: &Runs) -> Vec<Cell<'_>> {
    runs.cells(["link", "workload", "system"])
}

fn bars(runs: &Runs, link: &str, field: &str, unit: Unit, title: String) -> Bars {
    let mut groups: Vec<Group> = Vec::new();
    for ([_, workload, system], lines) in cells(runs).into_iter().filter(|(key, _)| key[0] == link) {
        let values = figures(&lines, field);
        let Some(value) = median(&values) else { continue };
        let bar = Bar { series: system, value, range: spread(&values) };
        match groups.iter_mut().find(|group| group.name == workload) {
            Some(group) => group.bars.push(bar),
            None => groups.push(Group { name: workload, bars: vec![bar] }),
        }
    }
    Bars { title, unit, groups, mark: None }
}

/// For each workload how the runs of the systems are distributed.
fn distributions(runs: &Runs, link: &str) -> Vec<Picture> {
    let draw = |workload: String| {
        let cells = cells(runs).into_iter().filter(|(key, _)| key[0] == link && key[1] == workload);
        let curves = cells
            .map(|([_, _, system], lines)| Curve { series: system, points: distribution(&figures(&lines, "ready")) });
        let lines = Lines {
            title: format!("{workload}, {}", link.replace(',', ", ")),
            across: ("time to ready", Unit::Seconds),
            up: ("share of runs that were ready", Unit::Share),
            curves: curves.filter(|curve| !curve.points.is_empty()).collect(),
            steps: true,
            size: (560.0, 330.0),
        };
        lines.draw().map(Picture::inside)
    };
    runs.values("workload").into_iter().filter_map(draw).collect()
}

/// The first run of each system over one link: of the first workload, and of the second link if there are several, which is the usual one.
fn timelines(runs: &Runs) -> Vec<Picture> {
    let links = runs.values("link");
    let (Some(link), Some(workload)) = (links.get(1).or(links.first()), runs.values("workload").into_iter().next())
    else {
        return Vec::new();
    };
    let here = cells(runs).into_iter().filter(|(key, _)| key[0] == *link && key[1] == workload);
    let draw = |([_, _, system], lines): Cell<'_>| {
        let run =
            lines.into_iter().find(|line| line["timeline"].as_array().is_some_and(|requests| !requests.is_empty()))?;
        let timeline = phases::timeline(format!("{workload}: {system}, {}", link.replace(',', ", ")), run)?;
        timeline.draw().map(Picture::inside)
    };
    here.filter_map(draw).collect()
}

/// The cells in which tarpon, as it is with a pack or else an index, is not the fastest.
fn slower(runs: &Runs) -> String {
    let cells = cells(runs);
    let ready = |key: &[String; 3], system: &str| {
        let cell = cells.iter().find(|(other, _)| other[..2] == key[..2] && other[2] == system);
        median(&figures(&cell?.1, "ready"))
    };
    let mut found = String::new();
    for (key, lines) in cells.iter().filter(|(key, _)| !key[2].contains("tarpon")) {
        let ours = ready(key, "tarpon-pack").or_else(|| ready(key, "tarpon-index"));
        if let (Some(theirs), Some(ours)) = (median(&figures(lines, "ready")), ours)
            && theirs < ours
        {
            found.push_str(&format!(
                "\n{}, {}: {} is faster: {ours:.2} s against {theirs:.2} s",
                key[0], key[1], key[2]
            ));
        }
    }
    match found.is_empty() {
        true => "There is no cell in which another system was faster than tarpon with what it had.".to_owned(),
        false => format!("Where tarpon is not the fastest:{found}"),
    }
}
