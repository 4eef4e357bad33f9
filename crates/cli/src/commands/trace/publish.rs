//! `tarpon trace publish`: boot packs of learned starts.

use clap::Args;
use serde::Serialize;
use tarpon_engine::trace::MOST_STARTS;
use tarpon_engine::{DEFAULT_STARTS, Failed, LearnedRequest, LearnedStart, LearnedState, lower_priority};

use crate::commands::image::{ImageChoice, ImageName, image_name};
use crate::commands::session::{Session, command_runtime};
use crate::commands::sign::Signing;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon trace publish --index-repo registry.example/tarpon --all
  tarpon trace publish --index-repo registry.example/tarpon --after 1 docker.io/library/redis:7
  tarpon trace publish registry.example/team/app:v1     to the image's own repository
  tarpon trace publish --all --json | jq -r '.images[] | select(.state == \"refused\") | .error'

`tarpon trace ls` shows how many starts in a row were equal: starts of the same image that read
hardly any new files, a tenth at most. An image that has a boot pack in its own repository or in an
index repository costs a few requests and is skipped, so any number of hosts may do this.
The command exits with the code of the first image that failed or was refused.
Credentials come from --authfile, or from the files of Podman and Docker.";

/// Publish boot packs of starts that were learned
///
/// Makes an index and a boot pack of each image that started often enough, from its trace, as `tarpon record --push --trace` does, and
/// publishes them in the first index repository (--index-repo), or else in the repository of the image. An image is published once: one that
/// has a boot pack already is skipped. Images that cannot be read without credentials are not published in an index repository.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("index", |index| index.hide(true).env(None::<&str>)), mut_arg("lock_file", |file| file.hide(true).env(None::<&str>)), mut_arg("profile", |profile| profile.hide(true).env(None::<&str>)))]
pub(super) struct Publish {
    /// Number of equal starts in a row after which an image is published
    #[arg(long, value_name = "N", default_value_t = DEFAULT_STARTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_STARTS)))]
    after: u32,
    /// Also publish images that need credentials in the index repository, whose readers may be others
    #[arg(long)]
    publish_private: bool,
    /// Use the processor and the disk only while nothing else needs them
    #[arg(long)]
    low_priority: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Publish all images that started on this host
    #[arg(long, conflicts_with = "images", required_unless_present = "images")]
    all: bool,
    #[command(flatten)]
    signing: Signing,
    #[command(flatten)]
    choice: ImageChoice,
    /// Images as `tarpon trace ls` lists them, or with a digest
    #[arg(value_name = "IMAGE", value_parser = image_name)]
    images: Vec<ImageName>,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    published: usize,
    known: usize,
    too_few: usize,
    refused: usize,
    failed: usize,
    images: Vec<LearnedStart>,
}

impl Publish {
    pub(super) fn run(self, global: &Global) -> Result {
        let doing = || "cannot publish learned starts";
        if self.low_priority {
            // Before there are threads, which inherit it.
            lower_priority();
        }
        let key = self.signing.key()?;
        let access = self.choice.access();
        let source = |image: ImageName| Ok(image.completed(&access.registries)?.source);
        let images = self.images.into_iter().map(source).collect::<tarpon_engine::Result<_>>().doing(doing)?;
        let request = LearnedRequest {
            images,
            after: self.after,
            publish_private: self.publish_private,
            index_repos: self.choice.index_repos().to_vec(),
            access,
        };
        let session = Session::open(global)?;
        let show = |start: &LearnedStart| {
            if !global.quiet || why_not(start).is_some() {
                output::note(&line(start));
            }
        };
        let done = command_runtime()?
            .block_on(session.engine().publish_learned(&request, key.as_ref(), &show))
            .doing(doing)?;
        let summary = Summary::of(done);
        if self.json {
            output::json(&summary)?;
        } else if !global.quiet {
            output::note(&summary.line());
        }
        summary.failure(doing())
    }
}

impl Summary {
    fn of(images: Vec<LearnedStart>) -> Self {
        let mut summary = Self::default();
        for image in &images {
            *match image.state {
                LearnedState::Published { .. } => &mut summary.published,
                LearnedState::Known { .. } => &mut summary.known,
                LearnedState::TooFew { .. } => &mut summary.too_few,
                LearnedState::Refused(_) => &mut summary.refused,
                LearnedState::Failed(_) => &mut summary.failed,
            } += 1;
        }
        Self { images, ..summary }
    }

    fn line(&self) -> String {
        let Self { published, known, too_few, refused, failed, images } = self;
        let all = images.len();
        format!(
            "{all} images: {published} published, {known} had a boot pack, {too_few} did not start often enough, \
             {refused} refused, {failed} failed"
        )
    }

    /// The failure of the command: the code and the hint are those of the first image.
    fn failure(&self, doing: &str) -> Result {
        let Some(first) = self.images.iter().find_map(why_not) else { return Ok(()) };
        let (not, all) = (self.refused + self.failed, self.images.len());
        let failure = Failure::new(Exit::from(first.kind), format_args!("{doing}: {not} of {all} were not published"));
        Err(match &first.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        })
    }
}

fn why_not(start: &LearnedStart) -> Option<&Failed> {
    match &start.state {
        LearnedState::Refused(failed) | LearnedState::Failed(failed) => Some(failed),
        _ => None,
    }
}

fn line(start: &LearnedStart) -> String {
    let image = escape(start.image.as_bytes());
    match &start.state {
        LearnedState::Published { pack_size, place, .. } => {
            format!("{image}: published, {} in {}", size::human(*pack_size), escape(place.as_bytes()))
        }
        LearnedState::Known { place, .. } => format!("{image}: has a boot pack in {}", escape(place.as_bytes())),
        LearnedState::TooFew { after } => format!("{image}: {} of {after} equal starts", start.starts),
        LearnedState::Refused(failed) => format!("{image}: refused: {}", escape(failed.error.as_bytes())),
        LearnedState::Failed(failed) => format!("{image}: {}", escape(failed.error.as_bytes())),
    }
}
