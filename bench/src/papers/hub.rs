//! The study of Docker Hub (Zhao et al., TPDS 2020, first at CLUSTER 2019): sizes and copies of the files of images.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tarpon_harness::workloads::Workload;
use tarpon_harness::{process, registry};

use super::images::{self, TAG};
use super::output::{PaperTable, shown, table};
use super::setting::Setting;
use crate::runs::{Log, Runs};
use crate::store::BenchStore;

/// The field with the output of `tarpon inspect --stats`.
const FIELD: &str = "hub";

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    let mut workloads = images::workloads(setting)?;
    workloads.dedup_by(|one, other| one.image == other.image);
    let stats = stats(setting, &workloads)?;
    Log::append(&setting.file)?.add(&json!({FIELD: stats["totals"]}))
}

/// The figures of the images of workloads, as `tarpon inspect --stats` prints them.
pub(super) fn stats(setting: &Setting<'_>, workloads: &[Workload]) -> Result<Value> {
    let store = BenchStore::named(&setting.tarpon, "papers-hub");
    store.begin()?;
    let mut inspect = store.command();
    inspect.args(["inspect", "--quiet", "--stats", "--json", "--tls-verify=false"]);
    inspect.args(workloads.iter().map(|workload| format!("{}/{}:{TAG}", registry::address(), workload.image)));
    let printed = process::output(&mut inspect);
    store.remove()?;
    serde_json::from_str(&printed?).context("tarpon inspect --stats prints no JSON")
}

/// The bytes of its files that a recorded start read.
pub(super) fn touched(setting: &Setting<'_>, trace: &std::path::Path) -> Result<Option<u64>> {
    if !trace.exists() {
        return Ok(None);
    }
    let shown = process::output(Command::new(&setting.tarpon).args(["trace", "show", "--json"]).arg(trace))?;
    let shown: Value = serde_json::from_str(&shown).context("tarpon trace show prints no JSON")?;
    Ok(shown["touched_bytes"].as_u64())
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    let Some(totals) = runs.lines.iter().rev().map(|line| &line[FIELD]).find(|totals| totals.is_object()) else {
        return Vec::new();
    };
    let of = |field: &str| totals[field].as_f64();
    let ratio =
        |whole: &str, part: &str| of(whole).zip(of(part).filter(|part| *part > 0.0)).map(|(whole, part)| whole / part);
    let saved = |whole: &str, part: &str| ratio(part, whole).map(|kept| (1.0 - kept) * 100.0);
    let quantile = |field: &str, which: &str| totals[field][which].as_f64();
    let row = |name: &str, value: String, paper: &str| vec![name.to_owned(), value, paper.to_owned()];
    let rows = [
        row("images", shown(of("images"), 0), "355,319"),
        row("layers, distinct", shown(of("distinct_layers"), 0), "1,792,609"),
        row("files of distinct layers", shown(of("files"), 0), "5.28 · 10⁹"),
        row("layers of an image, median", shown(quantile("layers_of_an_image", "median"), 0), "8"),
        row(
            "compressed MB of a layer, 90 %",
            shown(quantile("compressed_of_a_layer", "p90").map(|b| b / 1e6), 0),
            "63",
        ),
        row("bytes of a file, median", shown(quantile("bytes_of_a_file", "median"), 0), "below 4 KB"),
        row("bytes of a file, 90 %", shown(quantile("bytes_of_a_file", "p90"), 0), "below 26 KB"),
        row("unpacked to compressed bytes of layers", shown(ratio("distinct_bytes", "distinct_compressed"), 1), "3.5"),
        row(
            "sharing of layers: bytes of all to distinct ones",
            shown(ratio("compressed", "distinct_compressed"), 1),
            "1.8",
        ),
        row("files that are copies, %", shown(saved("files", "contents"), 1), "96.8"),
        row("files to distinct contents", shown(ratio("files", "contents"), 1), "31.5"),
        row("bytes of layers to those of distinct contents", shown(ratio("distinct_bytes", "content_bytes"), 1), "6.9"),
        row(
            "saved by a store of contents, % of unpacked layers",
            shown(saved("distinct_bytes", "content_bytes"), 1),
            "",
        ),
        row("the same, % of unpacked images", shown(saved("bytes", "content_bytes"), 1), ""),
    ];
    vec![PaperTable {
        title: "Docker Hub study (TPDS 2020): sizes and copies".to_owned(),
        about: "From `tarpon inspect --stats` over the images of the other experiments, which share one distribution. Copies become more with \
                more images: in the paper the factor of bytes grows from 1.9 for 1,000 layers to 6.9 for all."
            .to_owned(),
        table: table(&["", ">here", ">paper"], &rows),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_savings_are_computed_from_the_last_totals() {
        let line = |files: u32| {
            format!(
                "{{\"hub\":{{\"files\":{files},\"contents\":25,\"distinct_bytes\":60,\"content_bytes\":30,\"bytes\":120,\"images\":2}}}}\n"
            )
        };
        let runs = Runs::parse(&["{\"machine\":{}}\n".to_owned(), line(50), line(100)].concat()).unwrap();
        let table = &tables(&runs)[0].table;
        for row in [
            "| files that are copies, % | 75.0 | 96.8 |",
            "| files to distinct contents | 4.0 | 31.5 |",
            "| bytes of layers to those of distinct contents | 2.0 | 6.9 |",
            "| the same, % of unpacked images | 75.0 |  |",
        ] {
            assert!(table.contains(row), "{table}");
        }
        assert!(tables(&Runs::parse("{\"machine\":{}}\n").unwrap()).is_empty());
    }
}
