//! The measurement that the simulation must reproduce: `cargo xtask bench scale --only hosts`, in docs/fleet.md under "Time".
//!
//! Two constants are fitted, one for each kind of start, to the rows of 1 and 20 hosts: [`PREPARE`] for starts with a boot pack, and
//! [`PER_MIB`] for starts by an index. The rows of 10 hosts are the check. The other constants were measured in other ways.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::host::Costs;
use super::image::SimulatedImage;
use super::network::Links;
use super::scenario::{self, Scenario, Share};
use super::shape::Shape;
use crate::runs::{Runs, figures};
use crate::stats::median;

/// Until the first request of a start: its time in benches/2026-11-22/start.jsonl, which is processor time mostly.
const CLIENT: Duration = Duration::from_millis(25);
/// A container of a mounted image takes 0.11 s of a processor (`cargo xtask bench scale --only containers`, the slope from 16 to 64). The
/// recorded start contains 74 ms of it.
const CREATE: Duration = Duration::from_millis(36);
/// Fitted.
const PREPARE: Duration = Duration::from_millis(20);
/// Fitted.
const PER_MIB: Duration = Duration::from_millis(42);
/// The link of the measurement is a program on the same two processors (`cargo xtask link`). By the share of time that these were busy, hosts
/// without a cache took 23 to 37 ms more for each MB over the link than hosts behind one.
const CARRIER: Duration = Duration::from_millis(30);
/// The processors of the measurement, for all hosts together.
const PROCESSORS: usize = 2;
/// An error above this is marked.
const TOLERANCE: f64 = 0.15;

/// A row of the measurement.
struct Measured {
    has_pack: bool,
    caches: usize,
    /// Hosts, seconds until the last and until half of them were ready, bytes over the link.
    sizes: [(usize, f64, f64, u64); 3],
}

/// The run of 2026-11-26 (release build of commit 020e17de).
const MEASURED: [Measured; 4] = [
    Measured {
        has_pack: true,
        caches: 0,
        sizes: [(1, 0.297, 0.297, 1_089_887), (10, 1.433, 1.342, 10_900_414), (20, 3.161, 2.436, 21_803_762)],
    },
    Measured {
        has_pack: true,
        caches: 1,
        sizes: [(1, 0.299, 0.299, 1_091_482), (10, 1.370, 1.281, 1_124_512), (20, 1.727, 1.553, 1_161_556)],
    },
    Measured {
        has_pack: false,
        caches: 0,
        sizes: [(1, 1.118, 1.118, 6_444_813), (10, 6.032, 5.198, 64_449_546), (20, 11.485, 10.128, 128_899_034)],
    },
    Measured {
        has_pack: false,
        caches: 1,
        sizes: [(1, 1.464, 1.464, 8_724_934), (10, 2.687, 2.420, 8_758_645), (20, 4.336, 4.096, 8_797_585)],
    },
];

/// The processor time of a start.
pub(super) fn costs(has_pack: bool) -> Costs {
    // A pack is a tenth of the bytes, and its frames are zstd: what it takes to decode is in the fitted constant.
    let per_mib = if has_pack { Duration::ZERO } else { PER_MIB };
    Costs { client: CLIENT, prepare: PREPARE, create: CREATE, per_mib }
}

/// A comparison of the simulation with the measurement.
pub(super) struct Row {
    has_pack: bool,
    caches: usize,
    hosts: usize,
    /// Measured, and simulated.
    last: [f64; 2],
    half: [f64; 2],
    bytes: [u64; 2],
}

/// Simulates what was measured.
pub(super) fn run(shape: &Arc<Shape>, image: &Arc<SimulatedImage>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for Measured { has_pack, caches, sizes } in MEASURED {
        for (hosts, last, half, bytes) in sizes {
            let (outcome, _) = scenario::run(&scenario(has_pack, caches, hosts), shape, image)?;
            rows.push(Row {
                has_pack,
                caches,
                hosts,
                last: [last, outcome.last.as_secs_f64()],
                half: [half, outcome.quantile(50).as_secs_f64()],
                bytes: [bytes, outcome.registry_bytes],
            });
        }
    }
    Ok(rows)
}

