//! `tarpon index`: creates, publishes and checks the index with which any client mounts an unconverted image lazily.

use std::path::PathBuf;

use clap::{Arg, Args};
use tarpon_engine::{ImageIndexArtifact, IndexCheck, LockFile};
use tarpon_oci::{Digest, Source};

use super::image::ImageArgs;
use super::session::{Session, runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon index registry.example/app:v1                      how large the index would be
  tarpon index --push registry.example/app:v1               leave it in the registry, beside the image
  tarpon mount --index registry registry.example/app:v1 /mnt    use what the registry lists
  tarpon mount --index sha256:… registry.example/app:v1 /mnt    use this one and no other
  tarpon index --push --lock-file tarpon.lock registry.example/app:v1    and pin it in a file for the team
  tarpon mount --lock-file tarpon.lock registry.example/app:v1 /mnt    use what the file pins for the image
  tarpon index --verify sha256:… registry.example/app:v1    compare it with the layers themselves

The image stays as it is: its digest, its signatures and its layers do not change.";

/// Make an image mountable lazily without converting it
///
/// Reads each layer that has no table of contents (plain gzip or zstd) once and notes what is in it and where. The
/// result is a small artifact about the image. Whoever finds it fetches it instead of the layers. Without --push or --layout only its size
/// is shown: the index itself is not kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("lock_file", to_pin_in), mut_arg("index", |index| index.hide(true).env(None::<&str>)))]
pub(crate) struct Index {
    /// Publish the index in the image's own repository, as a referrer of the image
    #[arg(long, conflicts_with_all = ["layout", "verify"])]
    push: bool,
    /// Write the index into this OCI layout instead
    #[arg(long, value_name = "DIR", alias = "output", conflicts_with = "verify")]
    layout: Option<PathBuf>,
    /// Compare the published index with this digest to the layers; exits with 6 if it says what is not so
    #[arg(long, value_name = "DIGEST")]
    verify: Option<Digest>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
}

/// Adapts `--lock-file`: the mounting commands read the file, this one writes it.
fn to_pin_in(lock_file: Arg) -> Arg {
    let help = "Pin the published index in this lock file, which is made if it is not there: for `--lock-file` of everybody who mounts the \
        image";
    lock_file.help(help).alias("lock").env(None::<&str>).requires("push")
}

impl Index {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let (runtime, request) = (runtime()?, self.image.request_without_index());
        let progress = output::progress(global.quiet);
        if let Some(index) = &self.verify {
            let doing = || format!("cannot check the index of {}", self.image.text());
            let checked = runtime.block_on(session.engine().check_index(&request, index, &*progress)).doing(doing)?;
            drop(progress);
            return self.checked(global, &checked);
        }
        let doing = || format!("cannot index {}", self.image.text());
        let lock = self.image.named_lock_file().map(LockFile::at);
        if let Some(lock) = &lock {
            lock.check()?;
        }
        if !self.push && self.layout.is_none() && !global.quiet {
            output::note(
                "the index is not kept: --push publishes it beside the image, --layout DIR writes it into an OCI layout",
            );
        }
        let made = runtime.block_on(session.engine().make_index(&request, &[], &*progress)).doing(doing)?;
        drop(progress);
        let destination = match &self.layout {
            _ if self.push => Some(request.source.clone()),
            Some(folder) => {
                let directory = std::path::absolute(folder).doing(doing)?;
                Some(Source::OciLayout { directory, tag: None })
            }
            None => None,
        };
        if let Some(destination) = &destination {
            runtime.block_on(session.engine().publish_index(&made, destination, &request.access)).doing(doing)?;
        }
        if let Some(lock) = &lock {
            lock.pin(&made.image, made.manifest_digest, made.index_digest)?;
        }
        if self.json {
            return output::json(&made);
        }
        output::text(&text(&made))?;
        if let (Some(destination), false) = (destination, global.quiet) {
            output::note(&format!("published to {}", escape(destination.to_string().as_bytes())));
        }
        Ok(())
    }

    fn checked(&self, global: &Global, checked: &IndexCheck) -> Result {
        if self.json {
            output::json(checked)?;
        } else if checked.differences.is_empty() && checked.unchecked.is_empty() && !global.quiet {
            let IndexCheck { index_digest, layers, .. } = checked;
            output::note(&format!("the index {index_digest} is right about {layers} layers"));
        }
        let image = escape(self.image.text().as_bytes());
        match (&checked.differences[..], &checked.unchecked[..]) {
            ([], []) => Ok(()),
            ([first, ..], _) => {
                Err(Failure::new(Exit::Refused, format_args!("the index of {image} is not to be used: {first}")))
            }
            ([], [first, ..]) => {
                let line = format_args!("the index of {image} could not be checked wholly: {first}");
                Err(Failure::new(Exit::Failure, line).hint("give the store more room with --store-size"))
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
    facts.row(["size".to_owned(), format!("{index}, {share:.2} % of {layers} in {} layers", made.layers.len())]);
    facts.to_string()
}
