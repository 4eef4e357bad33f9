//! `tarpon cache gc`, `rm` and `clear`: everything that removes.

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{Evicted, RemoveError, Store};
use tarpon_oci::{Digest, Source};

use crate::commands::image::image_name;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::{output, size};

/// Remove what no image refers to, and the images used longest ago while the store is over its size
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache gc\n  tarpon cache gc --json")]
pub(super) struct Gc {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Remove images, and what only they need
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon cache rm docker.io/library/alpine:3.20\n  tarpon cache rm sha256:4ec3…")]
pub(super) struct Rm {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Image references, or digests of manifests as `tarpon cache ls --json` shows them
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
}

/// Remove everything that is not mounted
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
}

impl Gc {
    pub(super) fn run(&self, store: &Store) -> Result {
        show(self.json, store.gc().map_err(super::failed("cannot make room in the store"))?)
    }
}

impl Clear {
    pub(super) fn run(&self, store: &Store) -> Result {
        show(self.json, store.clear().map_err(super::failed("cannot clear the store"))?)
    }
}

impl Rm {
    pub(super) fn run(&self, store: &Store) -> Result {
        let mut all = Evicted::default();
        for name in &self.images {
            for image in find(store, name)? {
                let evicted = store.remove_image(&image).map_err(|error| not_removed(name, &error))?;
                all.images.extend(evicted.images);
                all.objects += evicted.objects;
                all.bytes += evicted.bytes;
            }
        }
        show(self.json, all)
    }
}

/// The images of this name: one by its digest, or one for each platform by its reference.
fn find(store: &Store, name: &str) -> Result<Vec<Digest>> {
    let doing = || format!("cannot remove {name}");
    let failed = |error| super::failure(doing(), error);
    let found: Vec<Digest> = match name.parse::<Digest>() {
        Ok(digest) => store.image(&digest).map_err(failed)?.map(|record| record.manifest).into_iter().collect(),
        Err(_) => {
            let name =
                image_name(name).map_err(|error| Failure::new(Exit::Usage, format_args!("{}: {error}", doing())))?;
            by_reference(store, &name.source).map_err(failed)?
        }
    };
    if found.is_empty() {
        return Err(Failure::new(Exit::NotFound, format_args!("{}: the store has no such image", doing()))
            .hint("`tarpon cache ls` lists the images that it has"));
    }
    Ok(found)
}

fn by_reference(store: &Store, source: &Source) -> std::result::Result<Vec<Digest>, tarpon_engine::store::StoreError> {
    let source = source.to_string();
    let mut found: Vec<Digest> =
        store.references()?.into_iter().filter(|known| known.source == source).map(|known| known.manifest).collect();
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

fn show(json: bool, evicted: Evicted) -> Result {
    let report = Report { images: evicted.images, objects: evicted.objects, bytes: evicted.bytes };
    if json {
        return output::json(&report);
    }
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let (images, objects) = (counted(report.images.len() as u64, "image"), counted(report.objects, "object"));
    output::text(&format!("removed {images} and {objects}, {}\n", size::human(report.bytes)))
}