fn scenario(has_pack: bool, caches: usize, hosts: usize) -> Scenario {
    let links = Links {
        registry: Some(1e8),
        cache: None,
        host: None,
        far: Duration::from_millis(10),
        near: Duration::ZERO,
        carrier: None,
    };
    Scenario {
        hosts,
        containers: 1,
        caches,
        has_pack,
        links,
        processors: Share::All(PROCESSORS, CARRIER),
        costs: costs(has_pack),
        spread: Duration::ZERO,
        seed: 0,
    }
}

impl Row {
    fn kind(&self) -> String {
        kind(self.has_pack, self.caches)
    }

    /// For the file of runs.
    pub(super) fn line(&self) -> Value {
        json!({
            "calibration": self.kind(),
            "hosts": self.hosts,
            "measured": self.last[0],
            "simulated": self.last[1],
            "measured_half": self.half[0],
            "simulated_half": self.half[1],
            "measured_bytes": self.bytes[0],
            "simulated_bytes": self.bytes[1],
        })
    }
}

/// The name of a way to start, as in the measurement.
pub(super) fn kind(has_pack: bool, caches: usize) -> String {
    let between = match caches {
        0 => "no cache",
        1 => "one cache",
        3 => "three caches",
        _ => "caches",
    };
    format!("{}, {between}", if has_pack { "boot pack" } else { "index" })
}

/// The comparisons in these runs as a table, and a line that sums it up.
pub(crate) fn table(runs: &Runs) -> String {
    let mut text = String::from(
        "| start | hosts | last host: measured | simulated | error | median: measured | simulated | error | MB: measured | simulated |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let rows = runs.cells(["calibration", "hosts"]);
    let (count, mut within) = (rows.len(), 0);
    for ([kind, hosts], lines) in rows {
        let of = |measured, simulated| {
            [measured, simulated].map(|field| median(&figures(&lines, field)).unwrap_or_default())
        };
        let last = of("measured", "simulated");
        within += usize::from(error(last).abs() <= TOLERANCE);
        let [last, half] = [last, of("measured_half", "simulated_half")].map(|pair| {
            let mark = if error(pair).abs() > TOLERANCE { " (!)" } else { "" };
            format!("{:.2} s | {:.2} s | {:+.0} %{mark}", pair[0], pair[1], error(pair) * 100.0)
        });
        let [measured, simulated] = of("measured_bytes", "simulated_bytes").map(|bytes| bytes / 1e6);
        text.push_str(&format!("| {kind} | {hosts} | {last} | {half} | {measured:.1} | {simulated:.1} |\n"));
    }
    text.push_str(&format!("\n{}\n", summary(within, count)));
    text
}

fn summary(within: usize, count: usize) -> String {
    format!("last host: {within} of {count} within {:.0} %; (!) marks errors above it", TOLERANCE * 100.0)
}

fn error([measured, simulated]: [f64; 2]) -> f64 {
    simulated / measured - 1.0
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::*;

    #[test]
    fn the_planner_fetches_what_it_fetched_in_the_measurement() {
        let (shape, image) = start();
        for Measured { has_pack, caches, sizes } in MEASURED {
            let (hosts, _, _, bytes) = sizes[0];
            let (outcome, _) = scenario::run(&scenario(has_pack, caches, hosts), &shape, &image).unwrap();
            let ratio = outcome.registry_bytes as f64 / bytes as f64;
            assert!((0.98..1.02).contains(&ratio), "{}: {ratio} times the bytes", kind(has_pack, caches));
        }
    }

    #[test]
    fn one_host_takes_as_long_as_measured() {
        let (shape, image) = start();
        for Measured { has_pack, caches, sizes } in MEASURED {
            let (hosts, measured, ..) = sizes[0];
            let (outcome, _) = scenario::run(&scenario(has_pack, caches, hosts), &shape, &image).unwrap();
            let error = error([measured, outcome.last.as_secs_f64()]);
            assert!(error.abs() < TOLERANCE, "{}: {error}", kind(has_pack, caches));
        }
    }

    #[test]
    fn a_row_beyond_the_tolerance_is_marked_and_counted() {
        let row = |hosts, simulated| Row {
            has_pack: true,
            caches: 0,
            hosts,
            last: [1.0, simulated],
            half: [1.0, 1.0],
            bytes: [1, 1],
        };
        let lines = [row(1, 1.14), row(20, 0.5)].map(|row| row.line().to_string());
        let text = table(&Runs::parse(&lines.join("\n")).unwrap());
        assert!(
            text.contains("+14 % |") && text.contains("-50 % (!)") && text.contains("1 of 2 within 15 %"),
            "{text}"
        );
    }
}
