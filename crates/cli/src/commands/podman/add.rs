//! `tarpon podman add`.

use clap::Args;
use tarpon_engine::{Backfill, PodmanWish};

use crate::commands::image::{ImageName, ImageOptions, image_name};
use crate::commands::options::backfill;
use crate::commands::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon podman add docker.io/library/python:3.12 docker.io/library/redis:7
  tarpon podman add --pull always registry.example/app:main        what the tag means now
  tarpon podman add --name localhost/app:v1 oci:/srv/layout:v1     from an OCI layout on disk

A name that another added image has goes to the new one, as with podman pull.";

/// Show images to Podman
///
/// Returns when Podman can run them. Layers without a table of contents are streamed once, as `tarpon mount` does; of all others
/// nothing is fetched but what a container reads.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Add {
    /// The name that Podman is to know the image by [default: its own]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Bring the rest of the images in the background, and verify all of it: off, idle (one layer at a time, while no reader
    /// waits), now (as `pull` does)
    #[arg(long, value_name = "WHEN", default_value = "off", value_parser = backfill())]
    backfill: Backfill,
    #[command(flatten)]
    options: ImageOptions,
    /// The images, for example docker.io/library/alpine:3.20
    #[arg(value_name = "IMAGE", required = true, value_parser = image_name)]
    images: Vec<ImageName>,
}

impl Add {
    pub(super) fn run(self, global: &Global) -> Result {
        if self.name.is_some() && self.images.len() > 1 {
            let cause =
                "cannot give one name to several images: an image of that name would take it from the one before";
            return Err(Failure::new(Exit::Usage, cause).hint("add them one by one"));
        }
        let session = Session::open(global)?;
        session.engine().may_show_to_podman().doing(|| "cannot show images to Podman")?;
        let runtime = runtime()?;
        let wish = PodmanWish { name: self.name, backfill: self.backfill };
        for image in self.images {
            let doing = || format!("cannot show {} to Podman", image.text);
            let progress = output::progress(global.quiet);
            let request = self.options.request(image.clone())?;
            let engine = session.engine();
            let added = runtime.block_on(async {
                let prepared = engine.prepare_to_mount(&request, &*progress).await?;
                engine.podman_add(&request, &prepared, &wish, &*progress).await
            });
            drop(progress);
            let added = added.doing(doing)?;
            if !global.quiet {
                let names = added.podman.map(|podman| podman.names.join(", ")).unwrap_or_default();
                output::note(&format!("Podman sees {}", escape(names.as_bytes())));
            }
        }
        Ok(())
    }
}
