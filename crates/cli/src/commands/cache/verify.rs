//! `tarpon cache verify`.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{Checked, Progress, Store, UnreadableObject};
use tarpon_engine::{Mended, UnmendedMount};
use tarpon_oci::Digest;

use crate::commands::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

/// Time between two lines of progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Verify the digests of all content of the store
///
/// Damaged content is removed, and fetched again when it is read. Damaged files of mounts are fetched again at once, also for programs
/// that have them open. Mounts that could not be repaired are listed here and by `tarpon status`. The exit code is 8 if anything was
/// damaged. Content that had not reached the disk when the machine stopped is removed as well, and is no damage.
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
    /// Objects that the disk fails to read.
    unreadable_objects: Vec<Unreadable>,
    damaged_images: Vec<Digest>,
    /// Objects that had not reached the disk when the machine stopped.
    torn_objects: Vec<Digest>,
    /// The same of images.
    torn_images: Vec<Digest>,
    /// Damaged files of mounted images that were fetched again.
    mended_files: u64,
    /// Mounts that may still show damage.
    unmended_mounts: Vec<UnmendedMount>,
}

#[derive(Debug, Serialize)]
struct Unreadable {
    object: Digest,
    error: String,
}

impl Verify {
    pub(super) fn run(&self, store: &Store, global: &Global) -> Result {
        let checked = store.verify(progress(global.quiet)).doing(|| "cannot verify the store")?;
        let is_damaged = checked.bad_objects() > 0 || !checked.damaged_images.is_empty();
        let mended = if is_damaged || !checked.torn_objects.is_empty() { mend(global)? } else { Mended::default() };
        let report = report(checked, mended);
        if self.json {
            output::json(&report)?;
        } else {
            output::text(&text(&report))?;
        }
        let objects = report.corrupt_objects.len() + report.unreadable_objects.len();
        let damaged = objects + report.damaged_images.len();
        if damaged == 0 {
            return Ok(());
        }
        let failure = Failure::new(Exit::Store, format_args!("{damaged} items of the store were damaged"));
        Err(if report.unmended_mounts.is_empty() {
            failure.hint("damaged content is fetched again when it is used; if damage recurs, check the disk")
        } else {
            failure.hint(
                "mounts that were not repaired may return damaged data: stop the programs that use them, then unmount and mount them again",
            )
        })
    }
}

/// Makes the server repair mounted images, if one runs.
fn mend(global: &Global) -> Result<Mended> {
    let session = Session::open(global)?;
    Ok(session.engine().client().mend().doing(|| "cannot repair the mounts")?.unwrap_or_default())
}

fn progress(quiet: bool) -> impl FnMut(Progress) {
    let mut last = Instant::now();
    move |progress| {
        if !quiet && last.elapsed() >= INTERVAL {
            last = Instant::now();
            output::note(&format!("verified {} objects, {}", progress.objects, size::human(progress.bytes)));
        }
    }
}

fn report(checked: Checked, mended: Mended) -> Report {
    let unreadable = checked.unreadable.into_iter();
    let unreadable = unreadable.map(|UnreadableObject { object, error }| Unreadable { object, error });
    Report {
        objects: checked.hashed.objects,
        bytes: checked.hashed.bytes,
        corrupt_objects: checked.corrupt,
        unreadable_objects: unreadable.collect(),
        damaged_images: checked.damaged_images,
        torn_objects: checked.torn_objects,
        torn_images: checked.torn_images,
        mended_files: mended.files,
        unmended_mounts: mended.unmended,
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("verified {} objects, {}\n", report.objects, size::human(report.bytes));
    text.extend(report.corrupt_objects.iter().map(|object| format!("corrupt object {object}\n")));
    let unreadable = report.unreadable_objects.iter();
    text.extend(unreadable.map(|Unreadable { object, error }| format!("unreadable object {object}: {error}\n")));
    text.extend(report.damaged_images.iter().map(|image| format!("damaged image {image}\n")));
    let (objects, images) = (report.torn_objects.len(), report.torn_images.len());
    if objects + images > 0 {
        text.push_str(&format!(
            "removed {objects} objects and {images} images that had not reached the disk when the machine stopped\n"
        ));
    }
    if report.mended_files > 0 {
        text.push_str(&format!("repaired {} mounted files\n", report.mended_files));
    }
    text.extend(report.unmended_mounts.iter().map(|mount| {
        let (path, problem) = (escape(mount.mountpoint.as_os_str().as_bytes()), escape(mount.problem.as_bytes()));
        format!("not repaired: mount {path}: {problem}\n")
    }));
    text
}
