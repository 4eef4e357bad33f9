//! Fleets: 100 to 10,000 hosts, in three topologies, with a boot pack and by an index.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::calibration;
use super::image::SimulatedImage;
use super::network::Links;
use super::scenario::{self, Outcome, Scenario, Share};
use super::shape::Shape;
use crate::runs::{Runs, figures};
use crate::stats::median;

/// Numbers of caches between the hosts and the registry.
const TOPOLOGIES: [usize; 3] = [0, 1, 3];
const REGISTRY: f64 = 10e9;
const CACHE: f64 = 25e9;
const HOST: f64 = 1e9;
/// Round trips to the registry, and between machines of a data centre.
const FAR: Duration = Duration::from_millis(10);
const NEAR: Duration = Duration::from_millis(1);
/// A rollout reaches all hosts within this time.
const SPREAD: Duration = Duration::from_millis(100);

/// What the user chose.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) hosts: Vec<usize>,
    /// With a boot pack, without one, or both.
    pub(super) with_pack: Vec<bool>,
    pub(super) containers: usize,
    pub(super) processors: usize,
    pub(super) seed: u64,
    /// Scenarios at the same time.
    pub(super) jobs: usize,
}

/// A fleet and what came of it.
pub(super) struct Fleet {
    pub(super) scenario: Scenario,
    pub(super) outcome: Outcome,
    /// How long the simulation took.
    pub(super) took: Duration,
}

/// Simulates all fleets, some at the same time. `done` is called after each.
pub(super) fn run(
    choice: &Choice,
    shape: &Arc<Shape>,
    image: &Arc<SimulatedImage>,
    done: &(dyn Fn(&Fleet) + Sync),
) -> Result<Vec<Fleet>> {
    let mut scenarios = Vec::new();
    for &hosts in &choice.hosts {
        for &has_pack in &choice.with_pack {
            scenarios.extend(TOPOLOGIES.map(|caches| scenario(choice, hosts, has_pack, caches)));
        }
    }
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Fleet>>>> = scenarios.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..choice.jobs.max(1) {
            scope.spawn(|| {
                // Each runs on one thread, so what comes of it does not depend on the others.
                while let Some((scenario, result)) = take(&next, &scenarios, &results) {
                    let fleet = scenario::run(scenario, shape, image);
                    let fleet = fleet.map(|(outcome, took)| Fleet { scenario: scenario.clone(), outcome, took });
                    if let Ok(fleet) = &fleet {
                        done(fleet);
                    }
                    *result.lock() = Some(fleet);
                }
            });
        }
    });
    results.into_iter().map(|result| result.into_inner().context("a simulation has ended without a result")?).collect()
}

type Pending<'a> = (&'a Scenario, &'a Mutex<Option<Result<Fleet>>>);

fn take<'a>(
    next: &AtomicUsize,
    scenarios: &'a [Scenario],
    results: &'a [Mutex<Option<Result<Fleet>>>],
) -> Option<Pending<'a>> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    scenarios.get(number).zip(results.get(number))
}

fn scenario(choice: &Choice, hosts: usize, has_pack: bool, caches: usize) -> Scenario {
    let links =
        Links { registry: Some(REGISTRY), cache: Some(CACHE), host: Some(HOST), far: FAR, near: NEAR, carrier: None };
    Scenario {
        hosts,
        containers: choice.containers,
        caches,
        has_pack,
        links,
        processors: Share::Host(choice.processors),
        costs: calibration::costs(has_pack),
        spread: SPREAD,
        seed: choice.seed,
    }
}

impl Fleet {
    pub(super) fn kind(&self) -> String {
        calibration::kind(self.scenario.has_pack, self.scenario.caches)
    }

