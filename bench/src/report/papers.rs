//! Experiments of papers, beside the figures of the papers.

use super::section::{Part, Section};
use crate::papers;
use crate::papers::output;
use crate::runs::Runs;
use crate::start::table;

pub(super) fn section(runs: &Runs) -> Section {
    let mut parts = Vec::new();
    for found in papers::tables(runs) {
        parts.extend([Part::Heading(found.title), Part::Text(found.about), Part::Table(found.table)]);
    }
    parts.extend(output::slower_parts(runs));
    if runs.values("workload").len() > 1 {
        parts.push(Part::LongTable("Medians of all starts", table::table(runs)));
    }
    Section { title: "Papers: experiments of others, repeated", parts }
}
