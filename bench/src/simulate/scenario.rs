//! [`Scenario`]: hosts, a network and a way to start, and what comes of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::join_all;

use super::clock::{Clock, Moment};
use super::host::{Common, Costs, Host};
use super::image::SimulatedImage;
use super::link::Processors;
use super::network::{Links, Network};
use super::shape::Shape;

/// What is simulated.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) hosts: usize,
    /// Of each host.
    pub(super) containers: usize,
    pub(super) caches: usize,
    pub(super) has_pack: bool,
    pub(super) links: Links,
    pub(super) processors: Share,
    pub(super) costs: Costs,
    /// Hosts begin at random within this time.
    pub(super) spread: Duration,
    pub(super) seed: u64,
}

/// Who shares the processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// Each host has this many.
    Host(usize),
    /// All hosts share this many, which also carry the link of the registry: their time for each MiB of it.
    All(usize, Duration),
}

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    /// From the beginning of its host until each container was ready, ascending.
    pub(super) ready: Vec<Duration>,
    /// From the beginning of the first host until the last container was ready.
    pub(super) last: Duration,
    /// Containers of which a read failed.
    pub(super) failed: usize,
    /// What the registry sent, with the headers of packets.
    pub(super) registry_bytes: u64,
    /// Requests of the planners, and hosts of which one decided to download the whole image.
    pub(super) requests: u64,
    pub(super) whole_downloads: u64,
}

impl Outcome {
    /// The smallest time that at least `percent` of the containers do not exceed.
    pub(super) fn quantile(&self, percent: usize) -> Duration {
        let at = (self.ready.len() * percent).div_ceil(100).saturating_sub(1);
        self.ready.get(at).copied().unwrap_or_default()
    }
}

/// Runs the scenario on this thread. Returns also how long that took.
pub(super) fn run(scenario: &Scenario, shape: &Arc<Shape>, image: &Arc<SimulatedImage>) -> Result<(Outcome, Duration)> {
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.context("cannot make a runtime")?.block_on(simulate(scenario, shape, image));
    Ok((outcome, began.elapsed()))
}

async fn simulate(scenario: &Scenario, shape: &Arc<Shape>, image: &Arc<SimulatedImage>) -> Outcome {
    let mut links = scenario.links.clone();
    let shared = match scenario.processors {
        Share::All(count, _) => Some(Arc::new(Processors::new(count))),
        Share::Host(_) => None,
    };
    if let (Share::All(_, per_mib), Some(shared)) = (scenario.processors, &shared) {
        links.carrier = Some((shared.clone(), per_mib));
    }
    let network = Arc::new(Network::new(Clock::begin(), links, scenario.caches));
    let common = Arc::new(Common {
        shape: shape.clone(),
        image: image.clone(),
        network: network.clone(),
        costs: scenario.costs,
        has_pack: scenario.has_pack,
    });
    let mut random = Random(scenario.seed);
    let mut hosts = Vec::with_capacity(scenario.hosts);
    for _ in 0..scenario.hosts {
        let own = match scenario.processors {
            Share::Host(count) => count,
            Share::All(..) => 0,
        };
        let processors = shared.clone().unwrap_or_else(|| Arc::new(Processors::new(own)));
        let (common, begins, containers) = (common.clone(), random.below(scenario.spread), scenario.containers);
        hosts.push(tokio::spawn(on_host(common, processors, begins, containers)));
    }
    let mut outcome = Outcome {
        ready: Vec::with_capacity(scenario.hosts * scenario.containers),
        last: Duration::ZERO,
        failed: 0,
        registry_bytes: 0,
        requests: 0,
        whole_downloads: 0,
    };
    for host in hosts {
        // A host that panicked has no container that is ready.
        let Ok(host) = host.await else {
            outcome.failed += scenario.containers;
            continue;
        };
        outcome.requests += host.requests;
        outcome.whole_downloads += host.whole_downloads;
        for ready in host.ready {
            match ready {
                Some(ready) => {
                    outcome.last = outcome.last.max(Duration::from_nanos(ready));
                    outcome.ready.push(Duration::from_nanos(ready - host.began));
                }
                None => outcome.failed += 1,
            }
        }
    }
    outcome.ready.sort_unstable();
    outcome.registry_bytes = network.registry_bytes();
    outcome
}

/// What came of a host.
struct HostOutcome {
    began: Moment,
    ready: Vec<Option<Moment>>,
    requests: u64,
    whole_downloads: u64,
}

async fn on_host(common: Arc<Common>, processors: Arc<Processors>, began: Moment, containers: usize) -> HostOutcome {
    let host = Host::new(common, processors);
    let ready = join_all((0..containers).map(|_| host.start(began))).await;
    let stats = host.finish().await;
    let ready = ready.into_iter().map(Result::ok).collect();
    HostOutcome { began, ready, requests: stats.requests, whole_downloads: stats.whole_downloads }
}

/// Numbers that depend on a seed only (`SplitMix64`).
struct Random(u64);

impl Random {
    /// A moment within this time.
    fn below(&mut self, limit: Duration) -> Moment {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % super::clock::nanos(limit).max(1)
    }
}
