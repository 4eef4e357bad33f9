//! `tarpon index`: creates, publishes and checks the index with which any client mounts an unconverted image lazily.

mod ls;
mod rm;
mod sync;

use std::path::PathBuf;

use clap::{Arg, Args, Subcommand};
use serde::Serialize;
use tarpon_engine::{
    ErrorKind, ImageIndexArtifact, ImageRequest, IndexCheck, LockFile, ResultExt as _, index_destination,
    shown_place as shown,
};
use tarpon_oci::{Digest, Source};

use self::ls::Ls;
use self::rm::Rm;
use self::sync::Sync;
use super::image::{ImageArgs, OptionalImage};
use super::session::{Session, command_runtime};
use super::sign::Signing;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

/// How an index is kept.
const HOW_TO_KEEP: &str = "--push publishes the index next to the image, --push --index-repo PREFIX in a repository of your own, --layout DIR \
                           writes it to an OCI layout";

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    made: &'a ImageIndexArtifact,
    published: Option<&'a str>,
}

const EXAMPLES: &str = "\
Examples:
  tarpon index registry.example/app:v1                      show the size of the index
  tarpon index --push registry.example/app:v1               publish it next to the image
  tarpon index --push --index-repo my.example/tarpon redis:7    publish it in your own repository
  tarpon mount --index registry registry.example/app:v1 /mnt    use the published index
  tarpon mount --index sha256:… registry.example/app:v1 /mnt    use exactly this index
  tarpon index --push --lock-file tarpon.lock registry.example/app:v1    also pin it in a lock file
  tarpon mount --lock-file tarpon.lock registry.example/app:v1 /mnt    use the pinned index
  tarpon index --push --sign-by-key team.key registry.example/app:v1    also sign it
  tarpon index --verify sha256:… registry.example/app:v1    compare the index with the layers
  tarpon index sync --index-repo registry.example/tarpon images.txt    index a list of images
  tarpon index ls redis:7                                   list the published indexes

The image does not change: its digest, signatures and layers stay the same.";

/// Create an index for lazy mounts of an unconverted image
///
/// Reads each layer without a table of contents (plain gzip or zstd) once, and records its files and their positions. The result is a
/// small artifact that refers to the image; clients fetch it instead of the layers. What the start of the image's command is likely to
/// read is published with it, as a boot pack (see --no-predict). Without --push or --layout only the size is printed: the index itself
/// is not kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("lock_file", as_output), mut_arg("index", |index| index.hide(true).env(None::<&str>)), mut_arg("sign_by_key", |key| key.requires("push")), args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Index {
    #[command(subcommand)]
    command: Option<Box<IndexCommand>>,
    /// Publish the index in the first index repository (--index-repo), else in the image's repository, as a referrer of the image
    #[arg(long, conflicts_with_all = ["layout", "verify"])]
    push: bool,
    /// Write the index to this OCI layout instead
    #[arg(long, value_name = "DIR", alias = "output", conflicts_with = "verify")]
    layout: Option<PathBuf>,
    /// Publish no boot pack of a predicted start
    ///
    /// Without it, the published index has a boot pack with what the start of the image's command is likely to read: programs with their
    /// libraries, scripts, the modules that programs of Python, Node.js, Perl, Ruby and PHP load, and what a Java virtual machine reads.
    /// Nothing is run for it. A pack of a recorded start replaces it.
    #[arg(long, conflicts_with = "verify")]
    no_predict: bool,
    /// Compare the published index with this digest to the layers; exit with 6 if they differ
    #[arg(long, value_name = "DIGEST")]
    verify: Option<Digest>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signing: Signing,
    #[command(flatten)]
    image: OptionalImage,
}

/// Commands for the indexes of many images, and for published ones.
#[derive(Debug, Subcommand)]
enum IndexCommand {
    Sync(Sync),
    Ls(Ls),
    Rm(Rm),
}

/// Adapts `--lock-file`: the mounting commands read the file, this one writes it.
fn as_output(lock_file: Arg) -> Arg {
    let help = "Lock file in which to pin the published index; created if it does not exist";
    lock_file.help(help).long_help(None::<&str>).alias("lock").env(None::<&str>).requires("push")
}

impl Index {
    pub(crate) fn run(mut self, global: &Global) -> Result {
        match (self.command.take().map(|command| *command), self.image.0.take()) {
            (Some(IndexCommand::Sync(command)), _) => command.run(global),
            (Some(IndexCommand::Ls(command)), _) => command.run(global),
            (Some(IndexCommand::Rm(command)), _) => command.run(global),
            (None, Some(image)) => self.make(&image, global),
            // The parser demands one of both.
            (None, None) => Err(Failure::new(Exit::Usage, "no image is named")),
        }
    }

