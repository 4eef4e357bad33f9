//! `tarpon cache usage`.

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{Health, Store, Usage as Counted};

use crate::failure::{Context, Result};
use crate::output::{self, Table, escape};
use crate::size;

/// Show disk usage and limits of the store
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache usage\n  tarpon cache usage --json | jq .total_bytes")]
pub(super) struct Usage {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    objects: u64,
    object_bytes: u64,
    partial_objects: u64,
    partial_bytes: u64,
    images: u64,
    image_bytes: u64,
    leftover_bytes: u64,
    total_bytes: u64,
    written_bytes: u64,
    committed_bytes: u64,
    budget_bytes: u64,
    free_floor_bytes: u64,
}

impl Usage {
    pub(super) fn run(&self, store: &Store) -> Result {
        let counted = store.usage().doing(|| "cannot measure the store")?;
        let report = report(escape(store.folder().as_os_str().as_encoded_bytes()), &counted);
        if self.json {
            return output::json(&report);
        }
        if let Health::Bypass { reason } = store.health() {
            output::note(&format!("fetched content is not stored at the moment: {reason}"));
        }
        output::text(&table(&report))
    }
}

fn report(store: String, counted: &Counted) -> Report {
    Report {
        store,
        objects: counted.objects,
        object_bytes: counted.object_bytes,
        partial_objects: counted.partials,
        partial_bytes: counted.partial_bytes,
        images: counted.images,
        image_bytes: counted.image_bytes,
        leftover_bytes: counted.leftover_bytes,
        total_bytes: counted.total(),
        written_bytes: counted.written_bytes,
        committed_bytes: counted.committed_bytes,
        budget_bytes: counted.budget,
        free_floor_bytes: counted.free_floor,
    }
}

fn table(report: &Report) -> String {
    let mut table = Table::new(&["", ">", ">"]);
    let mut row = |name: &str, count: Option<u64>, bytes| {
        table.row([name.to_owned(), count.map(|count| count.to_string()).unwrap_or_default(), size::human(bytes)]);
    };
    row("complete objects", Some(report.objects), report.object_bytes);
    row("partial objects", Some(report.partial_objects), report.partial_bytes);
    row("image records", Some(report.images), report.image_bytes);
    row("leftovers", None, report.leftover_bytes);
    row("total", None, report.total_bytes);
    row("written to mounts", None, report.written_bytes);
    row("committed images", None, report.committed_bytes);
    row("size limit", None, report.budget_bytes);
    row("reserved free space", None, report.free_floor_bytes);
    format!("store {}\n{table}", report.store)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted() -> Report {
        let counted = Counted {
            objects: 1200,
            object_bytes: 40 << 20,
            partials: 3,
            partial_bytes: 2 << 20,
            images: 2,
            image_bytes: 5 << 20,
            leftover_bytes: 0,
            written_bytes: 3 << 20,
            committed_bytes: 1 << 20,
            budget: 20 << 30,
            free_floor: 1 << 30,
        };
        report("/var/lib/tarpon".into(), &counted)
    }

    #[test]
    fn the_usage_adds_up() {
        insta::assert_snapshot!(table(&counted()));
    }

    #[test]
    fn the_json_of_the_usage_has_a_stable_shape() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&counted()).expect("serialisable"));
    }
}
