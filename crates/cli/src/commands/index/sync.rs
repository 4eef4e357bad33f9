//! `tarpon index sync`: indexes for a list of images.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tarpon_engine::{ImageRequest, MAX_SYNC_JOBS, SYNC_LIST_BYTES, SyncEntry, SyncOptions, SyncState, Synced};
use tarpon_oci::{InvalidSource, Platform};

use crate::commands::image::ImageChoice;
use crate::commands::image_list;
use crate::commands::session::{Session, command_runtime};
use crate::commands::sign::Signing;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon index sync --index-repo registry.example/tarpon images.txt
  tarpon index sync --index-repo registry.example/tarpon --sign-by-key team.key images.txt
  kubectl get pods -A -o jsonpath='{..image}' | tr ' ' '\\n' | sort -u | tarpon index sync -

The list has one image on each line; # begins a comment. A tag may be a pattern: redis:7.*
Images that have an index already cost a few requests and are skipped, so an interrupted run
continues where it was. With --sign-by-key only an index that the key signed counts. One for which
no start was predicted is replaced, unless --no-predict.
The exit code is not 0 if an image has no index afterwards.
Credentials come from --authfile, or from the files of Podman and Docker.";

/// Index all images of a list that have no index yet
///
/// Publishes the indexes in the first index repository (--index-repo), or else in the repository of each image.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("index", |index| index.hide(true).env(None::<&str>)), mut_arg("lock_file", |file| file.hide(true).env(None::<&str>)), mut_arg("profile", |profile| profile.hide(true).env(None::<&str>)))]
pub(super) struct Sync {
    /// File with the list of images, - for standard input
    #[arg(value_name = "FILE")]
    list: PathBuf,
    /// Number of images indexed at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=MAX_SYNC_JOBS as u64))]
    jobs: u64,
    /// Platform to select from image indexes, as OS/ARCH[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    /// Publish no boot packs of predicted starts
    #[arg(long)]
    no_predict: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    signing: Signing,
    #[command(flatten)]
    choice: ImageChoice,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    indexed: usize,
    known: usize,
    unneeded: usize,
    failed: usize,
    images: Vec<Synced>,
}

impl Sync {
    pub(super) fn run(&self, global: &Global) -> Result {
        let doing = || format!("cannot index the images of {}", self.list.display());
        let text = image_list::read(&self.list, SYNC_LIST_BYTES).doing(doing)?;
        let entries =
            SyncEntry::list(&text).map_err(|why| Failure::new(Exit::Usage, format_args!("{}: {why}", doing())))?;
        let key = self.signing.key()?;
        let session = Session::open(global)?;
        let show = |synced: &Synced| {
            if !global.quiet || matches!(synced.state, SyncState::Failed { .. }) {
                output::note(&line(synced));
            }
        };
        let (mut requests, mut failed) = (Vec::new(), Vec::new());
        let runtime = command_runtime()?;
        for entry in &entries {
            match runtime.block_on(entry.images(&self.choice.access())) {
                Ok(names) => requests.extend(names.into_iter().map(|name| self.request(name))),
                Err(error) => failed.push(Synced {
                    image: entry.to_string(),
                    manifest_digest: None,
                    state: SyncState::Failed { error: error.to_string() },
                }),
            }
        }
        failed.iter().for_each(show);
        let requests = requests.into_iter().collect::<Result<Vec<_>>>()?;
        let jobs = usize::try_from(self.jobs).unwrap_or(MAX_SYNC_JOBS);
        let options = SyncOptions { jobs, predict: !self.no_predict, key: key.as_ref() };
        let done = runtime.block_on(session.engine().sync_indexes(requests, options, &show));
        let summary = Summary::of(done.into_iter().chain(failed).collect());
        let Summary { indexed, known, unneeded, failed, ref images } = summary;
        let all = images.len();
        if self.json {
            output::json(&summary)?;
        } else if !global.quiet {
            let line =
                format!("{all} images: {indexed} indexed, {known} had an index, {unneeded} need none, {failed} failed");
            output::note(&line);
        }
        if failed == 0 {
            return Ok(());
        }
        Err(Failure::new(Exit::Failure, format_args!("{}: {failed} of {all} failed", doing())))
    }

    fn request(&self, name: String) -> Result<ImageRequest> {
        // It was parsed with the list.
        let source = name
            .parse()
            .map_err(|error: InvalidSource| Failure::new(Exit::Usage, format_args!("cannot index {name}: {error}")))?;
        Ok(ImageRequest {
            platform_named: self.platform.is_some(),
            index_repos: self.choice.index_repos().to_vec(),
            access: self.choice.access(),
            ..ImageRequest::new(name, source, self.platform.clone().unwrap_or_else(Platform::host))
        })
    }
}

impl Summary {
    fn of(images: Vec<Synced>) -> Self {
        let mut summary = Self::default();
        for image in &images {
            *match image.state {
                SyncState::Indexed { .. } => &mut summary.indexed,
                SyncState::Known { .. } => &mut summary.known,
                SyncState::Unneeded => &mut summary.unneeded,
                SyncState::Failed { .. } => &mut summary.failed,
            } += 1;
        }
        Self { images, ..summary }
    }
}

fn line(synced: &Synced) -> String {
    let image = escape(synced.image.as_bytes());
    match &synced.state {
        SyncState::Indexed { index_size, place, .. } => {
            format!("{image}: indexed, {} in {}", size::human(*index_size), escape(place.as_bytes()))
        }
        SyncState::Known { .. } => format!("{image}: has an index"),
        SyncState::Unneeded => format!("{image}: needs no index"),
        SyncState::Failed { error } => format!("{image}: {}", escape(error.as_bytes())),
    }
}
