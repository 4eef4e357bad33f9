//! A group of horizontal bars for each of several things, a bar for each series.

use super::axis::{Axis, Unit};
use super::{Anchor, Canvas, LINE, colour, width};

const WIDTH: f64 = 860.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;
const TOP: f64 = 38.0;
const MARGIN: f64 = 16.0;

/// One bar.
pub(in crate::bench) struct Bar {
    pub(in crate::bench) series: String,
    pub(in crate::bench) value: f64,
    /// The least and the most of what the value is the median of.
    pub(in crate::bench) range: Option<(f64, f64)>,
}

/// The bars of one thing.
pub(in crate::bench) struct Group {
    pub(in crate::bench) name: String,
    pub(in crate::bench) bars: Vec<Bar>,
}

/// What the picture is of.
pub(in crate::bench) struct Bars {
    pub(in crate::bench) title: String,
    pub(in crate::bench) unit: Unit,
    pub(in crate::bench) groups: Vec<Group>,
    /// A value to compare with, marked by a line.
    pub(in crate::bench) mark: Option<f64>,
}

impl Bars {
    /// The picture, or none if there is nothing in it.
    pub(in crate::bench) fn draw(&self) -> Option<String> {
        let all = || self.groups.iter().flat_map(|group| &group.bars);
        all().next()?;
        let mut series: Vec<String> = Vec::new();
        for bar in all().filter(|bar| bar.value.is_finite()) {
            if !series.contains(&bar.series) {
                series.push(bar.series.clone());
            }
        }
        let mut canvas = Canvas::default();
        let top = TOP + canvas.legend(&series, MARGIN, WIDTH - MARGIN, TOP) + 10.0;
        let left = MARGIN + 8.0 + self.groups.iter().map(|group| width(&group.name)).fold(0.0, f64::max);
        let ends = all().map(|bar| bar.range.map_or(bar.value, |(_, most)| most.max(bar.value)));
        let most = ends.chain(self.mark).fold(0.0, f64::max);
        // Room at the right for the figure of the longest bar.
        let right = WIDTH - MARGIN - width(&self.unit.show(1.234)) - 10.0;
        let axis = Axis::linear(0.0, if most > 0.0 { most } else { 1.0 }, left, right);
        let height: f64 = self.groups.iter().map(|group| group.bars.len() as f64 * BAR + GAP).sum();
        for tick in axis.ticks(6) {
            let x = axis.place(tick);
            canvas.line((x, top - 4.0), (x, top + height - GAP + 4.0), "rule");
            canvas.text(x, top + height + LINE - 8.0, Anchor::Middle, "faint", &self.unit.show(tick));
        }
        let mut y = top;
        for group in &self.groups {
            let begin = y;
            for bar in &group.bars {
                let place = series.iter().position(|name| *name == bar.series).unwrap_or(0);
                let end = axis.place(bar.value);
                canvas.rectangle(left, y, (end - left).max(1.0), BAR - 3.0, colour(&bar.series, place));
                let mut behind = end;
                if let Some((least, most)) = bar.range.filter(|(least, most)| most > least) {
                    let middle = y + (BAR - 3.0) / 2.0;
                    canvas.line((axis.place(least), middle), (axis.place(most), middle), "mark");
                    behind = behind.max(axis.place(most));
                }
                canvas.text(behind + 5.0, y + BAR - 5.0, Anchor::Start, "ink", &self.unit.show(bar.value));
                y += BAR;
            }
            canvas.text(left - 8.0, f64::midpoint(begin, y) + 3.0, Anchor::End, "ink", &group.name);
            y += GAP;
        }
        if let Some(mark) = self.mark {
            let x = axis.place(mark);
            canvas.line((x, top - 4.0), (x, top + height - GAP + 4.0), "mark");
        }
        Some(canvas.finish(&self.title, WIDTH, top + height + LINE + 6.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[(&str, f64)]) -> Bars {
        let bar = |(series, value): &(&str, f64)| Bar { series: (*series).to_owned(), value: *value, range: None };
        let group = Group { name: "workload".to_owned(), bars: values.iter().map(bar).collect() };
        Bars { title: "t".to_owned(), unit: Unit::Seconds, groups: vec![group], mark: None }
    }

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let picture = bars(&[("podman", 4.0), ("tarpon-pack", 1.0)]).draw().unwrap();
        let length = |series: &str| -> f64 {
            let (_, rest) = picture.split_once("height='12.0' fill='").unwrap();
            let _ = rest;
            let end = picture.rfind(&format!("height='12.0' fill='{}'", colour(series, 0))).unwrap();
            let (_, width) = picture[..end].rsplit_once("width='").unwrap();
            width.trim_end().trim_end_matches('\'').parse().unwrap()
        };
        assert!((length("podman") / length("tarpon-pack") - 4.0).abs() < 0.01, "{picture}");
        assert!(picture.contains(">4 s<") && picture.contains(">1 s<"), "{picture}");
    }

    #[test]
    fn nothing_is_no_picture() {
        assert!(bars(&[]).draw().is_none());
    }
}
