//! `tarpon podman layers`.

use clap::{Args, Subcommand};
use tarpon_engine::{DiffIds, LayersPart, MountStatus};

use crate::commands::image::RegistryConnection;
use crate::commands::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon podman setup --layers                   serve layers and configure Podman, once
  podman pull registry.example/app:estargz       pulls lazily from now on
  tarpon podman layers ls                        images with served layers, and those that Podman pulled itself
  tarpon podman layers start --tls-verify=false  change the registry options
  tarpon podman layers stop

After a reboot or a crash of the server, run `tarpon recover`.";

/// Make `podman pull` lazy
///
/// Podman looks up each layer that it pulls in an additional layer store, which tarpon provides. It has the layers of images in the
/// store, and of images whose layers all have a table of contents (eStargz, zstd:chunked); only data that a container reads is fetched.
/// Podman pulls other images as usual. Works with Podman up to 5.4. Requires root.
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

/// Serve layers to Podman until `stop`
///
/// Podman does not pass on its registry options, so the options of this command apply to all images. Credentials come from a credentials
/// file with an entry for each registry.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tarpon podman layers start\n  tarpon podman layers start --authfile /etc/tarpon/auth.json"
)]
struct Start {
    /// Report the diffIDs that images claim for their layers, as other layer stores do, so that Podman can push and save them
    ///
    /// Podman up to 5.0 treats layers with the same diffID as identical, so an image with a false claim changes other images. With this
    /// option, images are fetched and verified completely in the background; a layer with a false claim is no longer read.
    #[arg(long)]
    claimed_diff_ids: bool,
    #[command(flatten)]
    registry: RegistryConnection,
}

impl Start {
    fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let diff_ids = if self.claimed_diff_ids { DiffIds::Claimed } else { DiffIds::Hashed };
        session.engine().podman().may_show().doing(|| "cannot serve layers to Podman")?;
        let mounted = session.engine().podman().start_layers(self.registry.access(), diff_ids);
        let mounted = mounted.doing(|| "cannot serve layers to Podman")?;
        if !global.quiet {
            output::note(&format!("serving layers to Podman in {}", mounted.mountpoint.display()));
        }
        Ok(())
    }
}

/// Stop serving layers
///
/// Fails while Podman has images that need the layers, because these could not run any more.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tarpon podman layers stop\n  tarpon podman layers stop --force")]
struct Stop {
    /// Stop even if Podman has images that need the layers
    #[arg(short, long)]
    force: bool,
}

impl Stop {
    fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        session.engine().podman().stop_layers(self.force).doing(|| "cannot stop serving layers to Podman")
    }
}

/// List images with served layers, and images that Podman pulled itself
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
        let layers = session.engine().podman().layers().doing(|| "cannot list the layers")?;
        if self.json { output::json(&layers) } else { output::text(&text(&layers)) }
    }
}

/// The images whose layers Podman uses; empty if none are served.
pub(super) fn text(layers: &[MountStatus]) -> String {
    let Some(store) = layers.iter().find(|mount| matches!(mount.layers, Some(LayersPart::Store { .. }))) else {
        return "no layers are served to Podman\n".to_owned();
    };
    let mut table = Table::new(&["IMAGE", "DIGEST", ">LAYERS", ">FETCHED", ">OF", "STATE"]);
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
    let mut text = if is_empty { "Podman uses no served layers\n".to_owned() } else { table.to_string() };
    if !store.alive {
        text.push_str("the server of the layers is dead: run `tarpon recover`\n");
    }
    for problem in &store.fallbacks {
        text.push_str(&format!("pulled by Podman itself: {}\n", escape(problem.as_bytes())));
    }
    text
}
