//! Experiments of papers, beside the figures of the papers.

use super::section::{Part, Section};
use crate::papers;
use crate::papers::told;
use crate::runs::Runs;
use crate::start::table;

pub(super) fn section(runs: &Runs) -> Section {
    let mut parts = Vec::new();
    for told in papers::tables(runs) {
        parts.extend([Part::Heading(told.title), Part::Text(told.about), Part::Table(told.table)]);
    }
    parts.extend(told::slower_parts(runs));
    if runs.values("workload").len() > 1 {
        parts.push(Part::LongTable("Medians of all starts", table::table(runs)));
    }
    Section { title: "Papers: experiments of others, repeated", parts }
}
