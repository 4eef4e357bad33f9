//! `tarpon ls`: lists an image without mounting it and without fetching file data.

mod image_path;
mod walk;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use image_path::ImagePath;
use walk::Folder;

use super::image::ImageOptions;
use super::session::{Session, command_runtime};
use crate::failure::{Context, Result};
use crate::global::Global;
use crate::output::listing;
use crate::output::{self, escape};

const EXAMPLES: &str = "\
Examples:
  tarpon ls alpine:3.20                               the root directory
  tarpon ls -l alpine:3.20:/etc                       a directory, with modes, owners, sizes and times
  tarpon ls -R localhost:5000/app:v1:/usr/share       a directory and its subdirectories
  tarpon ls --json oci:/srv/layout:v1:/etc/passwd     a file, as JSON

PATH is absolute: it starts at the first \":/\" after the transport of IMAGE.
Control characters and bytes that are not UTF-8 are escaped: \\n, \\xff.";

/// List files of an image without mounting it
///
/// No file data is fetched. Layers without a table of contents are streamed once, as for a mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ls {
    /// Show type and mode, links, owner, group, size and time
    #[arg(short, long)]
    long: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Include names that start with a dot
    #[arg(short, long)]
    all: bool,
    /// Print all entries as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// Image and absolute path in it
    #[arg(value_name = "IMAGE[:PATH]", value_parser = OsStringValueParser::new().try_map(|argument| image_path::parse(&argument)))]
    target: ImagePath,
}

impl Ls {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let shown = self.target.image.text.clone();
        let doing = || format!("cannot list {shown}:{}", escape(&self.target.path));
        let request = self.image.request(self.target.image.clone())?;
        let progress = output::progress(global.quiet);
        let prepared = command_runtime()?.block_on(session.engine().prepare(&request, &*progress)).doing(doing)?;
        drop(progress);
        let tree = session.engine().open_tree(&prepared).doing(doing)?;
        let options = walk::Options { recursive: self.recursive, all: self.all || self.json, follow: !self.long };
        let folders = walk::list(&tree, &self.target.path, options).doing(doing)?;
        self.show(&folders)
    }

    fn show(&self, folders: &[Folder]) -> Result {
        if self.json {
            return output::json(&folders.iter().flat_map(|folder| &folder.rows).collect::<Vec<_>>());
        }
        let blocks = folders.iter().map(|folder| {
            let rows = if self.long { listing::long(&folder.rows) } else { listing::short(&folder.rows) };
            if self.recursive { format!("{}:\n{rows}", escape(&folder.path)) } else { rows }
        });
        output::text(&blocks.collect::<Vec<_>>().join("\n"))
    }
}
