//! Compares each system with the one that pulls everything first.

use std::fmt::Write;

use super::cells::{Cells, cell, cells, number};
use super::kinds::{self, baseline};
use crate::runs::{Runs, figures, numbered};
use crate::stats::{geometric_mean, median, ratios, spread};

const HEAD: &str = "| link | workload | system | compared with | times as fast | min to max | % of its bytes |\n\
                    |---|---|---|---|--:|--:|--:|\n";

/// A system and its baseline, over one link with one workload.
struct Pair {
    /// Link, workload, system.
    key: [String; 3],
    base: &'static str,
    /// Speed-up: the median of the ratios of neighbouring runs, their minimum and maximum.
    fast: f64,
    range: (f64, f64),
    /// Its bytes over the link, relative to the baseline.
    bytes: Option<f64>,
}

fn pairs(cells: &Cells<'_>) -> Vec<Pair> {
    cells.iter().filter_map(|(key, _)| pair(cells, key)).collect()
}

fn pair(cells: &Cells<'_>, key: &[String; 3]) -> Option<Pair> {
    let [link, workload, system] = key;
    let base = baseline(system)?;
    let (theirs, its) = (cell(cells, [link, workload, base]), cell(cells, [link, workload, system]));
    let ratios = ratios(&numbered(theirs, "ready"), &numbered(its, "ready"));
    let all = median(&figures(theirs, "bytes")).filter(|bytes| *bytes > 0.0);
    let bytes = median(&figures(its, "bytes")).zip(all).map(|(its, all)| its / all);
    Some(Pair { key: key.clone(), base, fast: median(&ratios)?, range: spread(&ratios)?, bytes })
}

/// The speed-up of each system, from neighbouring runs.
pub(crate) fn comparison(runs: &Runs) -> String {
    let mut text = HEAD.to_owned();
    for Pair { key: [link, workload, system], base, fast, range: (least, most), bytes } in pairs(&cells(runs)) {
        let share = number(bytes.map(|share| share * 100.0), 0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {link} | {workload} | {system} | {base} | {fast:.2} | {least:.2} to {most:.2} | {share} |"
        );
    }
    text
}

/// One line per link and system over all workloads: the geometric mean of the medians, their minimum and maximum.
pub(crate) fn summary(runs: &Runs) -> Vec<String> {
    let pairs = pairs(&cells(runs));
    let (links, systems, workloads) = (runs.values("link"), runs.values("system"), runs.values("workload").len());
    let line = |link: &String, system: &String| {
        let here: Vec<&Pair> = pairs.iter().filter(|pair| pair.key[0] == *link && pair.key[2] == *system).collect();
        let fast: Vec<f64> = here.iter().map(|pair| pair.fast).collect();
        let (mean, (least, most)) = (geometric_mean(&fast)?, spread(&fast)?);
        let mut line = format!("{link}: {system} {mean:.1} × as fast as {}", here.first()?.base);
        if here.len() > 1 {
            // Writing to a string cannot fail.
            let _ = write!(line, " ({least:.1} to {most:.1})");
        }
        if let Some(share) = geometric_mean(&here.iter().filter_map(|pair| pair.bytes).collect::<Vec<_>>()) {
            let _ = write!(line, ", {:.0} % of the bytes", share * 100.0);
        }
        if here.len() < workloads {
            let _ = write!(line, ", of {} workloads of {workloads}", here.len());
        }
        Some(line)
    };
    links.iter().flat_map(|link| systems.iter().filter_map(move |system| line(link, system))).collect()
}

/// The speed-up of a system against its baseline, over a link with a workload.
pub(crate) fn times_as_fast(runs: &Runs, key: [&str; 3]) -> Option<f64> {
    pair(&cells(runs), &key.map(str::to_owned)).map(|pair| pair.fast)
}

