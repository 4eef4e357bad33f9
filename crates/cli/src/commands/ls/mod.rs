//! `tarpon ls`: looks into an image without mounting it and without fetching file data.

mod walk;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use tarpon_tree::erofs::Image;

use super::image::ImageOptions;
use super::session::{Session, runtime};
use crate::cli::Global;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::image_path::{self, ImagePath};
use crate::output::listing::{self, Row};
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon ls alpine:3.20                               the root folder
  tarpon ls -l alpine:3.20:/etc                       a folder, with modes, owners, sizes and times
  tarpon ls -R localhost:5000/app:v1:/usr/share       everything below a folder
  tarpon ls --json oci:/srv/layout:v1:/etc/passwd     a file, as JSON

PATH is absolute: IMAGE ends at the first \":/\" behind its transport, so tags and ports need no quoting.
Names with control characters or bytes that are not UTF-8 are shown with escapes such as \\n and \\xff.";

/// List files of an image without mounting it
///
/// No file data is fetched. Layers without a table of contents have to be streamed once, as for a mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Show type and mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// List folders below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show names that start with a dot
    #[arg(short, long)]
    all: bool,
    /// Print entries as JSON, whatever their names
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// The image, and an absolute path in it
    #[arg(value_name = "IMAGE[:PATH]", value_parser = OsStringValueParser::new().try_map(|argument| image_path::parse(&argument)))]
    target: ImagePath,
}

impl Ls {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let shown = self.target.image.text.clone();
        let doing = || format!("cannot list {shown}:{}", escape(&self.target.path));
        let request = self.image.request(self.target.image.clone());
        let progress = output::progress(global.quiet);
        let prepared = runtime()?.block_on(session.engine().prepare(&request, &*progress)).doing(doing)?;
        drop(progress);
        let damaged = |error: &dyn std::fmt::Display| Failure::new(Exit::Store, format_args!("{}: {error}", doing()));
        let loaded = session.engine().store().load_image(prepared.manifest()).map_err(|error| damaged(&error))?;
        let loaded = loaded.ok_or_else(|| damaged(&"the image's record in the store is damaged; try again"))?;
        let image = Image::open(&loaded.tree[..]).map_err(|error| damaged(&error))?;

        let found = walk::resolve(&image, &self.target.path, !self.long).map_err(|error| damaged(&error))?;
        let start = found.ok_or_else(|| {
            Failure::new(Exit::NotFound, format_args!("{}: the image has no such file or directory", doing()))
        })?;
        let options = walk::Options { recursive: self.recursive, all: self.all || self.json };
        let folders = walk::list(&image, start, options).map_err(|error| damaged(&error))?;
        output::bytes(&self.render(&folders)?)
    }

    fn render(&self, folders: &[walk::Folder]) -> Result<Vec<u8>> {
        if self.json {
            let rows: Vec<&Row> = folders.iter().flat_map(|folder| &folder.rows).collect();
            return output::json_document(&rows);
        }
        let mut blocks = Vec::new();
        for folder in folders {
            let rows = if self.long { listing::long(&folder.rows) } else { listing::short(&folder.rows) };
            blocks.push(if self.recursive { format!("{}:\n{rows}", folder.path) } else { rows });
        }
        Ok(blocks.join("\n").into_bytes())
    }
}
