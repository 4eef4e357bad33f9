//! `tarpon prefetch`: fetches images into the store before they are started.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use tarpon_engine::{
    Engine, Error, ImageRequest, IndexChoice, LayerLimits, PrefetchExtent, Prefetched, Progress, StartKind,
};
use tokio::task::JoinSet;

use super::image::{ImageName, ImageOptions, image_name};
use super::image_list;
use super::scrub::rate;
use super::session::{Session, command_runtime};
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon prefetch registry.example/app:v2               what its start needs: about a tenth of the image
  tarpon prefetch --rate 20MB/s --file images.txt       all images of a list, before a rollout
  tarpon prefetch --pack-only --json registry.example/app:v2 | jq '.[].fetched_bytes'
  tarpon prefetch --all --rate 50MB/s app:v2            the whole image, as `tarpon pull` does

A list has one image on each line; # begins a comment. An image that fails does not stop the others.
Tags are resolved in the registry; what is in the store is not fetched again. What is prefetched counts
as used now: the store evicts it last.";

/// Largest list of images.
const LIST_BYTES: u64 = 1 << 20;
/// Most images at a time: each may have a process that prepares it, of several hundred MiB at worst.
const MOST_JOBS: u64 = 16;

/// Fetch images before they are started
///
/// Prepares each image as a mount does (manifest, index, list of files) and fetches its boot pack into the store. If it has none: what
/// earlier starts of the image on this host read, or else the files that its author marked. If nothing is known of its starts, it is
/// prepared only. A later mount of the image finds all of this in the store.
///
/// While a server of the store runs, it does the fetching, and readers of its mounts come first.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("pull", |pull| pull.hide(true)))]
pub(crate) struct Prefetch {
    /// Fetch only what starts need: refuse images whose layers would have to be streamed to prepare them
    ///
    /// Without this, the layers of an image without tables of contents or an index are fetched whole, as a mount would do. Files that the
    /// author of an image marked are not fetched either.
    #[arg(long, conflicts_with = "all")]
    pack_only: bool,
    /// Fetch the whole images, as `tarpon pull` does
    #[arg(long)]
    all: bool,
    /// Maximum rate in bytes per second of boot packs and layers, for all images together [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    rate: Option<NonZeroU64>,
    /// File with a list of images, - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of images fetched at the same time; each has a fixed Nth part of the rate
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=MOST_JOBS))]
    jobs: usize,
    /// Print the result as JSON, one object for each image
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: ImageOptions,
    /// Images, for example docker.io/library/alpine:3.20
    #[arg(value_name = "IMAGE", value_parser = image_name, required_unless_present = "file")]
    images: Vec<ImageName>,
}

