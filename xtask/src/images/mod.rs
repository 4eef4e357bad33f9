//! Builds the images of `fixtures/corpus` into a local registry, in every layer format.
//!
//! What the registry already has is left alone, so a second run costs a few requests.

use std::env;
use std::time::Instant;

use anyhow::{Context, Result};

mod build;
mod corpus;
mod http;
mod registry;

pub(crate) use registry::Registry;

use build::Workshop;
use corpus::Step;

/// The options of `cargo xtask images`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Images to build, such as `python` or `dev/python`; all when none is named
    names: Vec<String>,
    /// Only the images that the quick tests use
    #[arg(long, conflicts_with = "names")]
    quick: bool,
    /// Only this tag: gzip, zstdchunked, estargz
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// Build again what the registry already has
    #[arg(long)]
    force: bool,
    /// Stop the registry that an earlier run started, and build nothing
    #[arg(long, exclusive = true)]
    stop: bool,
}

/// The registry that images are pushed to: `$REGISTRY`, or this one.
const DEFAULT_REGISTRY: &str = "127.0.0.1:5000";

/// The registry that the tasks use.
pub(crate) fn registry() -> Registry {
    Registry::new(&env::var("REGISTRY").unwrap_or_else(|_| DEFAULT_REGISTRY.to_owned()))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let registry = registry();
    if args.stop {
        return registry.stop();
    }
    let steps = corpus::steps(&args.names, args.quick)?;
    let steps: Vec<Step> = steps.into_iter().filter(|s| wanted(s, &args.tag)).collect();
    build(&registry, &steps, args.force)
}

/// A registry for as long as a task needs one: stopped at the end if it was not there before.
pub(crate) struct Running {
    registry: Registry,
    started: bool,
}

impl Running {
    pub(crate) fn start(registry: Registry) -> Result<Self> {
        let started = registry.start()?;
        Ok(Self { registry, started })
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.started {
            self.registry.stop().ok();
        }
    }
}

/// Builds what the quick tests use, for `cargo xtask test`.
pub(crate) fn build_quick(registry: &Registry) -> Result<()> {
    build(registry, &corpus::steps(&[], true)?, false)
}

fn wanted(step: &Step, tags: &[String]) -> bool {
    tags.is_empty() || tags.iter().any(|t| t == step.tag)
}

fn build(registry: &Registry, steps: &[Step], force: bool) -> Result<()> {
    registry.start()?;
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
    println!(
        "the images are at {} (plain HTTP); `cargo xtask images --stop` stops a registry it started",
        registry.address()
    );
    Ok(())
}
