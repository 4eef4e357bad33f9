//! Builds the images of `fixtures/corpus` into a local registry, in every layer format.
//!
//! Existing images in the registry are not rebuilt, so a second run costs a few requests.

use std::env;
use std::time::Instant;

use anyhow::{Context, Result};

mod build;
mod corpus;
mod hello;
pub(crate) mod registry;

use build::Workshop;
use corpus::{Choice, Step};
use registry::Registry;

/// The options of `cargo xtask images`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The images to build, such as `python` or `dev/python` [default: all]
    names: Vec<String>,
    /// Build only the images that the tests use
    #[arg(long, conflicts_with = "names")]
    quick: bool,
    /// Build the images of `bench papers`: 25 programs of Debian, and four images of the corpus
    #[arg(long, conflicts_with_all = ["names", "quick"])]
    papers: bool,
    /// Build only this tag: gzip, zstdchunked, estargz
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Rebuild images that the registry already has
    #[arg(long)]
    force: bool,
    /// Stop the registry that an earlier run started, and build nothing
    #[arg(long, exclusive = true)]
    stop: bool,
}

impl Args {
    fn choice(&self) -> Choice {
        match (self.quick, self.papers) {
            (true, _) => Choice::Quick,
            (_, true) => Choice::Papers,
            _ => Choice::All,
        }
    }
}

/// The registry of the images.
fn registry() -> Registry {
    Registry::new(&tarpon_harness::registry::address(), "registry")
}

/// The registry for tests: `$REGISTRY`, or a new one with only the quick images, even if another registry is running.
fn test_registry() -> Result<Registry> {
    env::var("REGISTRY").map_or_else(|_| Registry::private("test-registry"), |r| Ok(Registry::new(&r, "registry")))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let registry = registry();
    if args.stop {
        match registry.stop()? {
            Some(pid) => println!("stopped the registry, process {pid}"),
            None => println!("no registry was started from here"),
        }
        return Ok(());
    }
    let steps = corpus::steps(&args.names, args.choice())?;
    let steps: Vec<Step> = steps.into_iter().filter(|s| wanted(s, &args.tag)).collect();
    registry.start()?;
    build(&registry, &steps, args.force)?;
    println!(
        "the images are at {} (plain HTTP); `cargo xtask images --stop` stops a registry it started",
        registry.address()
    );
    Ok(())
}

/// Images in a registry that runs as long as this value lives.
pub(crate) struct TestImages {
    registry: Registry,
    started: bool,
}

impl TestImages {
    /// Builds the missing images of the quick tests.
    pub(crate) fn prepare() -> Result<Self> {
        Self::build(test_registry()?, &corpus::steps(&[], Choice::Quick)?)
    }

    /// Builds the images with these names that are missing, with this tag, in the registry of `cargo xtask images`.
    pub(crate) fn with(names: &[String], tag: &str) -> Result<Self> {
        // Every image is built from one with the tag `gzip`.
        let tags = [tag.to_owned(), "gzip".to_owned()];
        let steps = corpus::steps(names, Choice::All)?.into_iter().filter(|step| wanted(step, &tags));
        Self::build(registry(), &steps.collect::<Vec<_>>())
    }

    fn build(registry: Registry, steps: &[Step]) -> Result<Self> {
        let started = registry.start()?;
        let images = Self { registry, started };
        build(&images.registry, steps, false)?;
        Ok(images)
    }

    /// HOST:PORT of the registry.
    pub(crate) fn registry(&self) -> &str {
        self.registry.address()
    }
}

impl Drop for TestImages {
    fn drop(&mut self) {
        if self.started {
            self.registry.stop().ok();
        }
    }
}

fn wanted(step: &Step, tags: &[String]) -> bool {
    tags.is_empty() || tags.iter().any(|t| t == step.tag)
}

fn build(registry: &Registry, steps: &[Step], force: bool) -> Result<()> {
    let mut workshop = Workshop::new(registry);
    let width = steps.len().to_string().len();
    for (number, step) in steps.iter().enumerate() {
        let label = format!("[{:width$}/{}] {step}", number + 1, steps.len());
        if !force && registry.has(&step.image(), step.tag)? {
            println!("{label}: is there");
            continue;
        }
        println!("{label}: building");
        let start = Instant::now();
        workshop.build(step).with_context(|| format!("cannot build {step}"))?;
        println!("{label}: built in {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