/// The result for one image.
#[derive(Debug, Serialize)]
struct Report {
    image: String,
    /// `prefetched` or `failed`.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest_digest: Option<String>,
    /// Compressed bytes of all layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// What was fetched besides the record: `boot-pack`, `learned-trace`, `landmarks`, `unknown` (nothing) or `whole-image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'static str>,
    /// Bytes of it as they are fetched, whether they were in the store or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_bytes: Option<u64>,
    fetched_bytes: u64,
    requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Prefetch {
    pub(crate) fn run(self, global: &Global) -> Result {
        let session = Session::open(global)?;
        let wanted = self.wanted()?;
        let all = wanted.len();
        let shown = Shown { quiet: global.quiet, single: all == 1, alone: self.jobs.min(all) <= 1 };
        let how = How { extent: self.extent(), limits: self.limits(all), jobs: self.jobs, shown };
        let work = run(session.engine(), wanted, how);
        let done = command_runtime()?.block_on(work);
        let failed: Vec<&Failure> = done.iter().filter_map(|done| done.failure.as_ref()).collect();
        let failed = failed.first().map(|first| (first.exit, failed.len()));
        if all > 1 && !global.quiet {
            output::note(&summary(&done));
        }
        if self.json {
            output::json(&done.iter().map(Done::report).collect::<Vec<_>>())?;
        }
        let Some((exit, count)) = failed else { return Ok(()) };
        match done.into_iter().find_map(|done| done.failure) {
            Some(only) if all == 1 => Err(only),
            _ => Err(Failure::new(exit, format_args!("cannot prefetch {count} of {all} images"))),
        }
    }

    fn extent(&self) -> PrefetchExtent {
        match (self.all, self.pack_only) {
            (true, _) => PrefetchExtent::Whole,
            (_, true) => PrefetchExtent::StartOnly,
            _ => PrefetchExtent::Start,
        }
    }

    /// The images of the command line and of the list, each once.
    fn wanted(&self) -> Result<Vec<Wanted>> {
        // A lock file of a rollout is large: all images share it.
        let index = self.options.index().doing(|| "cannot prefetch the images")?;
        let mut wanted: Vec<Wanted> = self.images.iter().cloned().map(|image| self.want(image, &index)).collect();
        if let Some(list) = &self.file {
            let text = image_list::read(list, LIST_BYTES);
            let text = text.doing(|| format!("cannot prefetch the images of {}", list.display()))?;
            wanted.extend(image_list::entries(&text).map(|entry| match image_name(entry) {
                Ok(image) => self.want(image, &index),
                Err(error) => {
                    let failure = Failure::new(Exit::Usage, format_args!("cannot prefetch {entry}: {error}"));
                    Wanted { image: entry.to_owned(), request: Err(failure) }
                }
            }));
        }
        let mut seen = HashSet::new();
        wanted.retain(|wanted| seen.insert(wanted.image.clone()));
        Ok(wanted)
    }

    fn want(&self, image: ImageName, index: &IndexChoice) -> Wanted {
        let text = image.text.clone();
        let request = self.options.request_with(image, index.clone()).doing(|| format!("cannot prefetch {text}"));
        Wanted { image: text, request }
    }

    /// The part of the rate that each of `count` images has.
    fn limits(&self, count: usize) -> LayerLimits {
        let at_once = u64::try_from(self.jobs.min(count).max(1)).unwrap_or(MOST_JOBS);
        // At least one byte.
        let rate = self.rate.map(|rate| NonZeroU64::new(rate.get() / at_once).unwrap_or(NonZeroU64::MIN));
        LayerLimits { rate, ..LayerLimits::default() }
    }
}

/// An image that is wanted, or why it cannot be.
struct Wanted {
    image: String,
    request: Result<ImageRequest>,
}

/// What is shown of the work.
#[derive(Clone, Copy)]
struct Shown {
    quiet: bool,
    /// There is one image: its failure ends the command.
    single: bool,
    /// One image after the other: each has a progress display.
    alone: bool,
}

/// An image that was dealt with.
struct Done {
    image: String,
    extent: PrefetchExtent,
    fetched: Option<Prefetched>,
    failure: Option<Failure>,
}

/// How the images are dealt with.
#[derive(Clone, Copy)]
struct How {
    extent: PrefetchExtent,
    /// Of each image.
    limits: LayerLimits,
    jobs: usize,
    shown: Shown,
}

/// Prefetches all images. The results have the order of the images.
async fn run(engine: &Engine, wanted: Vec<Wanted>, how: How) -> Vec<Done> {
    let work = |wanted| {
        let engine = engine.clone();
        async move { prefetch(&engine, wanted, how).await }
    };
    let lost = |image| Done::lost(image, how);
    in_tasks(wanted, how.jobs, work, lost).await
}

/// Deals with each image in a task of its own, `jobs` at a time. `lost` is the result for an image whose task panicked.
async fn in_tasks<F: Future<Output = Done> + Send + 'static>(
    wanted: Vec<Wanted>,
    jobs: usize,
    work: impl Fn(Wanted) -> F,
    lost: impl Fn(String) -> Done,
) -> Vec<Done> {
    let (mut running, mut known, mut done) = (JoinSet::new(), HashMap::new(), Vec::new());
    let mut waiting = wanted.into_iter().enumerate();
    loop {
        while running.len() < jobs
            && let Some((number, wanted)) = waiting.next()
        {
            let image = wanted.image.clone();
            known.insert(running.spawn(work(wanted)).id(), (number, image));
        }
        let (id, one) = match running.join_next_with_id().await {
            None => break,
            Some(Ok((id, one))) => (id, Some(one)),
            // A panic was reported already.
            Some(Err(error)) => (error.id(), None),
        };
        if let Some((number, image)) = known.remove(&id) {
            done.push((number, one.unwrap_or_else(|| lost(image))));
        }
    }
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, done)| done).collect()
}

