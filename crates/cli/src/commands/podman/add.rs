//! `tarpon podman add`.

use clap::Args;
use tarpon_engine::{Backfill, PodmanRequest};
use tokio::runtime::Runtime;

use crate::commands::each::each;
use crate::commands::image::{ImageName, ImageOptions, image_name};
use crate::commands::options::backfill;
use crate::commands::session::{Session, command_runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon podman add docker.io/library/python:3.12 docker.io/library/redis:7
  tarpon podman add --pull always registry.example/app:main        resolve the tag again
  tarpon podman add --name localhost/app:v1 oci:/srv/layout:v1     from an OCI layout on disk

If another added image has the name, the name moves to the new image, as with podman pull.";

/// Make images available to Podman
///
/// Returns when Podman can run the images. Layers without a table of contents are streamed once, as in `tarpon mount`; of other layers,
/// only data that a container reads is fetched.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Add {
    /// Name of the image in Podman [default: its own]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Fetch and verify the rest of the images in the background: off, idle (one layer at a time, while no read waits), now (as `pull`
    /// does)
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    #[command(flatten)]
    options: ImageOptions,
    /// Images, for example docker.io/library/alpine:3.20
    #[arg(value_name = "IMAGE", required = true, value_parser = image_name)]
    images: Vec<ImageName>,
}

impl Add {
    pub(super) fn run(self, global: &Global) -> Result {
        if self.name.is_some() && self.images.len() > 1 {
            let cause = "cannot add several images under one name: --name requires a single image";
            return Err(Failure::new(Exit::Usage, cause).hint("add the images one by one"));
        }
        let session = Session::open(global)?;
        session.engine().podman().may_show().doing(|| "cannot add images to Podman")?;
        let runtime = command_runtime()?;
        let wish = PodmanRequest { name: self.name.clone(), backfill: self.backfill };
        each(&self.images, |image| self.add(&session, &runtime, image, &wish, global.quiet))
    }

    fn add(
        &self,
        session: &Session,
        runtime: &Runtime,
        image: &ImageName,
        wish: &PodmanRequest,
        quiet: bool,
    ) -> Result {
        let doing = || format!("cannot add {} to Podman", image.text);
        let progress = output::progress(quiet);
        let request = self.options.request(image.clone()).doing(doing)?;
        let engine = session.engine();
        let added = runtime.block_on(async {
            let prepared = engine.prepare_to_mount(&request, &*progress).await?;
            engine.podman().add(&request, &prepared, wish, &*progress).await
        });
        drop(progress);
        let added = added.doing(doing)?;
        if !quiet {
            let names = added.podman.map(|podman| podman.names.join(", ")).unwrap_or_default();
            output::note(&format!("added to Podman: {}", escape(names.as_bytes())));
        }
        Ok(())
    }
}
