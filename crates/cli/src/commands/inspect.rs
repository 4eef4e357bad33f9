//! `tarpon inspect`: what an image consists of, and what of it can be read lazily.

use clap::Args;

use super::image::ImageArgs;

const EXAMPLES: &str = "\
Examples:
  tarpon inspect docker.io/library/alpine
  tarpon inspect --json oci-archive:app.tar | jq '.layers[] | select(.lazy | not)'
  tarpon inspect --raw debian:12 | sha256sum          the manifest, byte for byte
  tarpon inspect --config debian:12                   the image's config, byte for byte";

/// Show an image's manifest, config and layers
///
/// Fetches the manifest and the config only. A layer is lazy when it says that it has a table of contents, so that its
/// files can be fetched one by one; other layers are streamed once, at the first mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// Print everything as JSON
    #[arg(long, conflicts_with_all = ["raw", "config"])]
    json: bool,
    /// Print the manifest, byte for byte
    #[arg(long, conflicts_with = "config")]
    raw: bool,
    /// Print the config, byte for byte
    #[arg(long)]
    config: bool,
    #[command(flatten)]
    image: ImageArgs,
}
