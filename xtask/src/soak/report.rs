//! The report: is anything growing, and did anything fail?

use serde_json::{Value, json};

use super::account::{Kind, Sum};
use super::sample::Reading;
use super::slope::{Sample, Slope, slope};

/// A quantity that must not grow.
struct Quantity {
    name: &'static str,
    unit: &'static str,
    of: fn(&Reading) -> f64,
    /// Growth per hour that counts as none.
    bound: f64,
}

/// MiB per hour: 24 MiB a day, which no server notices.
const MEMORY_BOUND: f64 = 1.0;
/// Descriptors, threads and mounts are whole things of which containers hold some each; a leak of one per container would
/// be hundreds per hour.
const COUNT_BOUND: f64 = 4.0;
/// MiB per hour: a quarter of the limit of the store.
const DISK_BOUND: f64 = 16.0;

const QUANTITIES: &[Quantity] = &[
    Quantity { name: "memory (Pss)", unit: "MiB", of: |reading| reading.memory, bound: MEMORY_BOUND },
    Quantity { name: "memory (resident)", unit: "MiB", of: |reading| reading.resident, bound: MEMORY_BOUND },
    Quantity { name: "descriptors", unit: "", of: |reading| reading.descriptors, bound: COUNT_BOUND },
    Quantity { name: "threads", unit: "", of: |reading| reading.threads, bound: COUNT_BOUND },
    Quantity { name: "mounts", unit: "", of: |reading| reading.mounts, bound: COUNT_BOUND },
    Quantity { name: "disk", unit: "MiB", of: |reading| reading.disk, bound: DISK_BOUND },
];

/// Time of a new server that is not counted: its caches fill.
const WARM_UP_SECONDS: f64 = 180.0;
/// The slope minus this many standard errors must be below the bound.
const ERRORS: f64 = 2.0;

/// A run that ended.
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) readings: Vec<Reading>,
    pub(super) sum: Sum,
    /// Processes and mounts that did not end.
    pub(super) left: Vec<String>,
}

/// What the report has of a quantity.
struct Row {
    quantity: &'static Quantity,
    lowest: f64,
    highest: f64,
    slope: Option<Slope>,
}

impl Row {
    /// `grows` only if the bound is below all that the error allows. A large error hides growth, so it is named.
    fn verdict(&self) -> &'static str {
        let bound = self.quantity.bound;
        match self.slope {
            None => "too few samples",
            Some(slope) if slope.per_hour - ERRORS * slope.error >= bound => "grows",
            Some(slope) if slope.per_hour + ERRORS * slope.error < bound => "flat",
            Some(_) => "flat, within a large error",
        }
    }
}

