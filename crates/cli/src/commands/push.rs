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

`tarpon cache ls` lists committed images and whether they were pushed. `tarpon cache gc` removes
images that were pushed to a registry under their own names.";

/// Push a committed image
///
/// Uploads the new layer, config and manifest. The layers of the base are not fetched if the registry has them or can mount them from the
/// repository of the base; otherwise they are streamed from there, verified, and not stored. The tag is set last.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Push {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryOptions,
    /// Committed image
    #[arg(value_name = "IMAGE", value_parser = destination_name)]
    image: ImageName,
    /// Destination: [docker://]NAME[:TAG] or oci:DIR[:TAG] [default: IMAGE]
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
    let mut table = Table::new(&[">LAYER", "DIGEST", ">SIZE", "RESULT"]);
    for (number, layer) in pushed.layers.iter().enumerate() {
        let how = match layer.outcome {
            PushedOutcome::WasThere => "already present",
            PushedOutcome::Mounted => "mounted by the registry",
            PushedOutcome::Streamed => "streamed from the base's repository",
            PushedOutcome::Uploaded => "uploaded",
        };
        let number = (number + 1).to_string();
        table.row([number, output::short_digest(&layer.digest), size::human(layer.size), how.to_owned()]);
    }
    format!("{facts}\n{table}")
}
