//! Starts in virtual machines by virtiofs, compared with the same starts on the host.

use std::fmt::Write;

use serde_json::Value;

use super::section::{Part, Picture, Section};
use crate::chart::axis::Unit;
use crate::chart::bars::{Bar, Bars, Group, add, legend};
use crate::runs::{Runs, figures};
use crate::stats::{median, spread};

/// What distinguishes starts: the first three name a group of bars, the others a bar.
const FIELDS: [&str; 6] = ["workload", "tag", "root", "virtiofsd", "cache", "mode"];

/// Columns of the table: field, title, divisor of the unit, decimals.
const COLUMNS: [(&str, &str, f64, usize); 8] = [
    ("machine_bytes", "in the machine, MiB", MIB, 2),
    ("host_bytes", "on the host, MiB", MIB, 2),
    ("ratio", "ratio", 1.0, 2),
    ("second_bytes", "more for a second machine, MiB", MIB, 2),
    ("image_bytes", "image, MiB", MIB, 1),
    ("kernel_seconds", "kernel, s", 1.0, 1),
    ("start_seconds", "start, s", 1.0, 1),
    ("host_seconds", "start on the host, s", 1.0, 1),
];
const MIB: f64 = 1_048_576.0;

pub(super) fn section(runs: &Runs) -> Section {
    let about = "The root of the machine is an image that tarpon mounts on the host, shared by virtiofs. The bars show the bytes fetched until the \
                 workload had ended, divided by those of the same start on the host, from another empty store; 1× is the host. Kernel and start are \
                 times under software emulation of the processor.";
    let mut parts = vec![Part::Text(about.to_owned())];
    parts.extend(chart(runs).draw().map(|svg| Part::Pictures(vec![Picture::inside(svg)])));
    parts.push(Part::Table(starts(runs)));
    let checks = checks(runs);
    if !checks.is_empty() {
        parts.push(Part::LongTable("What was checked", checks));
    }
    Section { title: "Virtual machines: a root by virtiofs", parts }
}

fn chart(runs: &Runs) -> Bars {
    let mut groups: Vec<Group> = Vec::new();
    for ([workload, tag, root, virtiofsd, cache, mode], lines) in runs.cells(FIELDS) {
        let ratios = figures(&lines, "ratio");
        let Some(value) = median(&ratios) else { continue };
        let series = format!("virtiofsd {virtiofsd}, {cache}, {mode}");
        let bar = Bar { series, value, range: spread(&ratios), note: String::new() };
        add(&mut groups, &format!("{workload}, {tag}, {root}"), bar);
    }
    let title = "Bytes fetched in a machine, times those on the host: medians of the ratios".to_owned();
    Bars { title, unit: Unit::Times, legend: legend(&groups), groups, mark: Some(1.0), caption: String::new() }
}

/// Medians of all starts; of the ratio also the least and the most.
fn starts(runs: &Runs) -> String {
    let titles: String = COLUMNS.iter().map(|(_, title, ..)| format!(" {title} |")).collect();
    let mut table =
        format!("| workload | image | root | virtiofsd | cache | mode | runs |{titles} ratio, min to max |\n");
    table.push_str("|---|---|---|---|---|---|--:|");
    table.push_str(&"--:|".repeat(COLUMNS.len()));
    table.push_str("---|\n");
    for (key, lines) in runs.cells(FIELDS) {
        let cell = |(field, _, unit, decimals): &(&str, &str, f64, usize)| {
            let middle = median(&figures(&lines, field));
            middle.map_or_else(|| " |".to_owned(), |middle| format!(" {:.*} |", *decimals, middle / unit))
        };
        let cells: String = COLUMNS.iter().map(cell).collect();
        let range = spread(&figures(&lines, "ratio"));
        let range = range.map_or_else(String::new, |(least, most)| format!("{least:.2} to {most:.2}"));
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {} |{cells} {range} |", key.join(" | "), lines.len());
    }
    table
}

/// In how many runs each sentence was true.
fn checks(runs: &Runs) -> String {
    let mut table = String::new();
    for ([sentence], lines) in runs.cells(["check"]) {
        let is_true = |line: &&&Value| line["is_true"] == true;
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {sentence} | {} | {} |", lines.iter().filter(is_true).count(), lines.len());
    }
    if table.is_empty() { table } else { format!("| sentence | true in runs | of |\n|---|--:|--:|\n{table}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_rows_with_medians_and_checks_are_counted() {
        let start = |ratio: f64| {
            format!(
                "{{\"workload\":\"sh\",\"tag\":\"gzip\",\"root\":\"mount\",\"virtiofsd\":\"7.2\",\"cache\":\"auto\",\"mode\":\"native\",\"machine_bytes\":2097152,\
                 \"ratio\":{ratio}}}\n"
            )
        };
        let check = |is_true| format!("{{\"check\":\"it boots\",\"is_true\":{is_true}}}\n");
        let runs = Runs::parse(&(start(1.0) + &start(1.1) + &start(0.9) + &check(true) + &check(false))).unwrap();
        let table = starts(&runs);
        let row = "| sh | gzip | mount | 7.2 | auto | native | 3 | 2.00 | | 1.00 | | | | | | 0.90 to 1.10 |";
        assert_eq!(table.lines().nth(2), Some(row));
        assert!(checks(&runs).ends_with("| it boots | 1 | 2 |\n"));
        assert!(chart(&runs).draw().unwrap().contains("sh, gzip, mount"));
        assert!(checks(&Runs::parse("").unwrap()).is_empty());
    }
}