impl Run {
    /// What is wrong, if anything is.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems: Vec<_> = self.rows().iter().filter(|row| row.verdict() == "grows").map(grows).collect();
        if !self.sum.failures.is_empty() {
            problems.push(format!("{} containers failed", self.sum.failures.len()));
        }
        if !self.left.is_empty() {
            problems.push(format!("left behind: {}", self.left.join(", ")));
        }
        problems
    }

    pub(super) fn table(&self) -> String {
        let mut lines = vec!["| quantity | lowest | highest | per hour | error | bound | verdict |".to_owned()];
        lines.push("|---|--:|--:|--:|--:|--:|---|".to_owned());
        for row in self.rows() {
            let Quantity { name, unit, bound, .. } = row.quantity;
            let (per_hour, error) = row.slope.map_or((f64::NAN, f64::NAN), |slope| (slope.per_hour, slope.error));
            let (lowest, highest) = (row.lowest, row.highest);
            let name = if unit.is_empty() { (*name).to_owned() } else { format!("{name}, {unit}") };
            lines.push(format!(
                "| {name} | {lowest:.1} | {highest:.1} | {per_hour:+.2} | {error:.2} | {bound:.0} | {} |",
                row.verdict()
            ));
        }
        let count = |kind| self.sum.count(kind);
        lines.push(format!(
            "\n{:.0} s, seed {}, {} samples (longest gap {:.0} s); {} containers, {} outages of the registry, {} kills of the server, {} images evicted",
            self.seconds,
            self.seed,
            self.readings.len(),
            self.longest_gap(),
            self.sum.containers,
            self.sum.outages,
            self.sum.kills,
            self.evicted(),
        ));
        lines.push(format!(
            "failures: {} wrong bytes, {} reads, {} hung, {} starts, {} ended early; {} starts without the registry",
            count(Kind::WrongBytes),
            count(Kind::Read),
            count(Kind::Hung),
            count(Kind::Start),
            count(Kind::Ended),
            self.sum.starts_without_registry.len(),
        ));
        lines.join("\n")
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows().into_iter().map(|row| {
            json!({
                "name": row.quantity.name,
                "unit": row.quantity.unit,
                "lowest": row.lowest,
                "highest": row.highest,
                "per_hour": row.slope.map(|slope| slope.per_hour),
                "error": row.slope.map(|slope| slope.error),
                "samples": row.slope.map(|slope| slope.samples),
                "bound": row.quantity.bound,
                "verdict": row.verdict(),
            })
        });
        json!({
            "seed": self.seed,
            "seconds": self.seconds,
            "quantities": rows.collect::<Vec<_>>(),
            "longest_gap": self.longest_gap(),
            "evicted_images": self.evicted(),
            "account": self.sum.json(),
            "left": self.left,
            "problems": self.problems(),
        })
    }

    /// All samples, for a diagram of what grows.
    pub(super) fn samples(&self) -> Value {
        let sample = |reading: &Reading| {
            let quantities =
                QUANTITIES.iter().map(|quantity| (quantity.name.to_owned(), json!((quantity.of)(reading))));
            let mut sample: serde_json::Map<String, Value> = quantities.collect();
            sample.insert("seconds".to_owned(), json!(reading.seconds));
            sample.insert("server".to_owned(), json!(reading.server));
            Value::Object(sample)
        };
        self.readings.iter().map(sample).collect()
    }

    /// The longest time without a sample: a machine that stops or is too busy explains containers that hang.
    fn longest_gap(&self) -> f64 {
        self.readings.windows(2).map(|pair| pair[1].seconds - pair[0].seconds).fold(0.0, f64::max)
    }

    /// Records of images that disappeared between two samples: a lower bound, because others came meanwhile.
    fn evicted(&self) -> usize {
        self.readings.windows(2).map(|pair| pair[0].images.saturating_sub(pair[1].images)).sum()
    }

    fn rows(&self) -> Vec<Row> {
        let warm = warm(&self.readings);
        let row = |quantity: &'static Quantity| {
            let values = || warm.iter().map(|(_, reading)| (quantity.of)(reading));
            let samples: Vec<_> = warm
                .iter()
                .map(|(life, reading)| Sample { seconds: reading.seconds, value: (quantity.of)(reading), life: *life })
                .collect();
            Row {
                quantity,
                lowest: values().fold(f64::INFINITY, f64::min),
                highest: values().fold(f64::NEG_INFINITY, f64::max),
                slope: slope(&samples),
            }
        };
        QUANTITIES.iter().map(row).collect()
    }
}

fn grows(row: &Row) -> String {
    let slope = row.slope.map_or(f64::NAN, |slope| slope.per_hour);
    format!("{} grows by {slope:.2} {} per hour", row.quantity.name, row.quantity.unit)
}

/// The readings of servers that have run for some time, with the number of the server.
fn warm(readings: &[Reading]) -> Vec<(u32, &Reading)> {
    let (mut life, mut began, mut server) = (0, 0.0, None);
    let mut warm = Vec::new();
    for reading in readings {
        if server != Some(reading.server) {
            (life, began, server) = (life + 1, reading.seconds, Some(reading.server));
        }
        if reading.seconds - began >= WARM_UP_SECONDS {
            warm.push((life, reading));
        }
    }
    warm
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::account::Account;

    fn run(memory: impl Fn(f64) -> f64) -> Run {
        let reading = |number: u32| {
            let seconds = f64::from(number) * 10.0;
            let memory = memory(seconds / 3600.0);
            let server = 1 + number / 300;
            let constant = 10.0;
            Reading {
                seconds,
                server,
                memory,
                resident: memory,
                descriptors: constant,
                threads: constant,
                mounts: constant,
                disk: constant,
                images: if number.is_multiple_of(100) { 2 } else { 3 },
            }
        };
        let readings = (0..720).map(reading).collect();
        Run { seed: 1, seconds: 7200.0, readings, sum: Account::default().sum(), left: Vec::new() }
    }

    #[test]
    fn a_leak_is_reported_and_a_constant_is_flat() {
        assert!(run(|_| 50.0).problems().is_empty());
        let leaking = run(|hours| 50.0 + 3.0 * hours);
        assert_eq!(leaking.problems().len(), 2, "{:?}", leaking.problems());
        assert!(leaking.problems()[0].starts_with("memory (Pss) grows by 3.00 MiB"));
    }

    #[test]
    fn growth_while_caches_fill_is_none() {
        let filling = run(|hours| if hours < 0.05 { 1000.0 * hours } else { 50.0 });
        assert!(filling.problems().is_empty(), "{:?}", filling.problems());
    }

    #[test]
    fn the_table_and_the_json_name_each_quantity_and_evictions() {
        let run = run(|_| 50.0);
        let (table, json) = (run.table(), run.json());
        for quantity in QUANTITIES {
            assert!(table.contains(quantity.name), "{table}");
        }
        assert_eq!(json["quantities"].as_array().unwrap().len(), QUANTITIES.len());
        assert_eq!((&json["evicted_images"], &json["longest_gap"]), (&7.into(), &10.0.into()));
    }
}