async fn prefetch(engine: &Engine, wanted: Wanted, how: How) -> Done {
    let Wanted { image, request } = wanted;
    let (fetched, failure) = match request {
        Err(failure) => (None, Some(failure)),
        Ok(request) => fetch(engine, &ImageRequest { limits: how.limits, ..request }, how).await,
    };
    let done = Done { image, extent: how.extent, fetched, failure };
    done.show(how.shown);
    done
}

/// What was fetched, and why something was not.
async fn fetch(engine: &Engine, request: &ImageRequest, how: How) -> (Option<Prefetched>, Option<Failure>) {
    let progress: Box<dyn Progress> = match how.shown.alone {
        true => output::prefetch_progress(how.shown.quiet),
        false => Box::new(Notes { image: request.text.clone(), quiet: how.shown.quiet }),
    };
    let fetched = engine.prefetch(request, how.extent, &*progress).await;
    drop(progress);
    let failure = |error: Error| Failure::engine(format_args!("cannot prefetch {}", request.text), error);
    match fetched {
        Ok(fetched) => {
            let lacks = fetched.lacks().map(failure);
            (Some(fetched), lacks)
        }
        Err(error) => (None, Some(failure(error))),
    }
}

/// Notes of one of several images.
struct Notes {
    image: String,
    quiet: bool,
}

impl Progress for Notes {
    fn note(&self, line: &str) {
        if !self.quiet {
            output::note(&escape(format!("{}: {line}", self.image).as_bytes()));
        }
    }
}

impl Done {
    /// An image whose task panicked.
    fn lost(image: String, how: How) -> Self {
        let failure = Failure::new(Exit::Failure, format_args!("cannot prefetch {image}: tarpon failed while it did"));
        let failure = failure.hint("please report it, with the lines above; the other images are not affected");
        let done = Self { image, extent: how.extent, fetched: None, failure: Some(failure) };
        done.show(how.shown);
        done
    }

    /// Prints the line of the image.
    fn show(&self, shown: Shown) {
        match (&self.failure, &self.fetched) {
            (Some(failure), _) if !shown.single => output::error(failure),
            (None, Some(fetched)) if !shown.quiet => {
                let image = escape(self.image.as_bytes());
                output::note(&format!("{image} ({}): {}", fetched.record.manifest, self.facts(fetched)));
            }
            _ => {}
        }
    }

    /// What was fetched.
    fn facts(&self, fetched: &Prefetched) -> String {
        let all = size::human(fetched.record.compressed_size());
        let cost = match fetched.is_new {
            false => "already in the store".to_owned(),
            true => format!("fetched {} of {all}", size::human(fetched.fetched.bytes)),
        };
        let what = match &fetched.start {
            None => "the whole image".to_owned(),
            Some(start) => match start.kind {
                StartKind::BootPack => format!("boot pack of {}", size::human(start.wanted)),
                StartKind::LearnedTrace => format!("{} that earlier starts read", size::human(start.wanted)),
                StartKind::Landmarks => format!("{} that its author marked", size::human(start.wanted)),
                StartKind::Unknown => "prepared, no boot pack; --all brings the whole image".to_owned(),
            },
        };
        format!("{what}: {cost}")
    }

