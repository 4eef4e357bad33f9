//! `tarpon commit`: makes an image of the changes over another image.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{Change, CommitReport, CommitRequest, CommitSource, ImageRequest, LayerFormat};
use tarpon_oci::Platform;

use super::image::{ImageName, RegistryOptions, destination_name, image_name};
use super::options::FormatName;
use super::session::Session;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::signals::interruptible;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon run --name box debian:12 apt-get install -y curl
  tarpon commit box registry.example/debian:curl && tarpon push registry.example/debian:curl
  tarpon commit -c 'CMD [\"serve\"]' -c 'ENV MODE=fast' -m 'with a cache' box registry.example/app:v2
  tarpon mount --rw=/srv/changes app:v1 /mnt && touch /mnt/new && tarpon umount /mnt
  tarpon commit /srv/changes app:v2
  tarpon commit --base app:v1 ./changes app:v2          it was written elsewhere

The image is in the store afterwards: its config and manifest, and the new layer. The layers below
are not fetched for it; `tarpon push` has the registry take them over. What was not pushed stays
until `tarpon cache rm --force`; `tarpon cache ls` lists it.";

/// Make an image of what a container wrote
///
/// Writes what CONTAINER changed of its image, or what is in UPPERDIR, as one new layer, and keeps it as IMAGE until it is pushed.
/// The config is that of the image below, with the changes that are asked for: nothing of the container's options is in it.
/// Left out are places where something was mounted in the container, and volumes with what is in them.
///
/// The result is an OCI image, also if the one below is Docker's. A layer holds no sockets and no access control lists; names must be
/// UTF-8 and must not begin with .wh.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Commit {
    /// What the new layer becomes [default: what the layers below are, else zstd:chunked]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// Say something otherwise in the config: CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME or WORKDIR, as in
    /// a Dockerfile; more than once, in order
    #[arg(short, long, value_name = "INSTRUCTION")]
    change: Vec<Change>,
    /// Whose work it is
    #[arg(short, long, value_name = "NAME")]
    author: Option<String>,
    /// What was done
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// When it was made, in seconds since 1970; no file of the layer is newer then, so that the same files give the same digest
    /// [default: now]
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", hide_env_values = true)]
    timestamp: Option<i64>,
    /// Make the layer of what is there at one moment: a container that runs stands still meanwhile, where its runtime can do that,
    /// and an UPPERDIR that changes while it is read is read again, or an error [default: true]
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true", hide_default_value = true)]
    #[arg(action = clap::ArgAction::Set)]
    pause: bool,
    /// The image that UPPERDIR was written over [default: that of the mount whose --rw=UPPERDIR it is, or was last]
    #[arg(long, value_name = "IMAGE", value_parser = image_name)]
    base: Option<ImageName>,
    /// Which image --base is, of one for several platforms, as OS/ARCH[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM", requires = "base")]
    platform: Option<Platform>,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryOptions,
    /// A container of `tarpon run`, of whose name the beginning is enough, or an upper directory of overlayfs, with a slash in its name
    #[arg(value_name = "CONTAINER|UPPERDIR")]
    source: PathBuf,
    /// What to call it: [docker://]NAME[:TAG] or oci:DIR[:TAG], where a push brings it
    #[arg(value_name = "IMAGE", value_parser = destination_name)]
    image: ImageName,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    image: &'a str,
    digest: String,
    base: &'a str,
    base_digest: String,
    layer: String,
    layer_bytes: u64,
    uncompressed_bytes: u64,
    entries: u64,
    format: String,
    notes: &'a [String],
}

impl Commit {
    pub(crate) fn run(self, global: &Global) -> Result {
        let doing = || format!("cannot commit {} as {}", self.source.display(), self.image.text);
        let request = self
            .request()
            .map_err(|failure: String| Failure::new(Exit::Usage, format_args!("{}: {failure}", doing())))?;
        let session = Session::open(global)?;
        let mut request = request;
        if let CommitSource::Container(name) = &mut request.source {
            *name = session.engine().container_named(name).doing(doing)?;
        }
        let progress = output::progress(global.quiet);
        let report = interruptible(doing, async { session.engine().commit(&request, &*progress).await.doing(doing) })?;
        drop(progress);
        self.show(global, &report)
    }

    fn request(&self) -> std::result::Result<CommitRequest, String> {
        Ok(CommitRequest {
            source: self.what()?,
            image: self.image.source.clone(),
            access: self.registry.access(),
            format: self.format.map(LayerFormat::from),
            changes: self.change.clone(),
            author: self.author.clone(),
            message: self.message.clone(),
            timestamp: self.timestamp,
            pause: self.pause,
        })
    }

    /// The source: a container name, unless `--base` or the spelling shows that it is a path.
    fn what(&self) -> std::result::Result<CommitSource, String> {
        let is_path = self.base.is_some() || self.source.as_os_str().as_encoded_bytes().contains(&b'/');
        if is_path || [".", ".."].iter().any(|name| self.source.as_os_str() == *name) {
            let base = self.base.as_ref().map(|image| Box::new(self.base_request(image)));
            return Ok(CommitSource::Upper { directory: self.source.clone(), base });
        }
        let name = self.source.to_string_lossy();
        Ok(CommitSource::Container(name.parse()?))
    }

    fn base_request(&self, image: &ImageName) -> ImageRequest {
        ImageRequest {
            platform_named: self.platform.is_some(),
            access: self.registry.access(),
            ..ImageRequest::new(
                image.text.clone(),
                image.source.clone(),
                self.platform.clone().unwrap_or_else(Platform::host),
            )
        }
    }

    fn show(&self, global: &Global, report: &CommitReport) -> Result {
        let CommitReport { committed, format, entries, uncompressed, notes } = report;
        if self.json {
            return output::json(&Report {
                image: &committed.image,
                digest: committed.digest.to_string(),
                base: &committed.base,
                base_digest: committed.base_digest.to_string(),
                layer: committed.layer.to_string(),
                layer_bytes: committed.layer_size,
                uncompressed_bytes: *uncompressed,
                entries: *entries,
                format: format.to_string(),
                notes,
            });
        }
        if !global.quiet {
            let mut facts = Table::new(&["", ""]);
            let mut fact = |name: &str, value: String| facts.row([name.to_owned(), escape(value.as_bytes())]);
            fact("image", committed.image.clone());
            fact("base", format!("{} ({})", committed.base, committed.base_digest));
            let sizes = format!("{}, {} uncompressed", size::human(committed.layer_size), size::human(*uncompressed));
            fact("layer", format!("{} ({format}): {entries} entries, {sizes}", committed.layer));
            output::note(facts.to_string().trim_end());
        }
        output::text(&format!("{}\n", committed.digest))
    }
}
