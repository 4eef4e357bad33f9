//! Groups of horizontal bars, one bar per series.

use super::axis::{Axis, Unit};
use super::canvas::{Anchor, Canvas, LINE, width};
use super::colours::colour;

const WIDTH: f64 = 820.0;
const BAR: f64 = 15.0;
const GAP: f64 = 14.0;
const TOP: f64 = 38.0;
const MARGIN: f64 = 16.0;

/// One bar.
pub(crate) struct Bar {
    pub(crate) series: String,
    pub(crate) value: f64,
    /// Minimum and maximum of the runs whose median is the value.
    pub(crate) range: Option<(f64, f64)>,
    /// Text after the value.
    pub(crate) note: String,
}

/// The bars of one item.
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) bars: Vec<Bar>,
}

/// Adds a bar to the group of this name, which may be new.
pub(crate) fn add(groups: &mut Vec<Group>, name: &str, bar: Bar) {
    match groups.iter_mut().find(|group| group.name == name) {
        Some(group) => group.bars.push(bar),
        None => groups.push(Group { name: name.to_owned(), bars: vec![bar] }),
    }
}

/// The legend of bars whose series have the names to show, in the order of first appearance.
pub(crate) fn legend(groups: &[Group]) -> Vec<(String, String)> {
    let mut names: Vec<String> = Vec::new();
    for bar in groups.iter().flat_map(|group| &group.bars) {
        if !names.contains(&bar.series) {
            names.push(bar.series.clone());
        }
    }
    names.into_iter().map(|name| (name.clone(), name)).collect()
}

/// Contents of the picture.
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) unit: Unit,
    pub(crate) groups: Vec<Group>,
    /// A reference value, marked by a line.
    pub(crate) mark: Option<f64>,
    /// Series and their names; empty if the notes name them.
    pub(crate) legend: Vec<(String, String)>,
    /// Small text at the bottom, or empty.
    pub(crate) caption: String,
}

impl Bars {
    /// The picture, or `None` if it would be empty.
    pub(crate) fn draw(&self) -> Option<String> {
        self.bars().next()?;
        let mut canvas = Canvas::default();
        let legend = match self.legend.is_empty() {
            true => 0.0,
            false => canvas.legend(&self.legend, MARGIN, WIDTH - MARGIN, TOP),
        };
        let top = TOP + legend + 10.0;
        let left = MARGIN + 8.0 + self.groups.iter().map(|group| width(&group.name)).fold(0.0, f64::max);
        let axis = self.axis(left);
        let height: f64 = self.groups.iter().map(|group| group.bars.len() as f64 * BAR + GAP).sum();
        for tick in axis.ticks(6) {
            let x = axis.place(tick);
            canvas.line((x, top - 4.0), (x, top + height - GAP + 4.0), "rule");
            canvas.text(x, top + height + LINE - 8.0, Anchor::Middle, "faint", &self.unit.show(tick));
        }
        let mut y = top;
        for group in &self.groups {
            let middle = y + group.bars.len() as f64 * BAR / 2.0;
            canvas.text(left - 8.0, middle + 3.0, Anchor::End, "ink", &group.name);
            for bar in &group.bars {
                self.bar(&mut canvas, &axis, bar, y);
                y += BAR;
            }
            y += GAP;
        }
        if let Some(mark) = self.mark {
            let x = axis.place(mark);
            canvas.line((x, top - 4.0), (x, top + height - GAP + 4.0), "mark");
        }
        let mut bottom = top + height + LINE + 6.0;
        if !self.caption.is_empty() {
            bottom += canvas.caption(&self.caption, MARGIN, WIDTH - MARGIN, bottom) + 10.0;
        }
        Some(canvas.finish(&self.title, WIDTH, bottom))
    }

    fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.groups.iter().flat_map(|group| &group.bars)
    }

    /// An axis that leaves room for the text after each bar.
    fn axis(&self, left: f64) -> Axis {
        let most = self.bars().map(end).chain(self.mark).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let wide = |bar: &Bar| WIDTH - MARGIN - left - 5.0 - width(&self.words(bar));
        let fits = |bar: &Bar| wide(bar) * most / end(bar).max(most / 1e3);
        let right = self.bars().map(fits).fold(WIDTH - MARGIN - left - 20.0, f64::min);
        Axis::linear(0.0, most, left, left + right)
    }

    /// The text after a bar.
    fn words(&self, bar: &Bar) -> String {
        format!("{}  {}", self.unit.measured(bar.value), bar.note).trim_end().to_owned()
    }

    fn bar(&self, canvas: &mut Canvas, axis: &Axis, bar: &Bar, y: f64) {
        let place = self.legend.iter().position(|(series, _)| *series == bar.series).unwrap_or(0);
        let (left, long) = (axis.place(0.0), axis.place(bar.value) - axis.place(0.0));
        canvas.rectangle(left, y, long.max(1.0), BAR - 3.0, colour(&bar.series, place));
        if let Some((least, most)) = bar.range.filter(|(least, most)| most > least) {
            let middle = y + (BAR - 3.0) / 2.0;
            canvas.line((axis.place(least), middle), (axis.place(most), middle), "mark");
        }
        canvas.figure(axis.place(end(bar)) + 5.0, y + BAR - 5.0, &self.unit.measured(bar.value), &bar.note);
    }
}

/// The end of a bar including its range.
fn end(bar: &Bar) -> f64 {
    bar.range.map_or(bar.value, |(_, most)| most.max(bar.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(values: &[(&str, f64)]) -> Bars {
        let bar = |(series, value): &(&str, f64)| Bar {
            series: (*series).to_owned(),
            value: *value,
            range: None,
            note: format!("by {series}"),
        };
        let group = Group { name: "workload".to_owned(), bars: values.iter().map(bar).collect() };
        Bars {
            title: "t".to_owned(),
            unit: Unit::Seconds,
            groups: vec![group],
            mark: None,
            legend: Vec::new(),
            caption: "a date".to_owned(),
        }
    }

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let picture = bars(&[("podman", 4.0), ("tarpon-pack", 1.0)]).draw().unwrap();
        let length = |series: &str| -> f64 {
            let end = picture.rfind(&format!("height='12' fill='{}'", colour(series, 0))).unwrap();
            let (_, width) = picture[..end].rsplit_once("width='").unwrap();
            width.trim_end().trim_end_matches('\'').parse().unwrap()
        };
        assert!((length("podman") / length("tarpon-pack") - 4.0).abs() < 0.01, "{picture}");
        for words in [">4.00 s<", ">1.00 s<", ">by podman<", ">a date<"] {
            assert!(picture.contains(words), "{words}: {picture}");
        }
    }

    #[test]
    fn what_stands_behind_a_bar_is_in_the_picture() {
        let bars = bars(&[("podman", 4.0), ("something with a name that is rather long", 3.9)]);
        let axis = bars.axis(100.0);
        let ends = bars.bars().map(|bar| axis.place(bar.value) + 5.0 + width(&bars.words(bar)));
        assert!(ends.fold(0.0, f64::max) <= WIDTH - MARGIN + 0.1);
    }

    #[test]
    fn nothing_is_no_picture() {
        assert!(bars(&[]).draw().is_none());
    }
}
