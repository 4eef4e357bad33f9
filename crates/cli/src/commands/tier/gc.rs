//! `tarpon tier gc`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{LayerUse, TierGarbage, parse_duration};

use super::layer::{DAY, Layer, counted, list};
use super::opened::{Opened, managed};
use crate::commands::image::TierChoice;
use crate::commands::session::command_runtime;
use crate::failure::{Context, Result};
use crate::{output, size};

const EXAMPLES: &str = "\
Examples:
  tarpon tier gc --tier s3://images/tarpon
  tarpon tier gc --unused 90d --dry-run --tier s3://images/tarpon    only show what would be removed
  tarpon tier gc --json --tier file:///srv/tarpon | jq .removed_bytes";

/// Remove the layers of a tier that no host has used for a while
///
/// Each host that prepares an image notes the use of its layers, at most once a day. A layer that is needed again is streamed again by one
/// host. In a folder, copies that were not finished are removed too; for a bucket, set its own rule for incomplete uploads.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("tier", managed))]
pub(super) struct Gc {
    /// Least time since the last use, such as 30d or 1d12h; at least 1d. An hour is added, by which clocks may differ
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = unused)]
    unused: Duration,
    /// Only show what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tier: TierChoice,
}

/// Uses are noted once a day.
fn unused(text: &str) -> std::result::Result<Duration, String> {
    let duration = parse_duration(text).ok_or_else(|| "expected a time such as 30d or 36h".to_owned())?;
    if duration < DAY {
        return Err("hosts note uses once a day: expected at least 1d".to_owned());
    }
    Ok(duration)
}

#[derive(Debug, Serialize)]
struct Report {
    tier: String,
    dry_run: bool,
    unused_seconds: u64,
    removed: Vec<Layer>,
    removed_bytes: u64,
    /// Copies that were never finished, in a folder.
    unfinished_copies: u64,
    unfinished_bytes: u64,
}

impl Gc {
    pub(super) fn run(&self) -> Result {
        let opened = Opened::of(&self.tier)?;
        let work = opened.tier.collect_garbage(self.unused, self.dry_run);
        let garbage = command_runtime()?.block_on(work).doing(|| opened.doing("clean"))?;
        let report = self.report(opened.location.to_string(), &garbage);
        if self.json { output::json(&report) } else { output::text(&text(&report)) }
    }

    fn report(&self, tier: String, garbage: &TierGarbage) -> Report {
        Report {
            tier,
            dry_run: self.dry_run,
            unused_seconds: self.unused.as_secs(),
            removed: garbage.layers.iter().map(Layer::from).collect(),
            removed_bytes: garbage.layers.iter().map(LayerUse::bytes).fold(0, u64::saturating_add),
            unfinished_copies: garbage.unfinished.files,
            unfinished_bytes: garbage.unfinished.bytes,
        }
    }
}

fn text(report: &Report) -> String {
    let mut text = if report.removed.is_empty() { String::new() } else { list(&report.removed) };
    let removed = if report.dry_run { "would remove" } else { "removed" };
    let layers = counted(report.removed.len() as u64, "layer", "layers");
    text.push_str(&format!("{removed} {layers}, {}\n", size::human(report.removed_bytes)));
    if report.unfinished_copies > 0 {
        let copies = counted(report.unfinished_copies, "unfinished copy", "unfinished copies");
        text.push_str(&format!("{removed} {copies}, {}\n", size::human(report.unfinished_bytes)));
    }
    text
}
