//! Curves: growth, and distributions of runs.

use super::axis::{Axis, Unit};
use super::canvas::{Anchor, Canvas, LINE, tenths, width};
use super::colours::colour;

const TOP: f64 = 38.0;
const MARGIN: f64 = 16.0;

/// One curve.
pub(crate) struct Curve {
    pub(crate) series: String,
    /// Ordered by the first coordinate.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Contents of the picture.
pub(crate) struct Lines {
    pub(crate) title: String,
    /// Captions and units of the horizontal and the vertical axis.
    pub(crate) across: (&'static str, Unit),
    pub(crate) up: (&'static str, Unit),
    pub(crate) curves: Vec<Curve>,
    /// Whether values are constant up to the next one, as in a distribution.
    pub(crate) steps: bool,
    pub(crate) size: (f64, f64),
}

impl Lines {
    /// The picture, or `None` if it would be empty.
    pub(crate) fn draw(&self) -> Option<String> {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        points().next()?;
        let (wide, high) = self.size;
        let mut canvas = Canvas::default();
        let names: Vec<_> = self.curves.iter().map(|curve| (curve.series.clone(), curve.series.clone())).collect();
        let top = TOP + canvas.legend(&names, MARGIN, wide - MARGIN, TOP) + 14.0 + LINE;
        let bottom = high - MARGIN - 2.0 * LINE;
        let up = match self.up.1 {
            Unit::Share => Axis::linear(0.0, 1.0, bottom, top),
            _ => Axis::over(points().map(|(_, y)| *y), bottom, top),
        };
        let count = if bottom - top > 200.0 { 6 } else { 4 };
        let ticks = up.ticks(count);
        let labels = ticks.iter().map(|tick| width(&self.up.1.show(*tick))).fold(0.0, f64::max);
        let left = MARGIN + labels + 8.0;
        let right = wide - MARGIN - 22.0;
        let across = Axis::over(points().map(|(x, _)| *x), left, right);
        for tick in ticks {
            let y = up.place(tick);
            canvas.line((left, y), (right, y), "rule");
            canvas.text(left - 6.0, y + 4.0, Anchor::End, "faint", &self.up.1.show(tick));
        }
        for x in self.bottom_ticks(&across) {
            canvas.line((across.place(x), bottom), (across.place(x), bottom + 4.0), "rule");
            canvas.text(across.place(x), bottom + LINE, Anchor::Middle, "faint", &self.across.1.show(x));
        }
        canvas.text(MARGIN, top - 12.0, Anchor::Start, "faint", &up.caption(self.up.0));
        canvas.text(
            f64::midpoint(left, right),
            bottom + 2.0 * LINE,
            Anchor::Middle,
            "faint",
            &across.caption(self.across.0),
        );
        for (place, curve) in self.curves.iter().enumerate() {
            let points: Vec<_> = curve.points.iter().map(|(x, y)| (across.place(*x), up.place(*y))).collect();
            self.curve(&mut canvas, &points, colour(&curve.series, place), bottom);
        }
        Some(canvas.finish(&self.title, wide, high))
    }

    /// The measured values if they are few and far enough apart, else round ones.
    fn bottom_ticks(&self, across: &Axis) -> Vec<f64> {
        let mut values: Vec<f64> = self.curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let room = |pair: &[f64]| {
            let [a, b] = [pair[0], pair[1]].map(|value| width(&self.across.1.show(value)) / 2.0);
            across.place(pair[1]) - across.place(pair[0]) > a + b + 6.0
        };
        if !self.steps && values.windows(2).all(room) { values } else { across.ticks(5) }
    }

    fn curve(&self, canvas: &mut Canvas, points: &[(f64, f64)], colour: &str, bottom: f64) {
        let mut path = String::new();
        for (number, (x, y)) in points.iter().enumerate() {
            let [x, at] = [*x, *y].map(tenths);
            path.push_str(&match (number, self.steps) {
                (0, true) => format!("M{x},{}V{at}", tenths(bottom)),
                (_, true) => format!("H{x}V{at}"),
                (0, false) => format!("M{x},{at}"),
                (_, false) => format!("L{x},{at}"),
            });
        }
        canvas.add(format_args!("<path d='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"));
        if !self.steps {
            for (x, y) in points {
                let [x, y] = [*x, *y].map(tenths);
                canvas.add(format_args!("<circle cx='{x}' cy='{y}' r='3' fill='{colour}'/>"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(points: &[(f64, f64)], steps: bool) -> Lines {
        Lines {
            title: "t".to_owned(),
            across: ("mounts", Unit::Count),
            up: ("seconds", Unit::Seconds),
            curves: vec![Curve { series: "tarpon".to_owned(), points: points.to_vec() }],
            steps,
            size: (420.0, 260.0),
        }
    }

    #[test]
    fn what_was_measured_is_written_below_if_there_is_room() {
        let picture = lines(&[(1.0, 1.0), (10.0, 2.0), (100.0, 3.0)], false).draw().unwrap();
        for label in [">1<", ">10<", ">100<", ">mounts (logarithmic)<", ">seconds<"] {
            assert!(picture.contains(label), "{label}: {picture}");
        }
        assert_eq!(picture.matches("<circle").count(), 3);
        let crowded = lines(&[(100.0, 1.0), (101.0, 2.0), (102.0, 3.0)], false).draw().unwrap();
        assert!(!crowded.contains(">101<"), "{crowded}");
    }

    #[test]
    fn a_distribution_is_drawn_in_steps() {
        let picture = lines(&[(1.0, 0.5), (2.0, 1.0)], true).draw().unwrap();
        assert!(picture.contains('V') && !picture.contains("<circle"), "{picture}");
        assert!(lines(&[], true).draw().is_none());
    }
}
