//! Medians of one link as a picture: a group of bars for each workload, a bar for each system.

use std::fmt::Write;

use super::report::Cells;

const WIDTH: f64 = 820.0;
const LEFT: f64 = 130.0;
/// Room at the right for the longest bar's figure.
const RIGHT: f64 = 60.0;
const TOP: f64 = 76.0;
const BAR: f64 = 15.0;
const GAP: f64 = 16.0;

/// A colour for each system that is known, in the order of the legend; told apart also by those who see no red or green.
const SYSTEMS: [(&str, &str, &str); 6] = [
    ("podman", "podman pull + run", "#7a7a7a"),
    ("tarpon-streamed", "tarpon, nothing prepared", "#c9a227"),
    ("tarpon-index", "tarpon, index", "#56b4e9"),
    ("tarpon-pack", "tarpon, index and boot pack", "#0072b2"),
    ("tarpon-pack-fuse", "the same in mode fuse", "#8da0cb"),
    ("tarpon-warm", "tarpon, warm store", "#009e73"),
];

/// The picture, or none if nothing was measured on this link.
pub(super) fn chart(cells: &Cells<'_>, link: &str) -> Option<String> {
    let workloads = cells.workloads(link);
    let shown: Vec<_> = SYSTEMS
        .iter()
        .filter(|(system, ..)| workloads.iter().any(|w| cells.ready(link, w, system).is_some()))
        .collect();
    let medians = workloads.iter().flat_map(|w| shown.iter().filter_map(|(system, ..)| cells.ready(link, w, system)));
    let longest = medians.reduce(f64::max)?;
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    let mut bars = String::new();
    let mut y = TOP;
    for workload in &workloads {
        let begin = y;
        for (system, _, colour) in &shown {
            let Some(ready) = cells.ready(link, workload, system) else { continue };
            let (length, middle) = (ready * scale, y + BAR - 4.0);
            // Writing to a string cannot fail.
            let _ = write!(
                bars,
                "<rect x='{LEFT}' y='{y}' width='{length:.1}' height='{:.0}' fill='{colour}'/>\
                 <text x='{:.1}' y='{middle}'>{ready:.2} s</text>",
                BAR - 2.0,
                LEFT + length + 5.0,
            );
            y += BAR;
        }
        let middle = f64::midpoint(begin, y) + 4.0;
        let _ = write!(bars, "<text x='{}' y='{middle:.1}' text-anchor='end'>{workload}</text>", LEFT - 8.0);
        y += GAP;
    }
    let mut legend = String::new();
    let mut x = LEFT;
    for (_, words, colour) in &shown {
        let _ = write!(
            legend,
            "<rect x='{x:.0}' y='42' width='12' height='12' fill='{colour}'/><text x='{:.0}' y='52'>{words}</text>",
            x + 17.0
        );
        // Letters of this size are about six wide.
        x += 34.0 + 6.1 * f64::from(u32::try_from(words.len()).unwrap_or(0));
    }
    let title = format!("Seconds from nothing local to ready, {} (medians)", link.replace(',', ", "));
    Some(format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{y}' viewBox='0 0 {WIDTH} {y}' \
         font-family='sans-serif' font-size='12' role='img' aria-label='{title}'>\
         <rect width='100%' height='100%' fill='white'/>\
         <text x='{LEFT}' y='26' font-size='15' font-weight='bold'>{title}</text>{legend}{bars}</svg>\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::super::report::{Cells, parse};
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_median_and_what_was_not_measured_is_not_drawn() {
        let lines = parse(
            r#"{"link": "l", "workload": "w", "system": "podman", "ready": 4.0}
{"link": "l", "workload": "w", "system": "tarpon-pack", "ready": 1.0}
{"link": "l", "workload": "v", "system": "tarpon-pack", "ready": 2.0}
"#,
        )
        .unwrap();
        let cells = Cells::of(&lines);
        let picture = chart(&cells, "l").unwrap();
        for (colour, length) in [("#7a7a7a", "630.0"), ("#0072b2", "157.5"), ("#0072b2", "315.0")] {
            assert!(picture.contains(&format!("width='{length}' height='13' fill='{colour}'")), "{picture}");
        }
        assert!(!picture.contains("warm") && chart(&cells, "other").is_none());
    }
}
