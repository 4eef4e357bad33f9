//! Wharf (Zheng et al., SoCC 2018): hosts that pull one image at once.

use std::ffi::OsString;

use anyhow::Result;

use super::options::parsed;
use super::output::{PaperTable, medians, most_runs, shown, table};
use super::setting::Setting;
use crate::runs::{Runs, figures};
use crate::scale::{self, PULLS};
use crate::stats::median;

/// The link of all hosts to the registry: that of the paper's slower experiment.
const LINK: &str = "100mbit,10ms";

/// Numbers of hosts, and those of a quick run.
const HOSTS: [&str; 2] = ["1,10", "1,2"];

/// The image: that of the workload of this id.
const WORKLOAD: &str = "redis";

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    let words = ["--only", "hosts", "--pull", "--forms", "gzip", "--engines", "none,folder", "--link", LINK];
    let hosts = HOSTS[usize::from(setting.quick)];
    let words = words.into_iter().chain(["--workload", WORKLOAD, "--sizes", hosts]).map(OsString::from);
    scale::measure(&parsed(words.chain(setting.words()))?).map(drop)
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let cells: Vec<_> = runs.cells(["axis", "size", "system"]).into_iter().filter(|(key, _)| key[0] == PULLS).collect();
    let seconds = |size: &str, system: &str| {
        let (_, lines) = cells.iter().find(|(key, _)| key[1] == size && key[2] == system)?;
        median(&figures(lines, "seconds"))
    };
    let rows: Vec<Vec<String>> = cells
        .iter()
        .map(|([_, size, system], lines)| {
            let of = |field: &str| median(&figures(lines, field));
            let fast = seconds(size, "podman").zip(of("seconds")).map(|(podman, its)| podman / its);
            let paper = match (size.as_str(), system.as_str()) {
                ("10", "podman") => "885 s (Docker)",
                ("10", system) if system.ends_with("tier in a folder") => "118 s, 7.5 times as fast (Wharf)",
                _ => "",
            };
            let cells = [shown(of("seconds"), 2), shown(of("bytes").map(|bytes| bytes / 1e6), 0), shown(fast, 1)];
            [&[size.clone(), system.clone()], &cells[..], &[paper.to_owned()]].concat()
        })
        .collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let number = most_runs(runs, ["axis", "size", "system"], |key| key[0] == PULLS);
    vec![PaperTable {
        title: "Wharf (SoCC 2018): hosts that pull one image at once".to_owned(),
        about: format!(
            "Seconds until the last host has the whole image, and what all of them fetched, over one link of {LINK} to the registry; {}. A \
             host is a network namespace with a store of its own, all on two cores; the tier is a folder on the same disk. In the paper (figures \
             at 100 Mbit/s) 10 virtual machines pull 2 GB in 20 layers, and share them over NFS.",
            medians(number)
        ),
        table: table(&[">hosts", "", ">seconds", ">MB from the registry", ">times as fast as Podman", "paper"], &rows),
    }]
}
