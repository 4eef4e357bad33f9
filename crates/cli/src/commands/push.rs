//! `tarpon push`: pushes a committed image to a registry.

use std::sync::Arc;

use clap::Args;
use tarpon_engine::{Access, PushRequest, Pushed, PushedOutcome};

use super::image::{ImageName, RegistryOptions, destination_name};
use super::session::Session;
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::signals::interruptible;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon commit box registry.example/debian:curl && tarpon push registry.example/debian:curl
  tarpon push app:v2 registry.example/team/app:v2
  tarpon push --json app:v2 | jq -r .digest

`tarpon cache ls` lists what was committed and whether it was pushed. What was pushed
to a registry under its own name goes with `tarpon cache gc`.";

/// Push a committed image
///
/// Uploads the new layer, config and manifest. The layers below are not fetched: the registry has them, or takes them over from the
/// repository of the image below. If it does not, or is another one, they are streamed from there, verified, past the store.
/// The tag is set last.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Push {
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryOptions,
    /// The image, as it was committed
    #[arg(value_name = "IMAGE", value_parser = destination_name)]
    image: ImageName,
    /// Where it goes: [docker://]NAME[:TAG] or oci:DIR[:TAG] [default: IMAGE]
    #[arg(value_name = "DESTINATION", value_parser = destination_name)]
    destination: Option<ImageName>,
}

impl Push {
    pub(crate) fn run(self, global: &Global) -> Result {
        let destination = self.destination.as_ref().unwrap_or(&self.image);
        let doing = || format!("cannot push {} to {}", self.image.text, destination.text);
        let access = self.registry.access();
        let request = PushRequest {
            image: self.image.source.clone(),
            destination: destination.source.clone(),
            // These options apply to the destination registry only; credentials files name their registries themselves.
            base_access: Access { creds: None, tls_verify: None, cert_dir: None, ..access.clone() },
            access,
        };
        let session = Session::open(global)?;
        let progress = Arc::from(output::push_progress(global.quiet));
        let pushed = interruptible(doing, async { session.engine().push(&request, progress).await.doing(doing) })?;
        if self.json { output::json(&pushed) } else { output::text(&text(&pushed)) }
    }
}

fn text(pushed: &Pushed) -> String {
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), escape(value.as_bytes())]);
    fact("image", pushed.destination.clone());
    fact("manifest", pushed.digest.to_string());
    fact("uploaded", size::human(pushed.uploaded_bytes));
    fact("downloaded", size::human(pushed.downloaded_bytes));
    let mut table = Table::new(&[">LAYER", "DIGEST", ">SIZE", "HOW"]);
    for (number, layer) in pushed.layers.iter().enumerate() {
        let how = match layer.outcome {
            PushedOutcome::WasThere => "was there",
            PushedOutcome::Mounted => "mounted by the registry",
            PushedOutcome::Streamed => "streamed from the base's repository",
            PushedOutcome::Uploaded => "uploaded",
        };
        let number = (number + 1).to_string();
        table.row([number, output::short_digest(&layer.digest), size::human(layer.size), how.to_owned()]);
    }
    format!("{facts}\n{table}")
}
