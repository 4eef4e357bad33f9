//! Slacker (Harter et al., FAST 2016): pull and run of each image of a benchmark like HelloBench.

use std::ffi::OsString;

use anyhow::Result;
use serde_json::json;

use super::hub;
use super::images::{self, TAG};
use super::options::parsed;
use super::output::{PaperTable, medians, most_runs, shown, table};
use super::setting::{LINK, Part, Setting};
use crate::runs::{Log, Runs, figures};
use crate::start;
use crate::stats::{median, spread};

/// The systems, in the order in which the tables show them.
const SYSTEMS: [&str; 5] = ["podman", "podman-warm", "tarpon-index", "tarpon-pack", "tarpon-warm"];

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    starts(setting, &SYSTEMS)?;
    // The starts recorded what they read.
    sizes(setting)?;
    setting.behind(LINK, Part::Development)
}

/// Starts every image with these systems.
pub(super) fn starts(setting: &Setting<'_>, systems: &[&str]) -> Result<()> {
    let ids: Vec<String> = images::workloads(setting)?.into_iter().map(|workload| workload.id).collect();
    let mut words: Vec<OsString> =
        ["--link", LINK, "--tag", TAG, "--workload", &ids.join(",")].map(OsString::from).into();
    words.extend(["--system".into(), systems.join(",").into(), "--workloads".into(), images::file()?.into()]);
    words.extend(setting.words());
    start::measure(&parsed(words)?).map(drop)
}

/// Logs the size of each image, and how much of it its recorded start read.
fn sizes(setting: &Setting<'_>) -> Result<()> {
    let (mut log, workloads) = (Log::append(&setting.file)?, images::workloads(setting)?);
    let stats = hub::stats(setting, &workloads)?;
    for (workload, image) in workloads.iter().zip(stats["images"].as_array().into_iter().flatten()) {
        let read = hub::touched(setting, &images::trace(setting, workload))?;
        let line = json!({
            "image of": workload.id,
            "compressed": image["compressed"],
            "unpacked": image["bytes"],
            "read": read,
        });
        log.add(&line)?;
    }
    Ok(())
}

/// The median of a figure for each workload that has it with a system.
fn by_workload(
    runs: &Runs,
    system: &str,
    figure: impl Fn(&[f64], &[f64], &[f64]) -> Option<f64>,
) -> Vec<(String, f64)> {
    let cells = runs.cells(["workload", "system"]).into_iter().filter(|(key, _)| key[1] == system);
    let value = |([workload, _], lines): ([String; 2], Vec<&serde_json::Value>)| {
        let [ready, exec, bytes] = ["ready", "exec", "bytes"].map(|field| figures(&lines, field));
        Some((workload, figure(&ready, &exec, &bytes)?))
    };
    cells.filter_map(value).collect()
}

fn values(pairs: &[(String, f64)]) -> Vec<f64> {
    pairs.iter().map(|(_, value)| *value).collect()
}

/// For each workload the first figure divided by the second.
pub(super) fn quotients(of: &[(String, f64)], by: &[(String, f64)]) -> Vec<f64> {
    let other = |workload: &str| by.iter().find(|(found, _)| found == workload).map(|(_, value)| *value);
    of.iter().filter_map(|(workload, value)| Some(value / other(workload).filter(|by| *by > 0.0)?)).collect()
}

/// The time until a container is ready, by workload.
pub(super) fn ready(runs: &Runs, system: &str) -> Vec<(String, f64)> {
    by_workload(runs, system, |ready, _, _| median(ready))
}

/// The time until the first process of the container runs.
fn pull(runs: &Runs, system: &str) -> Vec<(String, f64)> {
    by_workload(runs, system, |_, exec, _| median(exec))
}

/// A figure of the image of each workload.
fn of_images(runs: &Runs, field: &'static str) -> Vec<(String, f64)> {
    let cells = runs.cells(["image of", field]);
    cells.into_iter().filter_map(|([workload, figure], _)| Some((workload, figure.parse().ok()?))).collect()
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    if ready(runs, "podman").is_empty() || ready(runs, "tarpon-index").is_empty() {
        return Vec::new();
    }
    vec![phases(runs), by_size(runs)]
}

/// A row: the name, a figure of each system, the paper's.
fn row(name: &str, figures: [Option<f64>; 3], digits: usize, paper: [&str; 2]) -> Vec<String> {
    let figures = figures.map(|figure| shown(figure, digits));
    [&[name.to_owned()], &figures[..], &paper.map(str::to_owned)].concat()
}

