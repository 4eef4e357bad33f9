//! Medians of many runs, side by side.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde::Deserialize;

/// A line of the file with all runs.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    Run(Run),
    Link(Link),
    /// The machine, for people.
    Other(serde::de::IgnoredAny),
}

/// A link, as it was measured.
#[derive(Debug, Deserialize)]
pub(super) struct Link {
    link: String,
    bits_per_second: Option<f64>,
    /// Seconds.
    round_trip: Option<f64>,
}

/// One run.
#[derive(Debug, Deserialize)]
pub(super) struct Run {
    link: String,
    workload: String,
    system: String,
    /// Seconds; none if it failed.
    ready: Option<f64>,
    bytes: Option<f64>,
    cpu: Option<f64>,
    server_peak: Option<f64>,
}

/// The system whose time is compared with what the wire allows, and the one that says how long the start takes without a wire.
const PACK: &str = "tarpon-pack";
const WARM: &str = "tarpon-warm";
/// Round trips that a start needs at least: manifest, index, pack.
const ROUND_TRIPS: f64 = 3.0;

pub(super) fn parse(text: &str) -> Result<Vec<Line>> {
    let line = |line: &str| serde_json::from_str(line).with_context(|| format!("not a line of a benchmark: {line}"));
    text.lines().map(line).collect()
}

/// All runs, by link, workload and system.
pub(super) struct Cells<'a>(BTreeMap<(&'a str, &'a str, &'a str), Vec<&'a Run>>);

impl<'a> Cells<'a> {
    pub(super) fn of(lines: &'a [Line]) -> Self {
        let mut cells: BTreeMap<(&str, &str, &str), Vec<&Run>> = BTreeMap::new();
        for line in lines {
            if let Line::Run(run) = line {
                cells.entry((&run.link, &run.workload, &run.system)).or_default().push(run);
            }
        }
        Self(cells)
    }

    /// The workloads that were measured on a link.
    pub(super) fn workloads(&self, link: &str) -> Vec<&'a str> {
        let mut found: Vec<_> =
            self.0.keys().filter(|(at, ..)| *at == link).map(|(_, workload, _)| *workload).collect();
        found.dedup();
        found
    }

    /// The median time until a workload was ready, in seconds.
    pub(super) fn ready(&self, link: &str, workload: &str, system: &str) -> Option<f64> {
        self.median(link, workload, system, |run| run.ready)
    }

    fn median(&self, link: &str, workload: &str, system: &str, value: fn(&Run) -> Option<f64>) -> Option<f64> {
        median(self.0.get(&(link, workload, system))?.iter().filter_map(|run| value(run)).collect())
    }
}

/// The medians of all runs, as a table.
pub(super) fn table(lines: &[Line]) -> String {
    let cells = Cells::of(lines);
    let mut text = String::from(
        "| link | workload | system | ready s | min to max | MB | CPU s | server MB | runs | of the wire's limit |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for ((link, workload, system), runs) in &cells.0 {
        let median = |value: fn(&Run) -> Option<f64>| cells.median(link, workload, system, value);
        let ready: Vec<f64> = runs.iter().filter_map(|run| run.ready).collect();
        let limit = limit(lines, &cells, link, workload).filter(|_| *system == PACK);
        let share = limit.zip(median(|run| run.ready)).map(|(limit, ready)| ready / limit);
        let spread = ready.iter().copied().reduce(f64::min).zip(ready.iter().copied().reduce(f64::max));
        let spread = spread.map_or_else(|| "failed".to_owned(), |(least, most)| format!("{least:.2} to {most:.2}"));
        let number =
            |value: Option<f64>, digits: usize| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
        let mega = |value: Option<f64>| number(value.map(|bytes| bytes / 1e6), 1);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {link} | {workload} | {system} | {} | {spread} | {} | {} | {} | {} | {} |",
            number(median(|run| run.ready), 2),
            mega(median(|run| run.bytes)),
            number(median(|run| run.cpu), 2),
            mega(median(|run| run.server_peak)),
            ready.len(),
            number(share, 2),
        );
    }
    text
}

/// How long a start with a pack must take: as with a warm store, and what has to cross the wire.
fn limit(lines: &[Line], cells: &Cells<'_>, link: &str, workload: &str) -> Option<f64> {
    let measured = lines.iter().find_map(|line| match line {
        Line::Link(measured) if measured.link == link => Some(measured),
        _ => None,
    })?;
    let wire = cells.median(link, workload, PACK, |run| run.bytes)? * 8.0 / measured.bits_per_second?;
    Some(cells.ready(link, workload, WARM)? + ROUND_TRIPS * measured.round_trip? + wire)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: &str = r#"{"machine": {"cores": 2}}
{"link": "100mbit,10ms", "bits_per_second": 100e6, "round_trip": 0.01}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 2.0, "bytes": 12500000, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 1.0, "bytes": 12500000, "number": 2}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 1.5, "bytes": 12500000, "number": 3}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-warm", "ready": 0.47, "bytes": 0, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "podman", "error": "no", "number": 1}
"#;

    #[test]
    fn a_cell_is_the_median_and_a_pack_is_compared_with_the_wire() {
        let table = table(&parse(RUNS).unwrap());
        assert!(table.contains("| tarpon-pack | 1.50 | 1.00 to 2.00 | 12.5 |  |  | 3 | 1.00 |"), "{table}");
        assert!(table.contains("| podman |  | failed |"), "{table}");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
