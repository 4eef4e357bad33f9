//! The runs of one link, workload and system.

use serde_json::Value;

use crate::runs::Runs;

/// All cells of a file of starts.
pub(super) type Cells<'a> = Vec<([String; 3], Vec<&'a Value>)>;

pub(super) fn cells(runs: &Runs) -> Cells<'_> {
    runs.cells(["link", "workload", "system"])
}

pub(super) fn cell<'a, 'b>(cells: &'b Cells<'a>, key: [&str; 3]) -> &'b [&'a Value] {
    cells.iter().find(|(found, _)| *found == key).map_or(&[], |(_, runs)| runs)
}

pub(super) fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(String::new, |value| format!("{value:.digits$}"))
}
