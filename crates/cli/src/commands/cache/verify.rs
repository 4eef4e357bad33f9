//! `tarpon cache verify`.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{Checked, Progress, Store};
use tarpon_oci::Digest;

use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::{output, size};

/// Time between two lines of progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Check the digest of everything that is kept
///
/// What is damaged is removed and fetched again when it is read. The exit code is then 8.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache verify\n  tarpon cache verify --json | jq .corrupt_objects")]
pub(super) struct Verify {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    objects: u64,
    bytes: u64,
    corrupt_objects: Vec<Digest>,
    damaged_images: Vec<Digest>,
}

impl Verify {
    pub(super) fn run(&self, store: &Store, quiet: bool) -> Result {
        let checked = store.verify(progress(quiet)).map_err(super::failed("cannot check the store"))?;
        let report = report(checked);
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text(&report))?;
        }
        let damaged = report.corrupt_objects.len() + report.damaged_images.len();
        if damaged == 0 {
            return Ok(());
        }
        Err(Failure::new(Exit::Store, format_args!("{damaged} items of the store were damaged and were removed"))
            .hint("they are fetched again when they are read; a disk that damages files will do it again"))
    }
}

fn progress(quiet: bool) -> impl FnMut(Progress) {
    let mut last = Instant::now();
    move |progress| {
        if !quiet && last.elapsed() >= INTERVAL {
            last = Instant::now();
            output::note(&format!("checked {} objects, {}", progress.objects, size::human(progress.bytes)));
        }
    }
}

fn report(checked: Checked) -> Report {
    Report {
        objects: checked.hashed.objects,
        bytes: checked.hashed.bytes,
        corrupt_objects: checked.corrupt,
        damaged_images: checked.damaged_images,
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("checked {} objects, {}\n", report.objects, size::human(report.bytes));
    text.extend(report.corrupt_objects.iter().map(|object| format!("corrupt object {object}\n")));
    text.extend(report.damaged_images.iter().map(|image| format!("damaged image {image}\n")));
    text
}
