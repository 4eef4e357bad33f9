//! DADI (Li et al., USENIX ATC 2020): replayed traces, many containers of one image, images of many layers.

use std::ffi::OsString;

use anyhow::Result;

use super::options::parsed;
use super::output::{PaperTable, medians, most_runs, shown, table};
use super::setting::{LINK, Paper, Setting};
use super::slacker::{self, ready};
use crate::runs::{Runs, figures};
use crate::scale;
use crate::stats::{median, spread};

/// The systems between which a trace is compared. Slacker's experiment has them too.
const SYSTEMS: [&str; 3] = ["tarpon-index", "tarpon-pack", "tarpon-warm"];

/// Containers that start at once, and layers of an image, and those of a quick run.
const CONTAINERS: [&str; 2] = ["1,4,16,32,64", "1,4"];
const LAYERS: [&str; 2] = ["5,10,20,40,60", "5,10"];

pub(super) fn run(setting: &Setting<'_>) -> Result<()> {
    if !setting.has(Paper::Slacker) {
        slacker::starts(setting, &SYSTEMS)?;
    }
    for (axis, sizes) in [("containers", CONTAINERS), ("layers", LAYERS)] {
        let words = ["--only", axis, "--sizes", sizes[usize::from(setting.quick)]].map(OsString::from);
        scale::measure(&parsed(words.into_iter().chain(setting.words()))?)?;
    }
    Ok(())
}

pub(super) fn tables(runs: &Runs) -> Vec<PaperTable> {
    [traces(runs), containers(runs), layers(runs)].into_iter().flatten().collect()
}

/// The part of the time between a cold and a warm start that a trace saves.
fn removed(cold: f64, traced: f64, warm: f64) -> Option<f64> {
    (cold > warm).then(|| (cold - traced) / (cold - warm) * 100.0)
}

fn traces(runs: &Runs) -> Option<PaperTable> {
    let [cold, traced, warm] = SYSTEMS.map(|system| ready(runs, system));
    let of =
        |pairs: &[(String, f64)], workload: &str| pairs.iter().find(|(found, _)| found == workload).map(|(_, s)| *s);
    let parts: Vec<f64> = cold
        .iter()
        .filter_map(|(workload, cold)| removed(*cold, of(&traced, workload)?, of(&warm, workload)?))
        .collect();
    let (least, most) = spread(&parts)?;
    let seconds = |pairs: &[(String, f64)]| shown(median(&pairs.iter().map(|(_, s)| *s).collect::<Vec<_>>()), 2);
    let share = format!("{} ({least:.0} to {most:.0})", shown(median(&parts), 0));
    let number = most_runs(runs, ["workload", "system"], |key| SYSTEMS.contains(&key[1].as_str()));
    Some(PaperTable {
        title: "DADI (ATC 2020): a replayed trace against a warm start".to_owned(),
        about: format!(
            "Medians over {} images of {}, over a link of {LINK}. “Cold” is a start by an index, “traced” a start with a boot pack, and “warm” a \
             start from the store that the traced start left, with a cold page cache. The paper's figure is of section 5.2.",
            parts.len(),
            medians(number)
        ),
        table: table(
            &[">cold, s", ">traced, s", ">warm, s", ">% of the gap that the trace removes", ">paper"],
            &[vec![seconds(&cold), seconds(&traced), seconds(&warm), share, "95".to_owned()]],
        ),
    })
}

/// The sizes of an axis, with the median of its seconds for each system.
fn by_size(runs: &Runs, axis: &str, system: &str) -> Vec<(u64, f64)> {
    let cells = runs.cells(["axis", "size", "system"]);
    let cell = |([found, size, its], lines): ([String; 3], Vec<&serde_json::Value>)| {
        if found != axis || its != system {
            return None;
        }
        Some((size.parse().ok()?, median(&figures(&lines, "seconds"))?))
    };
    let mut sizes: Vec<(u64, f64)> = cells.into_iter().filter_map(cell).collect();
    sizes.sort_by_key(|(size, _)| *size);
    sizes
}

fn containers(runs: &Runs) -> Option<PaperTable> {
    let [ours, plain] = ["tarpon run", "runc on overlayfs"].map(|system| by_size(runs, "containers", system));
    let rows: Vec<Vec<String>> = ours
        .iter()
        .map(|(size, seconds)| {
            let plain = plain.iter().find(|(other, _)| other == size).map(|(_, seconds)| *seconds);
            let paper = if *size <= 32 { "0.7" } else { "" };
            vec![size.to_string(), shown(plain, 2), shown(Some(*seconds), 2), paper.to_owned()]
        })
        .collect();
    let number = most_runs(runs, ["axis", "size", "system"], |key| key[0] == "containers");
    (!rows.is_empty()).then(|| PaperTable {
        title: "DADI (ATC 2020): containers started at once on a host".to_owned(),
        about: format!(
            "Seconds until the last of them runs its first command; {}. The image is local here, and both use the same runtime, on two \
             cores. The paper's figure (section 5.2) is of cold starts, from the registry.",
            medians(number)
        ),
        table: table(&[">containers", ">runc on overlayfs", ">tarpon run", ">paper: DADI, cold"], &rows),
    })
}

fn layers(runs: &Runs) -> Option<PaperTable> {
    let sizes = by_size(runs, "layers", "streamed");
    let row = |(size, seconds): &(u64, f64)| vec![size.to_string(), format!("{:.0}", seconds * 1e3)];
    let rows: Vec<Vec<String>> = sizes.iter().map(row).collect();
    let number = most_runs(runs, ["axis", "size", "system"], |key| key[0] == "layers");
    (!rows.is_empty()).then(|| PaperTable {
        title: "DADI (ATC 2020): layers of an image".to_owned(),
        about: format!(
            "Milliseconds of the first mount of an image with 100 files in each layer, from a local layout; {}. DADI merges the indexes of \
             all layers into one (section 3.1), so that reads do not depend on their number; tarpon merges their trees.",
            medians(number)
        ),
        table: table(&[">layers", ">first mount, ms"], &rows),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_is_as_fast_as_a_warm_start_removes_the_whole_gap() {
        assert_eq!(removed(5.0, 1.0, 1.0), Some(100.0));
        assert_eq!(removed(5.0, 2.0, 1.0), Some(75.0));
        assert_eq!(removed(1.0, 1.0, 1.0), None);
    }

    #[test]
    fn sizes_are_in_order_and_one_that_only_tarpon_has_is_shown() {
        let line = |axis: &str, size: u64, system: &str, seconds: f64| {
            format!("{{\"axis\":\"{axis}\",\"size\":{size},\"system\":\"{system}\",\"seconds\":{seconds}}}\n")
        };
        let text = [
            "{\"machine\":{}}\n".to_owned(),
            line("containers", 64, "tarpon run", 2.0),
            line("containers", 4, "tarpon run", 0.5),
            line("containers", 4, "runc on overlayfs", 0.4),
            line("layers", 5, "streamed", 0.05),
        ]
        .concat();
        let runs = Runs::parse(&text).unwrap();
        let tables = tables(&runs);
        assert!(tables[0].table.ends_with("| 4 | 0.40 | 0.50 | 0.7 |\n| 64 |  | 2.00 |  |\n"), "{}", tables[0].table);
        assert!(tables[1].table.ends_with("| 5 | 50 |\n"), "{}", tables[1].table);
    }
}
