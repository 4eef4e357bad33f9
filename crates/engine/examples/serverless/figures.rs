//! Formats figures for human readers.

use std::fmt;
use std::time::Duration;

use crate::Result;

/// Prints quantiles and a histogram.
pub(crate) fn print_times(what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let at = |per_mille: usize| times.get((times.len() * per_mille / 1000).min(times.len().saturating_sub(1)));
    let quantile = |per_mille| at(per_mille).copied().unwrap_or_default();
    println!(
        "{what}: p50 {:.2?}, p90 {:.2?}, p99 {:.2?}, most {:.2?}",
        quantile(500),
        quantile(900),
        quantile(990),
        quantile(1000)
    );
    let mut bound = Duration::from_micros(500);
    let mut below = 0;
    while below < times.len() {
        let up_to = times.partition_point(|time| *time <= bound);
        if up_to > below {
            let bar = "#".repeat(((up_to - below) * 60).div_ceil(times.len()));
            println!("    up to {bound:>8.1?}  {:>5}  {bar}", up_to - below);
        }
        below = up_to;
        bound *= 2;
    }
}

/// The median.
pub(crate) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Memory use of a process.
pub(crate) struct Memory {
    /// Shared pages counted proportionally, in KiB.
    pss: u64,
    /// All pages, in KiB.
    rss: u64,
    threads: u64,
}

impl Memory {
    pub(crate) fn of(process: u32) -> Result<Self> {
        let field = |file: &str, name: &str| -> Result<u64> {
            let text = std::fs::read_to_string(format!("/proc/{process}/{file}"))?;
            let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("the kernel does not say")?;
            Ok(line.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Self {
            pss: field("smaps_rollup", "Pss:")?,
            rss: field("smaps_rollup", "Rss:")?,
            threads: field("status", "Threads:")?,
        })
    }

    pub(crate) fn growth(&self, before: &Self, by: usize) -> String {
        let each = |now: u64, then: u64| (now as f64 - then as f64) / by as f64 / 1024.0;
        format!("more for each: {:.3} MiB PSS, {:.3} MiB RSS", each(self.pss, before.pss), each(self.rss, before.rss))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pss, rss, threads } = self;
        write!(f, "has {:.1} MiB PSS, {:.1} MiB RSS, {threads} threads", *pss as f64 / 1024.0, *rss as f64 / 1024.0)
    }
}
