//! Reads after the start, compared with plain overlayfs.

use super::section::{Part, Picture, Section};
use super::slower::Contest;
use crate::chart::axis::Unit;
use crate::chart::bars::{Bar, Bars, Group, add, legend};
use crate::runs::{Runs, numbered};
use crate::stats::{median, ratios, spread};
use crate::steady::table;

const CONTEST: Contest<3> = Contest {
    fields: ["probe", "cache", "system"],
    figure: "seconds",
    competes: |ours, theirs| ours.starts_with("tarpon") && theirs == "overlayfs",
};

pub(super) fn section(runs: &Runs) -> Section {
    let draw = |cache: String| {
        let title = format!("Times of plain overlayfs, {cache} page cache: medians of the ratios of neighbouring runs");
        let groups = groups(runs, &cache);
        let bars =
            Bars { title, unit: Unit::Times, legend: legend(&groups), groups, mark: Some(1.0), caption: String::new() };
        bars.draw().map(Picture::inside)
    };
    let pictures = runs.values("cache").into_iter().filter_map(draw).collect();
    let about = "Shorter is better; 1× is overlayfs over the unpacked layers, read by the same commands. Everything is local. From a warm page cache \
                 fio reads its file twenty times.";
    let mut parts = vec![Part::Text(about.to_owned()), Part::Pictures(pictures)];
    parts.extend(CONTEST.parts(runs));
    parts.push(Part::LongTable("Medians of all runs", table(runs)));
    Section { title: "Steady: reading an image that is all local", parts }
}

fn groups(runs: &Runs, cache: &str) -> Vec<Group> {
    let cells: Vec<_> =
        runs.cells(["probe", "cache", "system"]).into_iter().filter(|(key, _)| key[1] == cache).collect();
    let mut groups: Vec<Group> = Vec::new();
    for ([probe, _, system], lines) in &cells {
        // The others are compared with the first tree of a probe.
        let first = cells.iter().find(|(key, _)| key[0] == *probe);
        let Some((_, plain)) = first.filter(|(key, _)| key[2] != *system) else { continue };
        let ratios = ratios(&numbered(lines, "seconds"), &numbered(plain, "seconds"));
        let Some(value) = median(&ratios) else { continue };
        let bar = Bar { series: system.clone(), value, range: spread(&ratios), note: String::new() };
        add(&mut groups, probe, bar);
    }
    groups
}