/// The fastest lazy system over this link that is not tarpon's.
pub(crate) fn best_rival(runs: &Runs, link: &str) -> Option<String> {
    let cells = cells(runs);
    let is_rival = |system: &String| !kinds::is_eager(system) && !kinds::is_ours(system) && !kinds::is_warm(system);
    let rated = runs.values("system").into_iter().filter(is_rival).filter_map(|system| {
        let here = cells.iter().filter(|(key, _)| key[0] == link && key[2] == system);
        let medians: Vec<f64> = here.filter_map(|(_, lines)| median(&figures(lines, "ready"))).collect();
        Some((geometric_mean(&medians)?, medians.len(), system))
    });
    // A system that fails with some workloads must not win by that.
    let best = rated.min_by(|one, other| other.1.cmp(&one.1).then(one.0.total_cmp(&other.0)))?;
    Some(best.2)
}

#[cfg(test)]
mod tests {
    use super::super::tests::RUNS;
    use super::*;

    const MANY: &str = r#"{"machine": {}}
{"link": "l", "workload": "a", "system": "podman", "ready": 8.0, "bytes": 100, "number": 1}
{"link": "l", "workload": "a", "system": "tarpon-pack", "ready": 2.0, "bytes": 4, "number": 1}
{"link": "l", "workload": "a", "system": "tarpon-warm", "ready": 0.1, "bytes": 0, "number": 1}
{"link": "l", "workload": "a", "system": "podman-stargz", "ready": 4.0, "bytes": 9, "number": 1}
{"link": "l", "workload": "a", "system": "containerd-soci", "ready": 3.0, "bytes": 9, "number": 1}
{"link": "l", "workload": "b", "system": "podman", "ready": 9.0, "bytes": 100, "number": 1}
{"link": "l", "workload": "b", "system": "tarpon-pack", "ready": 1.0, "bytes": 9, "number": 1}
{"link": "l", "workload": "b", "system": "podman-stargz", "ready": 5.0, "bytes": 9, "number": 1}
{"link": "l", "workload": "b", "system": "containerd-soci", "error": "no", "number": 1}
"#;

    #[test]
    fn systems_are_compared_with_what_pulls_everything() {
        let text = comparison(&Runs::parse(RUNS).unwrap());
        assert!(text.contains("| w | tarpon-pack | podman | 6.00 | 6.00 to 6.00 |"), "{text}");
        assert!(!text.contains("tarpon-warm"), "{text}");
    }

    #[test]
    fn runs_of_two_commands_are_no_neighbours() {
        let line = |system: &str, ready: u32| {
            format!("{{\"link\":\"l\",\"workload\":\"w\",\"system\":\"{system}\",\"number\":1,\"ready\":{ready}}}\n")
        };
        let header = "{\"machine\":{}}\n".to_owned();
        let (one, two) = ([line("podman", 8), line("tarpon-pack", 2)], [line("podman", 30), line("tarpon-pack", 3)]);
        let text =
            [header.clone(), one.concat(), header.clone(), two.concat(), header, line("tarpon-index", 1)].concat();
        let text = comparison(&Runs::parse(&text).unwrap());
        assert!(text.contains("| tarpon-pack | podman | 7.00 | 4.00 to 10.00 |"), "{text}");
        assert!(!text.contains("tarpon-index"), "{text}");
    }

    #[test]
    fn a_line_over_all_workloads_can_be_quoted() {
        let lines = summary(&Runs::parse(MANY).unwrap());
        assert_eq!(lines[0], "l: tarpon-pack 6.0 × as fast as podman (4.0 to 9.0), 6 % of the bytes");
        assert!(lines.iter().all(|line| !line.contains("tarpon-warm")), "{lines:?}");
    }

    #[test]
    fn missing_workloads_are_counted() {
        let text: Vec<_> = MANY.lines().filter(|line| !(line.contains("\"b\"") && line.contains("stargz"))).collect();
        let lines = summary(&Runs::parse(&text.join("\n")).unwrap());
        assert!(lines[1].ends_with("of 1 workloads of 2"), "{lines:?}");
    }

    #[test]
    fn a_rival_that_fails_with_a_workload_is_not_the_best_one() {
        assert_eq!(best_rival(&Runs::parse(MANY).unwrap(), "l").as_deref(), Some("podman-stargz"));
        assert_eq!(best_rival(&Runs::parse(RUNS).unwrap(), "100mbit,10ms"), None);
    }
}
