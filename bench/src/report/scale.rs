//! Curves of the cost as a quantity grows.

use super::section::{Part, Picture, Section};
use super::slower::Contest;
use crate::chart::axis::Unit;
use crate::chart::lines::{Curve, Lines};
use crate::runs::{Runs, figures};
use crate::scale::table;
use crate::stats::median;

/// Measured fields, their names and units.
const FIGURES: [(&str, &str, Unit); 8] = [
    ("seconds", "seconds", Unit::Seconds),
    ("median", "seconds until half of them are ready", Unit::Seconds),
    ("resident", "memory of the server, resident", Unit::Bytes),
    ("proportional", "memory of the server, shared pages divided", Unit::Bytes),
    ("client_peak", "most memory of the client", Unit::Bytes),
    ("descriptors", "descriptors of the server", Unit::Count),
    ("bytes", "bytes over the link, in all", Unit::Bytes),
    ("between", "bytes of the hosts among themselves and with the link, in all", Unit::Bytes),
];

const CONTEST: Contest<3> = Contest {
    fields: ["axis", "size", "system"],
    figure: "seconds",
    competes: |ours, theirs| ours.starts_with("tarpon") && theirs.ends_with("overlayfs"),
};

pub(super) fn section(runs: &Runs) -> Section {
    let mut parts = Vec::new();
    for axis in runs.values("axis") {
        let draw = |(field, name, unit): &(&'static str, &'static str, Unit)| {
            lines(runs, &axis, field, (name, *unit)).draw().map(Picture::inside)
        };
        parts.push(Part::Pictures(FIGURES.iter().filter_map(draw).collect()));
    }
    parts.extend(CONTEST.parts(runs));
    parts.push(Part::LongTable("Medians of all runs", table(runs)));
    Section { title: "Scale: what it costs when there is more of it", parts }
}

fn lines(runs: &Runs, axis: &str, field: &str, up: (&'static str, Unit)) -> Lines {
    let mut curves: Vec<Curve> = Vec::new();
    for ([found, size, system], lines) in runs.cells(["axis", "size", "system"]) {
        let (Ok(size), Some(value)) = (size.parse::<f64>(), median(&figures(&lines, field))) else { continue };
        if found != axis {
            continue;
        }
        match curves.iter_mut().find(|curve| curve.series == system) {
            Some(curve) => curve.points.push((size, value)),
            None => curves.push(Curve { series: system, points: vec![(size, value)] }),
        }
    }
    // A figure that was measured only at the end has no curve; the table has it.
    curves.retain(|curve| curve.points.len() > 1);
    for curve in &mut curves {
        curve.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    let across = across(axis);
    let title = format!("{}: {}", across.0, up.0);
    Lines { title, across, up, curves, steps: false, size: (560.0, 330.0) }
}

/// Caption and unit of the growing quantity.
fn across(axis: &str) -> (&'static str, Unit) {
    match axis {
        "layers" => ("Layers of the image", Unit::Count),
        "files" => ("Files of the image", Unit::Count),
        "bytes" => ("Bytes of the image", Unit::Bytes),
        "mounts" => ("Mounts of one image", Unit::Count),
        "containers" => ("Containers started at once", Unit::Count),
        "hosts" => ("Hosts that start at once", Unit::Count),
        "pulls" => ("Hosts that pull at once", Unit::Count),
        _ => ("First starts at once", Unit::Count),
    }
}
