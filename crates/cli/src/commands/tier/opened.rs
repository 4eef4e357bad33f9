//! The tier of a command.

use clap::Arg;
use tarpon_engine::{ManagedTier, TierLocation};

use crate::commands::image::TierChoice;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};

/// Adapts the help of `--tier`, which is that of commands that use a tier for images.
pub(super) fn managed(tier: Arg) -> Arg {
    let help = "Tier: bucket (s3://BUCKET/PREFIX, gs://…, az://…) or shared folder (file:///DIR)";
    let credentials =
        "Credentials for a bucket come from the environment, as for its own tools: AWS_…, GOOGLE_… or AZURE_….";
    tier.help(help).long_help(format!("{help}\n\n{credentials}"))
}

/// The tier of a command, opened.
pub(super) struct Opened {
    pub(super) location: TierLocation,
    pub(super) tier: ManagedTier,
}

impl Opened {
    pub(super) fn of(choice: &TierChoice) -> Result<Self> {
        let location = choice.location().ok_or_else(|| {
            Failure::new(Exit::Usage, "no tier is named")
                .hint("name it with --tier URL or $TARPON_TIER, for example s3://BUCKET/PREFIX or file:///DIR")
        })?;
        let tier = ManagedTier::open(&location).doing(|| format!("cannot use the tier {location}"))?;
        Ok(Self { location, tier })
    }

    /// As in "cannot verify the tier s3://bucket".
    pub(super) fn doing(&self, what: &str) -> String {
        format!("cannot {what} the tier {}", self.location)
    }
}
