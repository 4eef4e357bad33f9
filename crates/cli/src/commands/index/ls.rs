//! `tarpon index ls`: the published indexes of an image.

use clap::Args;
use tarpon_engine::{IndexSignature, KnownIndex, KnownIndexes, known_indexes};

use crate::commands::image::ImageArgs;
use crate::commands::session::command_runtime;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon index ls registry.example/app:v1                                  next to the image
  tarpon index ls --index-repo registry.example/tarpon redis:7             and in an index repository
  tarpon index ls --json redis:7 | jq -r '.indexes[].index_digest'";

/// List the published indexes of an image
///
/// Shows those of the index repositories and of the image's own repository, in the order in which a mount looks at them: digest, size, boot
/// packs, who signed it, and the repository.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("index", |index| index.hide(true).env(None::<&str>)), mut_arg("lock_file", |file| file.hide(true).env(None::<&str>)))]
pub(super) struct Ls {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
}

impl Ls {
    pub(super) fn run(&self, global: &Global) -> Result {
        let doing = || format!("cannot list the indexes of {}", self.image.text());
        let request = self.image.request_without_index()?;
        let known = command_runtime()?.block_on(known_indexes(&request)).doing(doing)?;
        if self.json {
            return output::json(&known);
        }
        known.problems.iter().for_each(|problem| output::note(&escape(problem.as_bytes())));
        if known.indexes.is_empty() && known.problems.is_empty() && !global.quiet {
            output::note(&format!("{} has no index", escape(known.image.as_bytes())));
        }
        if known.indexes.is_empty() { Ok(()) } else { output::text(&table(&known)) }
    }
}

fn table(known: &KnownIndexes) -> String {
    let mut table = Table::new(&["INDEX", ">SIZE", "PACKS", "SIGNED", "REPOSITORY"]);
    for KnownIndex { index_digest, place, index_size, packs, signature } in &known.indexes {
        let packs =
            packs.iter().map(|pack| format!("{} ({})", escape(pack.profile.as_bytes()), size::human(pack.size)));
        let packs = packs.collect::<Vec<_>>().join(", ");
        let signed = match signature {
            IndexSignature::None => "no",
            IndexSignature::ByPolicy => "yes",
            IndexSignature::ByOther => "by another key",
        };
        table.row([
            index_digest.to_string(),
            size::human(*index_size),
            if packs.is_empty() { "-".to_owned() } else { packs },
            signed.to_owned(),
            escape(place.as_bytes()),
        ]);
    }
    table.to_string()
}