    fn make(&self, image: &ImageArgs, global: &Global) -> Result {
        let session = Session::open(global)?;
        let (runtime, request) = (command_runtime()?, image.request_without_index()?);
        let progress = output::progress(global.quiet);
        if let Some(index) = &self.verify {
            let doing = || format!("cannot check the index of {}", image.text());
            let checked = runtime.block_on(session.engine().check_index(&request, index, &*progress)).doing(doing)?;
            drop(progress);
            return self.checked(image, global, &checked);
        }
        let doing = || format!("cannot index {}", image.text());
        let key = self.signing.key()?;
        let lock = image.named_lock_file().map(LockFile::at);
        if let Some(lock) = &lock {
            lock.check()?;
        }
        let destination = self.destination(&request).doing(doing)?;
        if destination.is_none() && !global.quiet {
            output::note(&format!("the index will not be saved: {HOW_TO_KEEP}"));
        }
        let engine = session.engine();
        let made = runtime.block_on(async {
            match &destination {
                Some(place) if self.no_predict => engine.make_plain_index(&request, place, &*progress).await,
                Some(place) => engine.make_predicted_index(&request, place, &*progress).await,
                None => engine.make_index(&request, &[], &*progress).await,
            }
        });
        let made = made.doing(doing)?;
        drop(progress);
        if let Some(place) = &destination {
            runtime.block_on(engine.publish_index(&made, place, &request.access, key.as_ref())).doing(doing)?;
        }
        if let Some(lock) = &lock {
            lock.pin(&made.image, made.manifest_digest, made.index_digest)?;
        }
        let published = destination.map(|place| place.to_string());
        if self.json {
            return output::json(&Report { made: &made, published: published.as_deref() });
        }
        output::text(&text(&made))?;
        match published {
            _ if global.quiet => {}
            Some(place) => output::note(&format!("published to {}", escape(shown(&place).as_bytes()))),
            None => output::note(&format!("nothing was kept: {HOW_TO_KEEP}")),
        }
        Ok(())
    }

    /// Where the index is published. `None`: nowhere.
    fn destination(&self, request: &ImageRequest) -> tarpon_engine::Result<Option<Source>> {
        match &self.layout {
            _ if self.push => index_destination(request).map(|(place, _)| Some(place)),
            Some(folder) => {
                let directory = std::path::absolute(folder).context(ErrorKind::Other, "choose the layout")?;
                Ok(Some(Source::OciLayout { directory, tag: None }))
            }
            None => Ok(None),
        }
    }

    fn checked(&self, image: &ImageArgs, global: &Global, checked: &IndexCheck) -> Result {
        if self.json {
            output::json(checked)?;
        } else if checked.differences.is_empty() && checked.unchecked.is_empty() && !global.quiet {
            let IndexCheck { index_digest, layers, .. } = checked;
            output::note(&format!("index {index_digest} matches {layers} layers"));
        }
        let image = escape(image.text().as_bytes());
        match (&checked.differences[..], &checked.unchecked[..]) {
            ([], []) => Ok(()),
            ([first, ..], _) => {
                Err(Failure::new(Exit::Refused, format_args!("cannot use the index of {image}: {first}")))
            }
            ([], [first, ..]) => {
                let line = format_args!("cannot check the whole index of {image}: {first}");
                Err(Failure::new(Exit::Failure, line)
                    .hint("raise the size limit of the store with `tarpon mount --store-size`"))
            }
        }
    }
}

fn text(made: &ImageIndexArtifact) -> String {
    let mut facts = Table::new(&["", ""]);
    facts.row(["image".to_owned(), escape(made.image.as_bytes())]);
    facts.row(["manifest".to_owned(), made.manifest_digest.to_string()]);
    facts.row(["index".to_owned(), made.index_digest.to_string()]);
    let share = 100.0 * made.index_size as f64 / made.layers_size.max(1) as f64;
    let (index, layers) = (size::human(made.index_size), size::human(made.layers_size));
    let size = match made.layers.len() {
        0 => "none: each layer has a table of contents".to_owned(),
        count => format!("{index}, {share:.2} % of {layers} in {count} layers"),
    };
    facts.row(["size".to_owned(), size]);
    for pack in &made.boots {
        let (name, size) = (escape(pack.profile.as_bytes()), size::human(pack.size));
        facts.row(["boot pack".to_owned(), format!("{name}, {size}")]);
    }
    facts.to_string()
}
