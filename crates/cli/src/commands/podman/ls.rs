//! `tarpon podman ls`.

use clap::Args;
use tarpon_engine::MountStatus;

use super::layers;
use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

/// List the images available to Podman
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon podman ls\n  tarpon podman ls --json | jq -r '.[].podman.names[]'")]
pub(super) struct Ls {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Ls {
    pub(super) fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let images = session.engine().podman().images().doing(|| "cannot list the images")?;
        if self.json {
            return output::json(&images);
        }
        let layers = session.engine().podman().layers().doing(|| "cannot list the layers")?;
        let layers = if layers.is_empty() { String::new() } else { format!("\n{}", layers::text(&layers)) };
        output::text(&format!("{}{layers}", table(&images)))
    }
}

fn table(images: &[MountStatus]) -> String {
    if images.is_empty() {
        return "no images are available to Podman\n".to_owned();
    }
    let mut table = Table::new(&["NAME", "IMAGE ID", "DIGEST", ">FETCHED", ">OF", "STATE"]);
    for image in images {
        let Some(podman) = &image.podman else { continue };
        let state = if image.alive { "ok" } else { "dead: run `tarpon recover`" };
        let name = |name: &str| {
            [
                escape(name.as_bytes()),
                output::short_digest(&podman.id),
                output::short_digest(&image.manifest),
                size::human(image.fetched_bytes),
                size::human(image.image_bytes),
                state.to_owned(),
            ]
        };
        if podman.names.is_empty() {
            table.row(name("<none>"));
        }
        podman.names.iter().for_each(|at| table.row(name(at)));
    }
    table.to_string()
}
