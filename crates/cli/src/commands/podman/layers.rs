//! `tarpon podman layers`.

use clap::{Args, Subcommand};
use tarpon_engine::{DiffIds, LayersPart, MountStatus};

use crate::commands::image::RegistryPlace;
use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup --layers                   once: serve layers, and tell Podman
  podman pull registry.example/app:estargz       comes lazily from now on
  tarpon podman layers ls                        of what Podman has layers, and what it had to pull itself
  tarpon podman layers start --tls-verify=false  ask registries in another way
  tarpon podman layers stop

After the machine was started anew, or when the server has died: tarpon recover.";

/// Let `podman pull` be lazy
///
/// Podman asks an additional layer store for each layer that it pulls. Images whose layers all have a table of contents (eStargz,
/// zstd:chunked), and those that tarpon knows already, come from there: nothing is fetched of them but what a container reads. All
/// others Podman pulls as ever. Works with Podman up to 5.4. Needs root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(super) struct Layers {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Start(Box<Start>),
    Stop(Stop),
    Ls(Ls),
}

impl Layers {
    pub(super) fn run(self, global: &Global) -> Result {
        match self.command {
            Command::Start(command) => command.run(global),
            Command::Stop(command) => command.run(global),
            Command::Ls(command) => command.run(global),
        }
    }
}

/// Serve layers to Podman, until `stop`
///
/// Podman does not say how it asks registries, so that is said here, and counts for all images. Credentials come from a file that says
/// which registry they are for.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tarpon podman layers start\n  tarpon podman layers start --authfile /etc/tarpon/auth.json"
)]
struct Start {
    /// Tell Podman the diffIDs that images claim of their layers, as other layer stores do, so that it can push and save them. Podman up to 5.0
    /// takes layers of other images for the same if these have the same diffIDs: an image that lies changes others. So these images are
    /// brought whole in the background and checked; of a layer that turns out to be another nothing more is read
    #[arg(long)]
    claimed_diff_ids: bool,
    #[command(flatten)]
    registry: RegistryPlace,
}

impl Start {
    fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let diff_ids = if self.claimed_diff_ids { DiffIds::Claimed } else { DiffIds::Hashed };
        session.engine().may_show_to_podman().doing(|| "cannot serve layers to Podman")?;
        let mounted = session.engine().podman_layers_start(self.registry.access(), diff_ids);
        let mounted = mounted.doing(|| "cannot serve layers to Podman")?;
        if !global.quiet {
            output::note(&format!("Podman finds layers in {}", mounted.mountpoint.display()));
        }
        Ok(())
    }
}

/// Serve layers no more
///
/// Refused while Podman has images that need them: these cannot run any more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon podman layers stop\n  tarpon podman layers stop --force")]
struct Stop {
    /// Also while Podman has images that need them
    #[arg(short, long)]
    force: bool,
}

impl Stop {
    fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        session.engine().podman_layers_stop(self.force).doing(|| "cannot stop serving layers to Podman")
    }
}

/// List the images of which Podman has layers, and what it had to pull itself
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tarpon podman layers ls\n  tarpon podman layers ls --json | jq -r '.[].fallbacks[]'"
)]
struct Ls {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

impl Ls {
    fn run(&self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let layers = session.engine().podman_layers().doing(|| "cannot list the layers")?;
        if self.json { output::json(&layers) } else { output::text(&text(&layers)) }
    }
}

/// The images whose layers Podman uses; empty if none are served.
pub(super) fn text(layers: &[MountStatus]) -> String {
    let Some(store) = layers.iter().find(|mount| matches!(mount.layers, Some(LayersPart::Store { .. }))) else {
        return "no layers are served to Podman\n".to_owned();
    };
    let mut table = Table::new(&["LAYERS OF", "DIGEST", ">LAYERS", ">FETCHED", ">OF", "STATE"]);
    let mut is_empty = true;
    for mount in layers {
        let Some(LayersPart::Image { uses }) = &mount.layers else { continue };
        is_empty = false;
        table.row([
            escape(mount.image.as_bytes()),
            output::short_digest(&mount.manifest),
            uses.len().to_string(),
            size::human(mount.fetched_bytes),
            size::human(mount.image_bytes),
            if mount.alive { "ok" } else { "dead: run `tarpon recover`" }.to_owned(),
        ]);
    }
    let mut text = if is_empty { "Podman has layers of no image\n".to_owned() } else { table.to_string() };
    if !store.alive {
        text.push_str("the server that served layers is dead: run `tarpon recover`\n");
    }
    for problem in &store.fallbacks {
        text.push_str(&format!("pulled by Podman itself: {}\n", escape(problem.as_bytes())));
    }
    text
}
