//! Simulated fleets: how long they take, and what the registry sends.

use super::section::{Part, Picture, Section};
use crate::chart::axis::Unit;
use crate::chart::lines::{Curve, Lines};
use crate::runs::{Runs, figures};
use crate::simulate::{calibration, fleet};
use crate::stats::median;

const ABOUT: &str = "Simulated, not measured: the planner is the real one, one for each host; network, caches and processors are modelled. For \
                     comparison: DADI (USENIX ATC 2020) started 10,000 containers on 1,000 hosts in 4 s, of an image and on hosts of its own.";

/// Fields, their names and units.
const FIGURES: [(&str, &str, Unit); 3] = [
    ("half", "seconds until half of the containers are ready", Unit::Seconds),
    ("seconds", "seconds until all containers are ready", Unit::Seconds),
    ("bytes", "bytes that the registry sends", Unit::Bytes),
];

pub(super) fn section(runs: &Runs) -> Section {
    let pictures = FIGURES.iter().filter_map(|figure| lines(runs, figure).draw().map(Picture::inside)).collect();
    let parts = vec![
        Part::Text(ABOUT.to_owned()),
        Part::Pictures(pictures),
        Part::LongTable("All fleets", fleet::table(runs)),
        Part::LongTable("The simulation of the measured hosts, and the measurement", calibration::table(runs)),
    ];
    Section { title: "Fleets: simulated starts on up to 10,000 hosts", parts }
}

fn lines(runs: &Runs, (field, name, unit): &(&'static str, &'static str, Unit)) -> Lines {
    let mut curves: Vec<Curve> = Vec::new();
    for ([hosts, system], lines) in runs.cells(["hosts", "system"]) {
        let (Ok(hosts), Some(value)) = (hosts.parse::<f64>(), median(&figures(&lines, field))) else { continue };
        match curves.iter_mut().find(|curve| curve.series == system) {
            Some(curve) => curve.points.push((hosts, value)),
            None => curves.push(Curve { series: system, points: vec![(hosts, value)] }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let across = ("Hosts that start at once", Unit::Count);
    Lines { title: (*name).to_owned(), across, up: (*name, *unit), curves, steps: false, size: (560.0, 330.0) }
}
