//! `tarpon inspect`: the parts of an image, and which of them can be read lazily; what many images have in common.

mod stats;

use clap::Args;
use serde::Deserialize;
use tarpon_engine::Inspection;

use self::stats::Target;
use super::image::ImageOptions;
use super::session::{Session, command_runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon inspect docker.io/library/alpine
  tarpon inspect --pull always docker.io/library/alpine    resolve the tag again
  tarpon inspect --json oci-archive:app.tar | jq '.layers[] | select(.lazy | not)'
  tarpon inspect --raw debian:12 | sha256sum          the manifest, byte for byte
  tarpon inspect --config debian:12                   the image's config, byte for byte
  tarpon inspect --stats ./layouts app:v1 app:v2      what these images have in common";

/// Show the manifest, config and layers of an image
///
/// Shows what `tarpon mount` would mount. An image in the store is read from there, depending on --pull; of other images, the manifest
/// and the config are fetched. A layer is lazy if it declares a table of contents, so that its files can be fetched one by one; other
/// layers are streamed once, at the first mount.
///
/// With --stats it compares the files of any number of images: sizes, compression, layers and files that occur more than once, and the bytes
/// that a store saves which keeps each content once. Layers without a table of contents are read whole for that, and stay in the store.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// Print as JSON
    #[arg(long, conflicts_with_all = ["raw", "config"])]
    json: bool,
    /// Print the manifest, byte for byte
    #[arg(long, conflicts_with = "config")]
    raw: bool,
    /// Print the config, byte for byte
    #[arg(long)]
    config: bool,
    /// Show how large the layers and files of images are, and how often the same ones occur
    #[arg(long, conflicts_with_all = ["raw", "config"])]
    stats: bool,
    #[command(flatten)]
    options: ImageOptions,
    /// Image, for example docker.io/library/alpine:3.20; with --stats any number of images and folders: a folder (as a path with a slash)
    /// is an OCI layout, or has some
    #[arg(value_name = "IMAGE", required = true, value_parser = stats::target)]
    images: Vec<Target>,
}

impl Inspect {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        if self.stats {
            return stats::run(&session, &self.options, self.images, self.json, global.quiet);
        }
        let [Target::Image(image)] = &self.images[..] else {
            return Err(Failure::new(Exit::Usage, "cannot inspect several images or a folder without --stats"));
        };
        let doing = || format!("cannot inspect {}", image.text);
        let found = command_runtime()?
            .block_on(session.engine().inspect(&self.options.request(image.clone())?))
            .doing(doing)?;
        if self.raw {
            output::bytes(&found.manifest_bytes)
        } else if self.config {
            output::bytes(&found.config_bytes)
        } else if self.json {
            output::json(&found)
        } else {
            output::text(&text(&found))
        }
    }
}

/// The part of the config that is shown; all fields are optional.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    architecture: String,
    os: String,
    variant: String,
    created: String,
    config: Option<Run>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Run {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    user: String,
    working_dir: String,
}

fn text(found: &Inspection) -> String {
    let config: Config = serde_json::from_slice(&found.config_bytes).unwrap_or_default();
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            facts.row([name.to_owned(), escape(value.as_bytes())]);
        }
    };
    fact("image", found.image.clone());
    fact("manifest", found.manifest_digest.to_string());
    fact("index", found.index_digest.map(|digest| digest.to_string()).unwrap_or_default());
    let platform = [config.os, config.architecture, config.variant];
    fact("platform", platform.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/"));
    fact("created", config.created);
    let run = config.config.unwrap_or_default();
    fact("entrypoint", command_line(run.entrypoint));
    fact("command", command_line(run.cmd));
    fact("user", run.user);
    fact("directory", run.working_dir);
    let lazy: u64 = found.layers.iter().filter(|layer| layer.lazy).map(|layer| layer.size).sum();
    fact("size", format!("{} compressed, {} of it lazy", size::human(found.size), size::percent(lazy, found.size)));
    fact("store", if found.in_store { "mountable without a registry" } else { "not in the store" }.to_owned());
    format!("{facts}\n{}", layers(found))
}

fn layers(found: &Inspection) -> String {
    let mut table = Table::new(&[">LAYER", "DIGEST", ">SIZE", "FORMAT", "LAZY"]);
    for (number, layer) in found.layers.iter().enumerate() {
        table.row([
            (number + 1).to_string(),
            output::short_digest(&layer.digest),
            size::human(layer.size),
            layer.format.clone(),
            if layer.lazy { "yes" } else { "no, streamed once" }.to_owned(),
        ]);
    }
    table.to_string()
}

fn command_line(words: Option<Vec<String>>) -> String {
    let words = words.unwrap_or_default();
    let quoted = |word: &String| {
        let plain = !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"\\$".contains(c));
        if plain { word.clone() } else { format!("{word:?}") }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}
