//! The runs of `bench start`, by link, workload and system.

use serde_json::Value;

use crate::chart::bars::{Bar, Group, add};
use crate::runs::{Runs, figures};
use crate::stats::{median, spread};

/// The link, if it was measured; else the first one is used.
const USUAL: &str = "100mbit,10ms";

/// The link for pictures that show only one.
pub(super) fn usual_link(runs: &Runs) -> Option<String> {
    let mut links = runs.values("link");
    let place = links.iter().position(|link| link == USUAL).unwrap_or(0);
    (place < links.len()).then(|| links.swap_remove(place))
}

/// A link in words.
pub(super) fn link_words(link: &str) -> String {
    let words = link.split(',').map(|part| {
        let unit = part.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(part.len());
        match part.split_at(unit) {
            (rate, "kbit") => format!("{rate} kbit/s"),
            (rate, "mbit") => format!("{rate} Mbit/s"),
            (rate, "gbit") => format!("{rate} Gbit/s"),
            (time, unit) => format!("{time} {unit}").trim().to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

pub(super) type Cell<'a> = ([String; 3], Vec<&'a Value>);

pub(super) fn cells(runs: &Runs) -> Vec<Cell<'_>> {
    runs.cells(["link", "workload", "system"])
}

/// Medians of some systems over a link, by workload.
pub(super) fn medians(runs: &Runs, link: &str, field: &str, is_shown: impl Fn(&str) -> bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for ([_, workload, system], lines) in cells(runs).into_iter().filter(|(key, _)| key[0] == link && is_shown(&key[2]))
    {
        let values = figures(&lines, field);
        let Some(value) = median(&values) else { continue };
        let bar = Bar { series: system, value, range: spread(&values), note: String::new() };
        add(&mut groups, &workload, bar);
    }
    groups
}
