//! The tables of this benchmark, and the cells in which tarpon is not the fastest.

use crate::report::section::Part;
use crate::report::slower::Contest;
use crate::runs::{Runs, figures};
use crate::start::table::kinds;
use crate::stats::median;

/// The table of one experiment.
pub(crate) struct PaperTable {
    pub(crate) title: String,
    /// What was measured, and how it differs from the paper.
    pub(crate) about: String,
    pub(crate) table: String,
}

/// A table from its columns, of which those that begin with `>` have figures, and its rows.
pub(super) fn table(columns: &[&str], rows: &[Vec<String>]) -> String {
    let names: Vec<&str> = columns.iter().map(|name| name.trim_start_matches('>')).collect();
    let rules: Vec<&str> = columns.iter().map(|name| if name.starts_with('>') { "--:" } else { "---" }).collect();
    let line = |cells: &[&str]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&names) + &format!("|{}|\n", rules.join("|"));
    for row in rows {
        text.push_str(&line(&row.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    text
}

/// A figure with so many digits; empty if there is none.
pub(super) fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}

/// The median of a field over the runs of one case and system of an experiment.
pub(super) fn of(runs: &Runs, key: [&str; 3], field: &str) -> Option<f64> {
    let cells = runs.cells(["experiment", "case", "system"]);
    let (_, lines) = cells.into_iter().find(|(found, _)| *found == key)?;
    median(&figures(&lines, field))
}

/// The cases of an experiment, in the order of their first run.
pub(super) fn cases(runs: &Runs, experiment: &str) -> Vec<String> {
    let mut cases = Vec::new();
    for ([found, case], _) in runs.cells(["experiment", "case"]) {
        if found == experiment && !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases
}

/// The number of runs of each system in an experiment, or in each cell of starts: the most that any has.
pub(super) fn most_runs<const N: usize>(runs: &Runs, fields: [&str; N], is_of: impl Fn(&[String; N]) -> bool) -> usize {
    let cells = runs.cells(fields);
    cells.iter().filter(|(key, _)| is_of(key)).map(|(_, lines)| lines.len()).max().unwrap_or_default()
}

/// "medians of N runs".
pub(super) fn medians(runs: usize) -> String {
    if runs == 1 { "one run".to_owned() } else { format!("medians of {runs} interleaved runs") }
}

const EXPERIMENTS: Contest<3> = Contest {
    fields: ["experiment", "case", "system"],
    figure: "seconds",
    competes: |ours, theirs| ours.contains("tarpon") && !theirs.contains("tarpon"),
};

const STARTS: Contest<3> =
    Contest { fields: ["link", "workload", "system"], figure: "ready", competes: kinds::competes };

const SIZES: Contest<3> = Contest {
    fields: ["axis", "size", "system"],
    figure: "seconds",
    competes: |ours, theirs| ours.contains("tarpon") && !theirs.contains("tarpon"),
};

/// Where tarpon is not the fastest, for the report.
pub(crate) fn slower_parts(runs: &Runs) -> Vec<Part> {
    [EXPERIMENTS.parts(runs), STARTS.parts(runs), SIZES.parts(runs)].into_iter().flatten().collect()
}

/// The same for the terminal.
pub(super) fn slower(runs: &Runs) -> String {
    let text = |part| match part {
        Part::Text(text) | Part::Table(text) => text,
        Part::Heading(_) | Part::LongTable(..) | Part::Pictures(_) => String::new(),
    };
    slower_parts(runs).into_iter().map(text).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: &str = r#"{"machine": {}}
{"experiment": "e", "case": "a", "system": "podman", "number": 1, "seconds": 4.0}
{"experiment": "e", "case": "a", "system": "podman", "number": 2, "seconds": 2.0}
{"experiment": "e", "case": "a", "system": "tarpon", "number": 1, "seconds": 5.0}
{"experiment": "e", "case": "b", "system": "tarpon", "number": 1, "seconds": 1.0}
"#;

    #[test]
    fn a_figure_is_the_median_of_its_cell_and_a_lost_cell_is_counted() {
        let runs = Runs::parse(RUNS).unwrap();
        assert_eq!(of(&runs, ["e", "a", "podman"], "seconds"), Some(3.0));
        assert_eq!(of(&runs, ["e", "b", "podman"], "seconds"), None);
        assert_eq!(cases(&runs, "e"), ["a", "b"]);
        assert_eq!(most_runs(&runs, ["experiment", "case", "system"], |key| key[0] == "e"), 2);
        assert!(slower(&runs).contains("in 1 of 1 comparisons"), "{}", slower(&runs));
    }

    #[test]
    fn columns_of_figures_are_on_the_right() {
        let table = table(&["what", ">s"], &[vec!["a".into(), "1.0".into()]]);
        assert_eq!(table, "| what | s |\n|---|--:|\n| a | 1.0 |\n");
    }
}