    /// For the file of runs.
    pub(super) fn line(&self, images: f64) -> Value {
        let Self { scenario, outcome, .. } = self;
        json!({
            "system": self.kind(),
            "hosts": scenario.hosts,
            "containers": scenario.hosts * scenario.containers,
            "processors": match scenario.processors { Share::Host(count) | Share::All(count, _) => count },
            "seed": scenario.seed,
            "half": outcome.quantile(50).as_secs_f64(),
            "most": outcome.quantile(99).as_secs_f64(),
            "seconds": outcome.last.as_secs_f64(),
            "bytes": outcome.registry_bytes,
            "images": images,
            "requests": outcome.requests,
            "failed": outcome.failed,
            "whole_downloads": outcome.whole_downloads,
        })
    }
}

/// Bytes that the registry sends to one host with one container and without a cache.
pub(super) fn one_host(
    choice: &Choice,
    has_pack: bool,
    shape: &Arc<Shape>,
    image: &Arc<SimulatedImage>,
) -> Result<u64> {
    let one = Scenario { containers: 1, ..scenario(choice, 1, has_pack, 0) };
    match scenario::run(&one, shape, image)?.0.registry_bytes {
        0 => bail!("a simulated host fetched nothing"),
        bytes => Ok(bytes),
    }
}

/// The fleets in these runs as a table.
pub(crate) fn table(runs: &Runs) -> String {
    let mut text = String::from(
        "| hosts | containers | start | half ready | 99 % ready | all ready | failed | the registry sent | in images of one host |\n\
         |--:|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for ([hosts, containers, system], lines) in runs.cells(["hosts", "containers", "system"]) {
        let of = |field| median(&figures(&lines, field)).unwrap_or_default();
        let [half, most, all] = ["half", "most", "seconds"].map(of);
        let [failed, images] = ["failed", "images"].map(of);
        let sent = amount(of("bytes"));
        text.push_str(&format!(
            "| {hosts} | {containers} | {system} | {half:.2} s | {most:.2} s | {all:.2} s | {failed} | {sent} | {images:.2} |\n",
        ));
    }
    text
}

fn amount(bytes: f64) -> String {
    match bytes / 1e6 {
        mega if mega < 1_000.0 => format!("{mega:.1} MB"),
        mega => format!("{:.1} GB", mega / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    fn choice(jobs: usize) -> Choice {
        Choice { hosts: vec![8], with_pack: vec![true, false], containers: 3, processors: 2, seed: 7, jobs }
    }

    #[test]
    fn the_same_seed_gives_the_same_result_whatever_else_runs() {
        let (shape, image) = start();
        let outcomes = |jobs| {
            let fleets = run(&choice(jobs), &shape, &image, &|_| {}).unwrap();
            fleets.into_iter().map(|fleet| (fleet.kind(), fleet.outcome)).collect::<Vec<_>>()
        };
        let (one, two) = (outcomes(1), outcomes(3));
        assert_eq!(one, two);
        assert!(one.iter().all(|(_, outcome)| outcome.ready.len() == 24 && outcome.failed == 0));
    }

    #[test]
    fn the_containers_of_a_host_share_what_it_fetches() {
        let (shape, image) = start();
        let bytes = |containers| {
            let scenario = Scenario { containers, ..scenario(&choice(1), 1, false, 0) };
            scenario::run(&scenario, &shape, &image).unwrap().0.registry_bytes
        };
        assert_eq!(bytes(1), bytes(10));
    }

    #[test]
    fn behind_a_cache_the_registry_sends_hardly_more_to_many_hosts_than_to_one() {
        let (shape, image) = start();
        let bytes = |hosts, caches| {
            let scenario = scenario(&choice(1), hosts, true, caches);
            scenario::run(&scenario, &shape, &image).unwrap().0.registry_bytes as f64
        };
        assert!(bytes(20, 1) < 1.1 * bytes(1, 1));
        assert!(bytes(20, 3) < 1.1 * bytes(1, 1));
        assert!(bytes(20, 0) > 19.0 * bytes(1, 0));
    }
}
