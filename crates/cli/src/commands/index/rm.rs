//! `tarpon index rm`: removes published indexes of an image.

use clap::Args;
use tarpon_engine::{Unwanted, remove_indexes};
use tarpon_oci::Digest;

use crate::commands::image::ImageArgs;
use crate::commands::session::command_runtime;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon index rm --index-repo registry.example/tarpon redis:7              all indexes of the image there
  tarpon index rm --old --index-repo registry.example/tarpon redis:7        all but the newest
  tarpon index rm --digest sha256:… registry.example/app:v1                 one of those next to the image

The registry must allow deletion. It frees the space when it collects garbage.";

/// Remove published indexes of an image
///
/// Deletes them from the first index repository (--index-repo), or else from the image's own repository, with their signatures and their
/// entries in the list of referrers. The image stays.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("index", |index| index.hide(true).env(None::<&str>)), mut_arg("lock_file", |file| file.hide(true).env(None::<&str>)))]
pub(super) struct Rm {
    /// Remove only the index with this digest
    #[arg(long, value_name = "DIGEST")]
    digest: Option<Digest>,
    /// Keep the newest index, which a mount uses
    #[arg(long, conflicts_with = "digest")]
    old: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
}

impl Rm {
    pub(super) fn run(&self, global: &Global) -> Result {
        let doing = || format!("cannot remove the indexes of {}", self.image.text());
        let unwanted = match self.digest {
            Some(digest) => Unwanted::One(digest),
            None if self.old => Unwanted::Old,
            None => Unwanted::All,
        };
        let request = self.image.request_without_index()?;
        let removed = command_runtime()?.block_on(remove_indexes(&request, unwanted)).doing(doing)?;
        if self.json {
            return output::json(&removed);
        }
        for index in &removed.removed {
            output::text(&format!("{index}\n"))?;
        }
        if !global.quiet {
            let (count, place) = (removed.removed.len(), escape(removed.place.as_bytes()));
            let indexes = if count == 1 { "index" } else { "indexes" };
            output::note(&format!("removed {count} {indexes} from {place}"));
        }
        Ok(())
    }
}
