//! `tarpon tier`: maintains a bucket or folder in which hosts share layers.

mod gc;
mod usage;
mod verify;

use std::time::{Duration, SystemTime};

use clap::{Arg, Args, Subcommand};
use serde::Serialize;
use tarpon_engine::{LayerUse, ManagedTier, TierLocation};
use tarpon_oci::Digest;

use super::image::TierChoice;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tarpon tier usage --tier s3://images/tarpon              how much there is, and when it was used
  tarpon tier gc --unused 30d --tier s3://images/tarpon    remove what no host has used for 30 days
  tarpon tier verify --tier file:///srv/tarpon             compare everything with its digests

The tier is that of --tier or $TARPON_TIER. Credentials for a bucket come from the environment.
Hosts may use the tier meanwhile: what they miss, they fetch from the registry.";

/// Manage a tier, in which hosts share layers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Tier {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Usage(usage::Usage),
    Gc(gc::Gc),
    Verify(verify::Verify),
}

impl Tier {
    pub(crate) fn run(self, global: &Global) -> Result {
        match self.command {
            Command::Usage(command) => command.run(),
            Command::Gc(command) => command.run(),
            Command::Verify(command) => command.run(global),
        }
    }
}

/// Adapts the help of `--tier`, which is that of commands that use a tier for images.
fn managed(tier: Arg) -> Arg {
    let help = "Tier: bucket (s3://BUCKET/PREFIX, gs://…, az://…) or shared folder (file:///DIR)";
    let credentials =
        "Credentials for a bucket come from the environment, as for its own tools: AWS_…, GOOGLE_… or AZURE_….";
    tier.help(help).long_help(format!("{help}\n\n{credentials}"))
}

/// The tier of a command, opened.
struct Opened {
    location: TierLocation,
    tier: ManagedTier,
}

impl Opened {
    fn of(choice: &TierChoice) -> Result<Self> {
        let location = choice.location().ok_or_else(|| {
            Failure::new(Exit::Usage, "no tier is named")
                .hint("name it with --tier URL or $TARPON_TIER, for example s3://BUCKET/PREFIX or file:///DIR")
        })?;
        let tier = ManagedTier::open(&location).doing(|| format!("cannot use the tier {location}"))?;
        Ok(Self { location, tier })
    }

    /// As in "cannot verify the tier s3://bucket".
    fn doing(&self, what: &str) -> String {
        format!("cannot {what} the tier {}", self.location)
    }
}

/// A layer in a tier, as JSON.
#[derive(Debug, Serialize)]
struct Layer {
    digest: Digest,
    /// Null if only its index is there.
    blob_bytes: Option<u64>,
    index_bytes: u64,
    /// Seconds since 1970, within a day.
    last_used: u64,
}

impl From<&LayerUse> for Layer {
    fn from(layer: &LayerUse) -> Self {
        let since = layer.last_use.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            digest: layer.layer,
            blob_bytes: layer.blob_bytes,
            index_bytes: layer.index_bytes,
            last_used: since.as_secs(),
        }
    }
}

impl Layer {
    fn time(&self) -> String {
        output::listing::time(i64::try_from(self.last_used).unwrap_or(i64::MAX))
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);

/// `1 copy`, `3 copies`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
