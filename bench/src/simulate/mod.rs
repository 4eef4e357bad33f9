//! `bench simulate`: many hosts that start one image at once. The planner is the real one (`tarpon_fetch::Fetcher`, one for each host); the
//! network, the caches, the processors and the disks are modelled.
//!
//! | model | where |
//! |---|---|
//! | time | `clock.rs` |
//! | links and processors: one queue each, served in turn | `link.rs` |
//! | an answer on a connection: packets, and TCP's window | `flow.rs` |
//! | nginx: slices, each fetched once | `cache.rs` |
//! | registry, caches and hosts | `network.rs` |
//! | the image: sizes and places of a recorded start, made-up bytes | `shape.rs`, `image.rs` |
//! | a host: what happens in a start, and in which order | `host.rs`, `early.rs`, `source.rs`, `store.rs` |
//! | what is compared with the measurement | `calibration.rs` |
//! | what nothing was measured of | `fleet.rs` |

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tarpon_harness::paths;

use super::machine;
use super::runs::{self, Runs};

mod cache;
pub(crate) mod calibration;
mod clock;
mod early;
mod extract;
pub(crate) mod fleet;
mod flow;
mod host;
mod image;
mod link;
mod network;
mod scenario;
mod shape;
mod source;
mod store;

use fleet::{Choice, Fleet};
use image::SimulatedImage;
use shape::Shape;

/// The options of `cargo xtask bench simulate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of hosts
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1_000, 10_000])]
    hosts: Vec<usize>,
    /// What is known of the image before the start [default: both]
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Containers that each host starts at once
    #[arg(long, default_value_t = 10)]
    containers: usize,
    /// Processors of each host
    #[arg(long, default_value_t = 2)]
    processors: usize,
    /// Decides when within 0.1 s each host begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Simulations that run at the same time; 10,000 hosts need some gigabytes of memory
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Compare with the measurement only
    #[arg(long)]
    calibrate: bool,
    /// Write the results to this file, as JSON lines [default: target/bench/simulate.jsonl]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the shape of a recorded start instead: registry as HOST:PORT, repository, tag, and the file of the trace
    #[arg(long, num_args = 4, value_names = ["REGISTRY", "NAME", "TAG", "TRACE"])]
    record: Option<Vec<String>>,
}

/// What is known of the image before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Its index, and a boot pack for this start
    BootPack,
    /// Its index
    Index,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some([registry, name, tag, trace]) = args.record.as_deref() {
        print!("{}", extract::shape(registry, name, tag, Path::new(trace))?.text());
        return Ok(());
    }
    let (shape, image) = recorded()?;
    let file = machine::data(args.json.as_deref(), "simulate", false);
    let mut log = runs::begin(&file, &[], false)?;
    println!("{}\n", shape.summary());
    for row in calibration::run(&shape, &image)? {
        log.add(&row.line())?;
    }
    println!("{}", calibration::table(&Runs::read(&file)?));
    if !args.calibrate {
        simulate(args, &shape, &image)?.iter().try_for_each(|(fleet, images)| log.add(&fleet.line(*images)))?;
        println!("{}", fleet::table(&Runs::read(&file)?));
    }
    println!("the results: {}; `cargo xtask bench report` draws them", file.display());
    Ok(())
}

/// The fleets, and for each what the registry sent in images of one host.
fn simulate(args: &Args, shape: &Arc<Shape>, image: &Arc<SimulatedImage>) -> Result<Vec<(Fleet, f64)>> {
    let Args { hosts, only, containers, processors, seed, jobs, .. } = args;
    let choice = Choice {
        hosts: hosts.clone(),
        with_pack: only.map_or(vec![true, false], |kind| vec![kind == Kind::BootPack]),
        containers: *containers,
        processors: *processors,
        seed: *seed,
        jobs: *jobs,
    };
    let [with_pack, by_index] = [true, false].map(|has_pack| fleet::one_host(&choice, has_pack, shape, image));
    let (with_pack, by_index) = (with_pack?, by_index?);
    let report = |fleet: &Fleet| {
        let (hosts, took) = (fleet.scenario.hosts, fleet.took.as_secs_f64());
        eprintln!("{hosts} hosts, {}: simulated in {took:.1} s", fleet.kind());
    };
    let fleets = fleet::run(&choice, shape, image, &report)?;
    let in_images = |fleet: Fleet| {
        let one = if fleet.scenario.has_pack { with_pack } else { by_index };
        let images = fleet.outcome.registry_bytes as f64 / one as f64;
        (fleet, images)
    };
    Ok(fleets.into_iter().map(in_images).collect())
}

/// The recorded start, and an image of its shape.
fn recorded() -> Result<(Arc<Shape>, Arc<SimulatedImage>)> {
    let file = paths::root().join("fixtures/starts/debian-sh.tsv");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let shape = Shape::parse(&text).with_context(|| format!("{} is no recorded start", file.display()))?;
    let image = SimulatedImage::new(&shape)?;
    Ok((Arc::new(shape), Arc::new(image)))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    type Start = (Arc<Shape>, Arc<SimulatedImage>);

    /// The recorded start, which the tests share: its bytes take a moment to make.
    pub(super) fn start() -> Start {
        static START: LazyLock<Start> = LazyLock::new(|| recorded().unwrap());
        START.clone()
    }
}