fn phases(runs: &Runs) -> PaperTable {
    const COLD: [&str; 3] = ["podman", "tarpon-index", "tarpon-pack"];
    let pulled = COLD.map(|system| pull(runs, system));
    let total = COLD.map(|system| ready(runs, system));
    let ran: Vec<Vec<(String, f64)>> =
        total.iter().zip(&pulled).map(|(total, pulled)| difference(total, pulled)).collect();
    let med = |pairs: &[(String, f64)]| median(&values(pairs));
    let fast = COLD.map(|system| median(&quotients(&total[0], &ready(runs, system))));
    let share = [0, 1, 2].map(|at| median(&quotients(&pulled[at], &total[at])).map(|share| share * 100.0));
    let bytes = COLD.map(|system| by_workload(runs, system, |_, _, bytes| median(bytes)));
    let read =
        [0, 1, 2].map(|at| median(&quotients(&bytes[at], &of_images(runs, "compressed"))).map(|share| share * 100.0));
    let needed = median(&quotients(&of_images(runs, "read"), &of_images(runs, "unpacked"))).map(|share| share * 100.0);
    let again = ["podman-warm", "tarpon-warm"].map(|system| med(&ready(runs, system)));
    let rows = [
        row("pull: until the first process runs, s", [0, 1, 2].map(|at| med(&pulled[at])), 2, ["16", ""]),
        row("run: from there until it is ready, s", [0, 1, 2].map(|at| med(&ran[at])), 2, ["0.97", ""]),
        row("pull as a part of the start, %", share, 0, ["76", ""]),
        row("deployment: pull and run, s", [0, 1, 2].map(|at| med(&total[at])), 2, ["", ""]),
        row("deployment, times as fast", fast, 1, ["1", "5.3"]),
        row("bytes read until ready, % of the unpacked image", [needed; 3], 1, ["6.4", ""]),
        row("bytes fetched, % of the compressed image", read, 1, ["", ""]),
        row("again on the same host, cold page cache, s", [again[0], None, again[1]], 2, ["0.67", "1.71"]),
    ];
    let count = total[0].len();
    let number = most_runs(runs, ["workload", "system"], |_| true);
    PaperTable {
        title: "Slacker (FAST 2016): pull and run".to_owned(),
        about: format!(
            "Medians over {count} images (the paper: 57) of {}, over a link of {LINK}; “times as fast” is the median of the images' \
             ratios. The bytes read are those of the recorded start. The \
             paper's figures are of sections 4.1, 4.2, 6.1 and 6.3, of Docker with AUFS, and of Slacker. “Again” is with the page \
             cache dropped here, and right after the first run in the paper.",
            medians(number)
        ),
        table: table(
            &["", ">Podman", ">tarpon, index", ">tarpon, boot pack", ">paper: Docker", ">paper: Slacker"],
            &rows,
        ),
    }
}

fn difference(of: &[(String, f64)], less: &[(String, f64)]) -> Vec<(String, f64)> {
    let other = |workload: &str| less.iter().find(|(found, _)| found == workload).map(|(_, value)| *value);
    of.iter().filter_map(|(workload, value)| Some((workload.clone(), value - other(workload)?))).collect()
}

/// Groups of images by compressed size, in MB: at least this much, less than the next.
const GROUPS: [f64; 5] = [0.0, 35.0, 50.0, 75.0, 100.0];

fn by_size(runs: &Runs) -> PaperTable {
    let sizes = of_images(runs, "compressed");
    let mut rows = Vec::new();
    for (place, least) in GROUPS.iter().enumerate() {
        let most = GROUPS.get(place + 1).copied().unwrap_or(f64::INFINITY);
        let inside: Vec<&String> = sizes
            .iter()
            .filter(|(_, size)| (*least..most).contains(&(size / 1e6)))
            .map(|(workload, _)| workload)
            .collect();
        let of = |system: &str| -> Vec<f64> {
            ready(runs, system).into_iter().filter(|(workload, _)| inside.contains(&workload)).map(|(_, s)| s).collect()
        };
        let Some(podman) = median(&of("podman")) else { continue };
        let range = if most.is_finite() { format!("{least:.0} to {most:.0}") } else { format!("{least:.0} and more") };
        let cell = |system: &str| {
            let of = of(system);
            let range = spread(&of).map_or_else(String::new, |(least, most)| format!(" ({least:.2} to {most:.2})"));
            shown(median(&of), 2) + &range
        };
        rows.push(vec![
            range,
            inside.len().to_string(),
            format!("{podman:.2}"),
            cell("tarpon-index"),
            cell("tarpon-pack"),
        ]);
    }
    PaperTable {
        title: "Slacker (FAST 2016): time to ready by size of the image".to_owned(),
        about: "Seconds, medians of the images of each size, and the fastest and slowest image. In the paper (section 6.4) 32 images \
                started at once with Slacker in at most about 2 s, whatever their size."
            .to_owned(),
        table: table(&["compressed MB", ">images", ">Podman", ">tarpon, index", ">tarpon, boot pack"], &rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, f64)]) -> Vec<(String, f64)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn ratios_are_of_the_same_image() {
        let (of, by) = (pairs(&[("a", 6.0), ("b", 4.0), ("c", 1.0)]), pairs(&[("b", 2.0), ("a", 2.0), ("d", 1.0)]));
        assert_eq!(quotients(&of, &by), [3.0, 2.0]);
        assert_eq!(difference(&of, &by), pairs(&[("a", 4.0), ("b", 2.0)]));
    }

    #[test]
    fn a_table_has_the_medians_of_the_images() {
        let start = |workload: &str, system: &str, exec: f64, ready: f64| {
            format!(
                "{{\"link\":\"l\",\"workload\":\"{workload}\",\"system\":\"{system}\",\"number\":1,\"exec\":{exec},\"ready\":{ready},\"bytes\":1000000}}\n"
            )
        };
        let text = [
            "{\"machine\":{}}\n{\"image of\":\"a\",\"compressed\":40000000}\n{\"image of\":\"b\",\"compressed\":80000000}\n".to_owned(),
            start("a", "podman", 3.0, 4.0),
            start("b", "podman", 6.0, 8.0),
            start("a", "tarpon-index", 0.5, 1.0),
            start("b", "tarpon-index", 1.0, 4.0),
        ]
        .concat();
        let tables = tables(&Runs::parse(&text).unwrap());
        assert!(tables[0].table.contains("| deployment: pull and run, s | 6.00 | 2.50 |"), "{}", tables[0].table);
        assert!(tables[0].table.contains("| deployment, times as fast | 1.0 | 3.0 |"), "{}", tables[0].table);
        assert!(tables[1].table.contains("| 35 to 50 | 1 | 4.00 | 1.00 (1.00 to 1.00) |"), "{}", tables[1].table);
    }
}
