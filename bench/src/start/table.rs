//! Medians of many starts, side by side.

use std::fmt::Write;

use serde_json::Value;

use crate::runs::{Runs, command_of, figures};
use crate::stats::{median, spread};

mod cells;
mod comparison;
pub(crate) mod kinds;

use cells::{Cells, cell, cells, number};

pub(crate) use comparison::{best_rival, comparison, summary, times_as_fast};

/// The system whose time is compared with the limit of the wire, and the one with hardly any traffic.
const PACK: &str = "tarpon-pack";
const WARM: &str = "tarpon-warm";
/// Minimum number of round trips of a start: manifest, index, pack.
const ROUND_TRIPS: f64 = 3.0;

const HEAD: &str = "| link | workload | system | mounted s | first exec s | ready s | min to max | MB | requests | CPU s | server MB | runs | of the wire's limit |\n\
                    |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";

/// The medians of all runs, as a table.
pub(crate) fn table(runs: &Runs) -> String {
    let cells = cells(runs);
    let mut text = HEAD.to_owned();
    for ([link, workload, system], lines) in &cells {
        let of = |field: &str| median(&figures(lines, field));
        let ready = figures(lines, "ready");
        let share = limit(runs, &cells, link, workload).filter(|_| system == PACK);
        let share = share.zip(median(&ready)).map(|(limit, ready)| ready / limit);
        let spread = spread(&ready);
        let spread = spread.map_or_else(|| "failed".to_owned(), |(least, most)| format!("{least:.2} to {most:.2}"));
        let mega = |value: Option<f64>| number(value.map(|bytes| bytes / 1e6), 1);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {link} | {workload} | {system} | {} | {} | {} | {spread} | {} | {} | {} | {} | {} | {} |",
            number(of("mounted"), 2),
            number(of("exec"), 2),
            number(median(&ready), 2),
            mega(of("bytes")),
            number(of("requests"), 0),
            number(of("cpu"), 2),
            mega(of("server_peak")),
            if ready.len() < lines.len() {
                format!("{} of {}", ready.len(), lines.len())
            } else {
                ready.len().to_string()
            },
            number(share, 2),
        );
    }
    text
}

/// The minimum time of a start with a pack: the time with a warm store, plus the transfer over the wire.
fn limit(runs: &Runs, cells: &Cells<'_>, link: &str, workload: &str) -> Option<f64> {
    let of_wire = |run: &&Value| {
        let measured = calibration(runs, link, command_of(run))?;
        let bits = run["bytes"].as_f64()? * 8.0;
        Some(ROUND_TRIPS * measured["round_trip"].as_f64()? + bits / measured["bits_per_second"].as_f64()?)
    };
    let wire: Vec<f64> = cell(cells, [link, workload, PACK]).iter().filter_map(of_wire).collect();
    Some(median(&figures(cell(cells, [link, workload, WARM]), "ready"))? + median(&wire)?)
}

/// The calibration of a link for a command.
fn calibration<'a>(runs: &'a Runs, link: &str, command: Option<u64>) -> Option<&'a Value> {
    let is_it = |line: &&Value| line["link"] == link && command_of(line) == command && line["bits_per_second"].is_f64();
    runs.lines.iter().find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const RUNS: &str = r#"{"machine": {"cores": 2}}
{"link": "100mbit,10ms", "bits_per_second": 100e6, "round_trip": 0.01}
{"link": "100mbit,10ms", "workload": "w", "system": "podman", "ready": 6.0, "number": 2}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 2.0, "bytes": 12500000, "requests": 9, "number": 1}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 1.0, "bytes": 12500000, "mounted": 0.5, "number": 2}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-pack", "ready": 1.5, "bytes": 12500000, "number": 3}
{"link": "100mbit,10ms", "workload": "w", "system": "tarpon-warm", "ready": 0.47, "bytes": 0, "number": 1}
{"link": "100mbit,10ms", "workload": "v", "system": "podman", "error": "no", "number": 1}
"#;

    #[test]
    fn a_cell_is_the_median_and_a_pack_is_compared_with_the_wire() {
        let table = table(&Runs::parse(RUNS).unwrap());
        let wanted = "| tarpon-pack | 0.50 |  | 1.50 | 1.00 to 2.00 | 12.5 | 9 |  |  | 3 | 1.00 |";
        assert!(table.contains(wanted), "{table}");
        assert!(table.contains("| v | podman |  |  |  | failed |"), "{table}");
    }

    #[test]
    fn each_command_s_runs_are_compared_with_what_the_link_delivered_to_it() {
        // The second and third run had half the rate.
        let slow = RUNS.replace("100e6", "50e6");
        let other = slow.replace("100mbit,10ms", "25mbit,80ms");
        let runs = Runs::parse(&[RUNS, &slow, &slow, &other].concat()).unwrap();
        let limit = |link| limit(&runs, &cells(&runs), link, "w").unwrap();
        assert!((limit("100mbit,10ms") - 2.5).abs() < 1e-9 && (limit("25mbit,80ms") - 2.5).abs() < 1e-9);
    }
}