    fn report(&self) -> Report {
        let fetched = self.fetched.as_ref();
        let start = fetched.and_then(|fetched| fetched.start.as_ref());
        let content = match (self.extent, start) {
            (PrefetchExtent::Whole, _) => fetched.map(|_| "whole-image"),
            (_, start) => start.map(|start| start.kind.name()),
        };
        Report {
            image: self.image.clone(),
            state: if self.failure.is_none() { "prefetched" } else { "failed" },
            manifest_digest: fetched.map(|fetched| fetched.record.manifest.to_string()),
            size: fetched.map(|fetched| fetched.record.compressed_size()),
            content,
            content_bytes: start.map(|start| start.wanted),
            fetched_bytes: fetched.map_or(0, |fetched| fetched.fetched.bytes),
            requests: fetched.map_or(0, |fetched| fetched.fetched.requests),
            error: self.failure.as_ref().map(|failure| failure.message().to_owned()),
        }
    }
}

/// `5 images: 3 prefetched, 1 already in the store, 1 failed; fetched 34 MiB of 410 MiB`.
fn summary(done: &[Done]) -> String {
    let good = || done.iter().filter(|done| done.failure.is_none()).filter_map(|done| done.fetched.as_ref());
    let new = good().filter(|fetched| fetched.is_new).count();
    let known = good().count() - new;
    let bytes = done.iter().filter_map(|done| Some(done.fetched.as_ref()?.fetched.bytes)).sum();
    let all = done.iter().filter_map(|done| Some(done.fetched.as_ref()?.record.compressed_size())).sum();
    let (bytes, all, failed) = (size::human(bytes), size::human(all), done.len() - new - known);
    format!(
        "{} images: {new} prefetched, {known} already in the store, {failed} failed; fetched {bytes} of {all}",
        done.len()
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn the_images_of_a_list_share_one_lock_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (lock, list) = (folder.path().join("tarpon.lock"), folder.path().join("images.txt"));
        std::fs::write(&lock, r#"{"version":1,"images":{}}"#).expect("written");
        std::fs::write(&list, "registry.example/b:v1\nregistry.example/c:v1\n").expect("written");
        let command = Prefetch::augment_args(clap::Command::new("prefetch"));
        let matches = command.try_get_matches_from([
            "prefetch".as_ref(),
            "registry.example/a:v1".as_ref(),
            "--lock-file".as_ref(),
            lock.as_os_str(),
            "--file".as_ref(),
            list.as_os_str(),
        ]);
        let prefetch = Prefetch::from_arg_matches(&matches.expect("valid")).expect("valid");
        let wanted = prefetch.wanted().expect("they can be read");
        let locks: Vec<_> = wanted
            .iter()
            .map(|wanted| match &wanted.request.as_ref().expect("valid").index {
                IndexChoice::Locked(lock) => lock,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(locks.len(), 3);
        assert!(locks.iter().all(|lock| Arc::ptr_eq(lock, locks[0])), "it is read once");
    }

    #[tokio::test]
    async fn an_image_whose_task_panics_is_one_that_failed() {
        let shown = Shown { quiet: true, single: true, alone: false };
        let how = How { extent: PrefetchExtent::Start, limits: LayerLimits::default(), jobs: 2, shown };
        let wanted = ["first", "second", "third"].map(|image| {
            let request = Err(Failure::new(Exit::NotFound, "is not there"));
            Wanted { image: image.to_owned(), request }
        });
        let work = |wanted: Wanted| async move {
            assert_ne!(wanted.image, "second", "the panic of this test");
            Done { image: wanted.image, extent: how.extent, fetched: None, failure: None }
        };
        let done = in_tasks(wanted.into(), how.jobs, work, |image| Done::lost(image, how)).await;
        let states: Vec<_> = done.iter().map(|done| (done.image.as_str(), done.report().state)).collect();
        assert_eq!(states, [("first", "prefetched"), ("second", "failed"), ("third", "prefetched")]);
        assert_eq!(done[1].failure.as_ref().map(|failure| failure.exit), Some(Exit::Failure));
    }
}
