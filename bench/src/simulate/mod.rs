//! `bench simulate`: many hosts that start one image at once, with the real planner and a modelled network.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tarpon_harness::paths;

mod cache;
mod clock;
mod early;
mod extract;
mod flow;
mod host;
mod image;
mod link;
mod network;
mod scenario;
mod shape;
mod source;
mod store;

use host::Costs;
use image::SimulatedImage;
use network::Links;
use scenario::{Scenario, Share};
use shape::Shape;

/// The options of `cargo xtask bench simulate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Record the shape of a start instead: REGISTRY, NAME, TAG and the trace of the start. Prints it
    #[arg(long, num_args = 4, value_names = ["REGISTRY", "NAME", "TAG", "TRACE"])]
    record: Option<Vec<String>>,
}

fn millis(name: &str, default: u64) -> Duration {
    Duration::from_millis(std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default))
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some([registry, name, tag, trace]) = args.record.as_deref() {
        print!("{}", extract::shape(registry, name, tag, &PathBuf::from(trace))?.text());
        return Ok(());
    }
    let file = paths::root().join("fixtures/starts/debian-sh.tsv");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let shape = Arc::new(Shape::parse(&text)?);
    let image = Arc::new(SimulatedImage::new(&shape)?);
    let links = Links { registry: Some(1e8), cache: None, host: None, far: Duration::from_millis(10), near: Duration::ZERO, carrier: None };
    let measured = [[[0.297, 1.433, 3.161], [0.299, 1.370, 1.727]], [[1.118, 6.032, 11.485], [1.464, 2.687, 4.336]]];
    for (has_pack, measured) in [true, false].into_iter().zip(measured) {
        for (caches, measured) in [0, 1].into_iter().zip(measured) {
            for (hosts, measured) in [1, 10, 20].into_iter().zip(measured) {
                let costs = Costs {
                    client: millis("CLIENT", 25),
                    prepare: millis("PREPARE", 35),
                    create: millis("CREATE", 36),
                    per_mib: if has_pack { millis("PACKMIB", 0) } else { millis("MIB", 42) },
                };
                let scenario = Scenario { hosts, containers: 1, caches, has_pack, links: links.clone(), processors: Share::All(2, millis("RELAY", 0)), costs, spread: Duration::ZERO, seed: 1 };
                let (outcome, took) = scenario::run(&scenario, &shape, &image)?;
                let last = outcome.last.as_secs_f64();
                println!("pack {has_pack} caches {caches} hosts {hosts}: measured {measured} simulated {last:.3} error {:+.0} % bytes {} failed {} requests {} whole {} took {took:?}", (last / measured - 1.0) * 100.0, outcome.registry_bytes, outcome.failed, outcome.requests, outcome.whole_downloads);
            }
        }
    }
    Ok(())
}
