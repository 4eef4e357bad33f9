//! `tarpon cache gc`, `rm` and `clear`: all commands that remove.

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{Evicted, RemoveError, Store};
use tarpon_engine::{Commits, RegistriesChoice};
use tarpon_oci::{Digest, Source};

use crate::commands::each::each;
use crate::commands::image::image_name;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::{output, size};

/// Remove unreferenced content, committed images that were pushed and, while the store is over its size limit, the least recently
/// used images
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache gc\n  tarpon cache gc --json")]
pub(super) struct Gc {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

const RM_EXAMPLES: &str = "\
Examples:
  tarpon cache rm docker.io/library/alpine:3.20
  tarpon cache rm sha256:4ec3…
  tarpon cache rm --force app:v2        even if it is a committed image that was never pushed";

/// Remove images, including committed ones, and the content that only they need
#[derive(Debug, Args)]
#[command(after_help = RM_EXAMPLES)]
pub(super) struct Rm {
    /// Also remove committed images that were never pushed and exist nowhere else
    #[arg(short, long)]
    force: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Image references, or manifest digests as listed by `tarpon cache ls --json`
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
}

/// Remove everything that is not mounted, except committed images that were never pushed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache clear\n  tarpon cache clear --json")]
pub(super) struct Clear {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    images: Vec<Digest>,
    objects: u64,
    bytes: u64,
    committed: Vec<String>,
}

impl Gc {
    pub(super) fn run(&self, store: &Store) -> Result {
        let evicted = store.gc().doing(|| "cannot free space in the store")?;
        show(self.json, evicted, pushed(store)?)
    }
}

impl Clear {
    pub(super) fn run(&self, store: &Store) -> Result {
        let evicted = store.clear().doing(|| "cannot clear the store")?;
        show(self.json, evicted, pushed(store)?)
    }
}

impl Rm {
    pub(super) fn run(&self, store: &Store) -> Result {
        let (mut evicted, mut committed) = (Evicted::default(), Vec::new());
        let removed = each(&self.images, |name| self.remove(store, name, &mut evicted, &mut committed));
        let has_removed = !evicted.images.is_empty() || !committed.is_empty();
        // A program expects a report, and a user nothing but the failures if there is nothing else to say.
        if self.json || has_removed || removed.is_ok() {
            show(self.json, evicted, committed)?;
        }
        removed
    }

    /// Removes the images of this name, and adds what was removed, even if a part cannot be.
    fn remove(&self, store: &Store, name: &str, all: &mut Evicted, committed: &mut Vec<String>) -> Result {
        let was_committed = self.committed(store, name)?;
        let is_known = was_committed.is_some();
        committed.extend(was_committed);
        let found = find(store, name)?;
        if found.is_empty() && !is_known {
            return Err(unknown(name));
        }
        each(found, |image| {
            let evicted = store.remove_image(&image).map_err(|error| not_removed(name, &error))?;
            all.images.extend(evicted.images);
            all.objects += evicted.objects;
            all.bytes += evicted.bytes;
            Ok(())
        })
    }

    /// Removes the committed image of this name, and returns its name if it existed.
    fn committed(&self, store: &Store, name: &str) -> Result<Option<String>> {
        let Ok(image) = image_name(name) else { return Ok(None) };
        let removed = Commits::of(store).remove(&image.source, self.force).doing(|| format!("cannot remove {name}"))?;
        Ok(removed.map(|committed| committed.image))
    }
}

/// Removes committed images that were pushed, and returns their names.
fn pushed(store: &Store) -> Result<Vec<String>> {
    let removed = Commits::of(store).remove_pushed().doing(|| "cannot remove committed images")?;
    Ok(removed.into_iter().map(|committed| committed.image).collect())
}

/// The images of this name: one for a digest, or one per platform for a reference.
fn find(store: &Store, name: &str) -> Result<Vec<Digest>> {
    let doing = || format!("cannot remove {name}");
    let found: Vec<Digest> = match name.parse::<Digest>() {
        Ok(digest) => store.has_image(&digest).doing(doing)?.then_some(digest).into_iter().collect(),
        Err(_) => {
            let name =
                image_name(name).map_err(|error| Failure::new(Exit::Usage, format_args!("{}: {error}", doing())))?;
            let name = name.completed(&RegistriesChoice::of_environment())?;
            by_reference(store, &name.source).doing(doing)?
        }
    };
    Ok(found)
}

fn unknown(name: &str) -> Failure {
    Failure::new(Exit::NotFound, format_args!("cannot remove {name}: the store has no such image"))
        .hint("`tarpon cache ls` lists the images in the store")
}

fn by_reference(store: &Store, source: &Source) -> std::result::Result<Vec<Digest>, tarpon_engine::store::StoreError> {
    let source = source.to_string();
    let mut found: Vec<Digest> = store
        .references()?
        .into_iter()
        .filter(|reference| reference.source == source)
        .map(|reference| reference.manifest)
        .collect();
    found.sort();
    found.dedup();
    Ok(found)
}

fn not_removed(name: &str, error: &RemoveError) -> Failure {
    let message = format!("cannot remove {name}: {error}");
    match error {
        RemoveError::Mounted(path) => {
            Failure::new(Exit::Failure, message).hint(format!("unmount it first: tarpon umount {}", path.display()))
        }
        RemoveError::Store(_) => Failure::new(Exit::Store, message),
    }
}

fn show(json: bool, evicted: Evicted, committed: Vec<String>) -> Result {
    let report = Report { images: evicted.images, objects: evicted.objects, bytes: evicted.bytes, committed };
    if json {
        return output::json(&report);
    }
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (images, objects) = (counted(report.images.len() as u64, "image"), counted(report.objects, "object"));
    output::text(&format!("removed {images} and {objects}, {}\n", size::human(report.bytes)))?;
    match report.committed.len() as u64 {
        0 => Ok(()),
        count => output::text(&format!("removed {}\n", counted(count, "committed image"))),
    }
}
