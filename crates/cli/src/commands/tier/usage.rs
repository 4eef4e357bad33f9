//! `tarpon tier usage`.

use std::time::SystemTime;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{LayerUse, TierUsage};

use super::layer::{DAY, Layer, list};
use super::opened::{Opened, managed};
use crate::commands::image::TierChoice;
use crate::commands::session::command_runtime;
use crate::failure::{Context, Result};
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon tier usage --tier s3://images/tarpon
  tarpon tier usage --layers --tier file:///srv/tarpon
  tarpon tier usage --json --tier s3://images/tarpon | jq .total_bytes
  tarpon tier usage --layers --json --tier s3://images/tarpon | jq -r '.each_layer[].digest'";

/// Show the layers and bytes of a tier, and when hosts last used them
///
/// The last use of a layer is when a host prepared an image with it, within a day, by the clock of the store. Lists the whole tier: a bucket
/// charges for one request for each thousand objects.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("tier", managed))]
pub(super) struct Usage {
    /// List each layer
    #[arg(long)]
    layers: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tier: TierChoice,
}

/// Days of the classes of ages; the last class is older than all.
const AGES: [u64; 4] = [1, 7, 30, 90];

#[derive(Debug, Serialize)]
struct Report {
    tier: String,
    layers: u64,
    blobs: u64,
    blob_bytes: u64,
    indexes: u64,
    index_bytes: u64,
    total_bytes: u64,
    last_use: Vec<Class>,
    #[serde(skip_serializing_if = "Option::is_none")]
    each_layer: Option<Vec<Layer>>,
}

/// The layers whose last use is in a range of ages.
#[derive(Debug, Serialize)]
struct Class {
    /// At most so many days ago, and in no class before; null: longer ago.
    days: Option<u64>,
    layers: u64,
    bytes: u64,
}

impl Usage {
    pub(super) fn run(&self) -> Result {
        let opened = Opened::of(&self.tier)?;
        let usage = command_runtime()?.block_on(opened.tier.usage()).doing(|| opened.doing("list"))?;
        let mut report = report(opened.location.to_string(), &usage, SystemTime::now());
        report.each_layer = self.layers.then(|| usage.layers.iter().map(Layer::from).collect());
        if self.json { output::json(&report) } else { output::text(&text(&report)) }
    }
}

fn report(tier: String, usage: &TierUsage, now: SystemTime) -> Report {
    let sum = |bytes: fn(&LayerUse) -> u64| usage.layers.iter().map(bytes).fold(0, u64::saturating_add);
    let last_use = AGES.map(Some).into_iter().chain([None]).map(|days| Class { days, layers: 0, bytes: 0 });
    let mut last_use: Vec<Class> = last_use.collect();
    for layer in &usage.layers {
        let age = now.duration_since(layer.last_use).unwrap_or_default();
        let is_in = |class: &&mut Class| class.days.is_none_or(|days| age <= DAY * u32::try_from(days).unwrap_or(0));
        if let Some(class) = last_use.iter_mut().find(is_in) {
            class.layers += 1;
            class.bytes = class.bytes.saturating_add(layer.bytes());
        }
    }
    Report {
        tier,
        layers: usage.layers.len() as u64,
        blobs: sum(|layer| layer.blob_bytes.is_some().into()),
        blob_bytes: sum(|layer| layer.blob_bytes.unwrap_or(0)),
        indexes: sum(LayerUse::indexes),
        index_bytes: sum(|layer| layer.index_bytes),
        total_bytes: usage.bytes(),
        last_use,
        each_layer: None,
    }
}

fn text(report: &Report) -> String {
    let mut facts = Table::new(&["", ">", ">"]);
    let mut row = |name: &str, count: u64, bytes| facts.row([name.to_owned(), count.to_string(), size::human(bytes)]);
    row("blobs", report.blobs, report.blob_bytes);
    row("indexes", report.indexes, report.index_bytes);
    row("layers", report.layers, report.total_bytes);
    let mut ages = Table::new(&["LAST USED", ">LAYERS", ">SIZE"]);
    for class in &report.last_use {
        let name = match class.days {
            Some(1) => "within a day".to_owned(),
            Some(days) => format!("within {days} days"),
            None => "longer ago".to_owned(),
        };
        ages.row([name, class.layers.to_string(), size::human(class.bytes)]);
    }
    let mut text = format!("tier {}\n{facts}\n{ages}", escape(report.tier.as_bytes()));
    if let Some(layers) = &report.each_layer {
        text.push_str(&format!("\n{}", list(layers)));
    }
    text
}
