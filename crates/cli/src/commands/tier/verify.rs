//! `tarpon tier verify`.

use clap::Args;
use serde::Serialize;
use tarpon_engine::{TierCheck, UnreadableTierObject, WrongObject};
use tarpon_oci::Digest;

use super::layer::counted;
use super::opened::{Opened, managed};
use crate::commands::image::TierChoice;
use crate::commands::session::command_runtime;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon tier verify --tier file:///srv/tarpon
  tarpon tier verify --repair --tier s3://images/tarpon    and remove what is wrong
  tarpon tier verify --json --tier s3://images/tarpon | jq -r '.wrong[].name'";

/// Read all layers of a tier, and compare them with their digests
///
/// Reads every blob and every index, four at a time: a bucket charges for that. Hosts do not use wrong ones, but ask for them again and
/// again. The exit code is 8 if anything is wrong. Whether an index describes its layer is not checked.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("tier", managed))]
pub(super) struct Verify {
    /// Remove wrong blobs and indexes, so that hosts write them again
    #[arg(long)]
    repair: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tier: TierChoice,
}

#[derive(Debug, Serialize)]
struct Report {
    tier: String,
    objects: u64,
    bytes: u64,
    wrong: Vec<Wrong>,
    unreadable: Vec<Unreadable>,
}

#[derive(Debug, Serialize)]
struct Wrong {
    layer: Digest,
    name: String,
    removed: bool,
}

#[derive(Debug, Serialize)]
struct Unreadable {
    layer: Digest,
    name: String,
    error: String,
}

impl Verify {
    pub(super) fn run(&self, global: &Global) -> Result {
        let opened = Opened::of(&self.tier)?;
        let progress = output::verification_progress(global.quiet);
        let work = opened.tier.verify(self.repair, &*progress);
        let checked = command_runtime()?.block_on(work).doing(|| opened.doing("verify"))?;
        drop(progress);
        let report = report(opened.location.to_string(), checked);
        if self.json {
            output::json(&report)?
        } else {
            output::text(&text(&report))?
        }
        outcome(&report)
    }
}

fn report(tier: String, checked: TierCheck) -> Report {
    let wrong = |WrongObject { layer, name, is_removed }| Wrong { layer, name, removed: is_removed };
    let unreadable = |UnreadableTierObject { layer, name, error }| Unreadable { layer, name, error };
    Report {
        tier,
        objects: checked.objects,
        bytes: checked.bytes,
        wrong: checked.wrong.into_iter().map(wrong).collect(),
        unreadable: checked.unreadable.into_iter().map(unreadable).collect(),
    }
}

fn text(report: &Report) -> String {
    let mut text =
        format!("verified {}, {}\n", counted(report.objects, "object", "objects"), size::human(report.bytes));
    for Wrong { layer, name, removed } in &report.wrong {
        let removed = if *removed { ", removed" } else { "" };
        text.push_str(&format!("wrong {} of layer {layer}{removed}\n", escape(name.as_bytes())));
    }
    for Unreadable { layer, name, error } in &report.unreadable {
        let (name, error) = (escape(name.as_bytes()), escape(error.as_bytes()));
        text.push_str(&format!("unreadable {name} of layer {layer}: {error}\n"));
    }
    text
}

fn outcome(report: &Report) -> Result {
    let tier = &report.tier;
    match (report.wrong.len() as u64, report.unreadable.len() as u64) {
        (0, 0) => Ok(()),
        (0, count) => {
            let objects = counted(count, "object", "objects");
            Err(Failure::new(Exit::Unavailable, format_args!("{objects} of the tier {tier} could not be read")))
        }
        (count, _) => {
            let (objects, verb) = (counted(count, "object", "objects"), if count == 1 { "is" } else { "are" });
            let failure = Failure::new(Exit::Store, format_args!("{objects} of the tier {tier} {verb} wrong"));
            Err(if report.wrong.iter().all(|wrong| wrong.removed) {
                failure.hint(
                    "wrong objects were removed; find out which host writes wrong bytes, or whether its storage is damaged",
                )
            } else {
                failure.hint("hosts do not use wrong objects; `tarpon tier verify --repair` removes them")
            })
        }
    }
}
