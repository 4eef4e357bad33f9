//! `tarpon commit`: creates an image from the changes over another image.

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
  tarpon commit --base app:v1 ./changes app:v2          changes written by another tool

The store keeps the config, the manifest and the new layer. The layers of the base are not fetched;
`tarpon push` lets the registry reuse them. An image that was not pushed stays until
`tarpon cache rm --force`; `tarpon cache ls` lists it.";

/// Create an image from the changes of a container
///
/// Writes the changes that CONTAINER made to its image, or the content of UPPERDIR, as one new layer, and stores the result as IMAGE
/// until it is pushed. The config is that of the base image with the changes of --change; it contains no options of the container.
/// Mount points of the container and its volumes are left out.
///
/// The result is an OCI image, even if the base is a Docker image. A layer cannot contain sockets or access control lists; names must
/// be UTF-8 and must not begin with .wh.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Commit {
    /// Format of the new layer [default: that of the base's layers, else zstd:chunked]
    #[arg(long, value_name = "FORMAT")]
    format: Option<FormatName>,
    /// Dockerfile instruction to apply to the config: CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, VOLUME or WORKDIR; may be
    /// repeated
    #[arg(short, long, value_name = "INSTRUCTION")]
    change: Vec<Change>,
    /// Author of the image
    #[arg(short, long, value_name = "NAME")]
    author: Option<String>,
    /// Commit message
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Creation time in seconds since 1970; files of the layer get no later time, so that the same files give the same digest
    /// [default: now]
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", hide_env_values = true)]
    timestamp: Option<i64>,
    /// Pause a running container during the commit, if its runtime can; read an UPPERDIR again that changes meanwhile, or fail
    /// [default: true]
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true)]
    #[arg(default_value = "true", default_missing_value = "true", hide_default_value = true)]
    #[arg(action = clap::ArgAction::Set)]
    pause: bool,
    /// Base image of UPPERDIR [default: the image of its current or last mount with --rw=UPPERDIR]
    #[arg(long, value_name = "IMAGE", value_parser = image_name)]
    base: Option<ImageName>,
    /// Platform to select from the image index of --base, as OS/ARCH[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM", requires = "base")]
    platform: Option<Platform>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryOptions,
    /// Container of `tarpon run`, by name or unique prefix, or upper directory of overlayfs, as a path with a slash
    #[arg(value_name = "CONTAINER|UPPERDIR")]
    source: PathBuf,
    /// Name of the new image: [docker://]NAME[:TAG] or oci:DIR[:TAG]; the destination of a push
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
            source: self.commit_source()?,
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
    fn commit_source(&self) -> std::result::Result<CommitSource, String> {
        let is_path = self.base.is_some() || self.source.as_os_str().as_encoded_bytes().contains(&b'/');
        if is_path || [".", ".."].iter().any(|name| self.source.as_os_str() == *name) {
            let base = self.base.clone().map(|image| self.base_request(image)).transpose()?.map(Box::new);
            return Ok(CommitSource::Upper { directory: self.source.clone(), base });
        }
        let name = self.source.to_string_lossy();
        Ok(CommitSource::Container(name.parse()?))
    }

    fn base_request(&self, image: ImageName) -> std::result::Result<ImageRequest, String> {
        let access = self.registry.access();
        let ImageName { text, source } = image.completed(&access.registries).map_err(|error| error.to_string())?;
        let platform = self.platform.clone().unwrap_or_else(Platform::host);
        let platform_named = self.platform.is_some();
        Ok(ImageRequest { platform_named, access, ..ImageRequest::new(text, source, platform) })
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
