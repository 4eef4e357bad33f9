//! `tarpon pull`: fetches the whole image into the store.

use clap::Args;
use serde::Serialize;
use tarpon_engine::Pulled;

use super::image::ImageArgs;
use super::session::{Session, command_runtime};
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon pull docker.io/library/alpine:3.20     fetch the whole image
  tarpon mount --pull never alpine:3.20 /mnt    mount it without the registry
  tarpon pull --json alpine | jq .fetched_bytes

An interrupted pull continues: layers that are completely in the store are not fetched again.";

/// Fetch a whole image
///
/// Streams each layer that is not completely in the store, and verifies it against its digest and its diffID. Images that were mounted
/// lazily are completed, and the claims of external indexes are verified.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Pull {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
}

#[derive(Serialize)]
struct Report {
    image: String,
    manifest_digest: String,
    layers: usize,
    size: u64,
    fetched_bytes: u64,
    requests: u64,
}

impl Pull {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let doing = || format!("cannot pull {}", self.image.text());
        let progress = output::pull_progress(global.quiet);
        let pulled =
            command_runtime()?.block_on(session.engine().pull(&self.image.request()?, &*progress)).doing(doing)?;
        drop(progress);
        let Pulled { record, fetched } = pulled;
        if self.json {
            return output::json(&Report {
                image: self.image.text().to_owned(),
                manifest_digest: record.manifest.to_string(),
                layers: record.layers.len(),
                size: record.compressed_size(),
                fetched_bytes: fetched.bytes,
                requests: fetched.requests,
            });
        }
        if !global.quiet {
            let (image, bytes) = (escape(self.image.text().as_bytes()), size::human(fetched.bytes));
            let size = size::human(record.compressed_size());
            output::note(&format!("pulled {image} ({}): fetched {bytes} of {size}", record.manifest));
        }
        Ok(())
    }
}
