//! One cold start: its phases, and below them every request, in the order of sending.

use super::axis::{Axis, Unit};
use super::canvas::{Anchor, Canvas, LINE, width};

const WIDTH: f64 = 860.0;
const TOP: f64 = 42.0;
/// Lines for the names of phases.
const NAMES: usize = 3;
const MARGIN: f64 = 16.0;
const PHASE: f64 = 20.0;
/// Maximum number of requests with a line of text each; if there are more, rows are thinner and have none.
const NAMED: usize = 30;
const ROW: f64 = 15.0;
/// Maximum height of rows without text.
const THIN: f64 = 4.0;
const TALL: f64 = 420.0;

/// A part of the start, until `end` seconds.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) begin: f64,
    pub(crate) end: f64,
}

/// A request: the time when it was sent, and when the first and the last bytes of its response arrived.
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) asked: f64,
    pub(crate) first: f64,
    pub(crate) last: f64,
    pub(crate) bytes: f64,
}

/// Contents of the picture.
pub(crate) struct Timeline {
    pub(crate) title: String,
    pub(crate) phases: Vec<Phase>,
    pub(crate) requests: Vec<Asked>,
}

/// The colour of a phase, the same in every picture.
fn colour(phase: &str) -> &'static str {
    match phase {
        "resolve" => "#1f6fc8",
        "manifest" => "#56b4e9",
        "pull" | "index" => "#00a37a",
        "first exec" => "#d55e00",
        "ready" => "#b279d1",
        _ => "#e69f00",
    }
}

/// The fraction of a row without the gap to the next one.
const FILLED: f64 = 0.85;
const WAITING: &str = "#b9c2cc";
const COMING: &str = "#1f78c8";

impl Timeline {
    /// The picture, or `None` if the start has no phases.
    pub(crate) fn draw(&self) -> Option<String> {
        let end = self.phases.last()?.end;
        let named = self.requests.len() <= NAMED;
        let left = MARGIN
            + if named { 8.0 + self.requests.iter().map(|r| width(&label(r))).fold(60.0, f64::max) } else { 68.0 };
        let axis = Axis::linear(0.0, end.max(0.001), left, WIDTH - MARGIN - 20.0);
        let row = if named { ROW } else { THIN.min(TALL / self.requests.len() as f64) };
        let first = TOP + NAMES as f64 * LINE + PHASE + 10.0;
        let bottom = first + row * self.requests.len() as f64 + 6.0;
        let mut canvas = Canvas::default();
        for tick in axis.ticks(8) {
            let x = axis.place(tick);
            canvas.line((x, TOP + NAMES as f64 * LINE), (x, bottom), "rule");
            canvas.text(x, bottom + LINE - 2.0, Anchor::Middle, "faint", &Unit::Seconds.show(tick));
        }
        self.phases(&mut canvas, &axis, left);
        self.requests(&mut canvas, &axis, first, row);
        if named {
            for (number, request) in self.requests.iter().enumerate() {
                let y = first + row * (number + 1) as f64 - 4.0;
                canvas.text(left - 8.0, y, Anchor::End, "faint", &label(request));
            }
        }
        let words = format!("{} requests; grey: asked, blue: the answer comes", self.requests.len());
        canvas.text(left, bottom + 2.0 * LINE, Anchor::Start, "faint", &words);
        Some(canvas.finish(&self.title, WIDTH, bottom + 2.0 * LINE + 12.0))
    }

    /// Draws each request in its own row.
    fn requests(&self, canvas: &mut Canvas, axis: &Axis, first: f64, row: f64) {
        let end = self.phases.last().map_or(0.0, |phase| phase.end);
        let rows = || {
            self.requests.iter().enumerate().map(|(number, request)| {
                let [asked, began, ended] =
                    [request.asked, request.first, request.last].map(|at| axis.place(at.min(end)));
                (asked, began, ended, first + row * (number as f64 + 0.5))
            })
        };
        canvas.strokes(rows().map(|(asked, began, _, y)| (asked, began.max(asked + 0.5), y)), row * FILLED, WAITING);
        canvas.strokes(rows().map(|(_, began, ended, y)| (began, ended.max(began + 1.0), y)), row * FILLED, COMING);
    }

    /// Draws the phases in a row, and their names above in several lines, because a short phase has no room for its own.
    fn phases(&self, canvas: &mut Canvas, axis: &Axis, left: f64) {
        let y = TOP + NAMES as f64 * LINE;
        canvas.text(left - 8.0, y + PHASE - 6.0, Anchor::End, "ink", "phases");
        let mut free = [left; NAMES];
        for phase in &self.phases {
            let (begin, end) = (axis.place(phase.begin), axis.place(phase.end));
            canvas.rectangle(begin, y, (end - begin).max(1.0), PHASE - 4.0, colour(phase.name));
            let words = format!("{} {}", phase.name, Unit::Seconds.show(phase.end - phase.begin));
            // The line in which the name is nearest to its phase, but within the picture.
            let line = (0..NAMES).min_by(|one, other| free[*one].total_cmp(&free[*other])).unwrap_or(0);
            let at = begin.max(free[line]).min(WIDTH - MARGIN - width(&words)).max(free[line]);
            canvas.rectangle(at, y - 13.0 - LINE * line as f64, 8.0, 8.0, colour(phase.name));
            canvas.text(at + 11.0, y - 5.0 - LINE * line as f64, Anchor::Start, "ink", &words);
            free[line] = at + 11.0 + width(&words) + 8.0;
        }
    }
}

fn label(request: &Asked) -> String {
    format!("{} {}", request.name, Unit::Bytes.show(request.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(requests: usize) -> Timeline {
        let asked = |number: usize| {
            let at = number as f64 / 100.0;
            Asked { name: format!("blobs/{number}"), asked: at, first: at + 0.1, last: at + 0.2, bytes: 5e6 }
        };
        let phase = |name, begin, end| Phase { name, begin, end };
        Timeline {
            title: "t".to_owned(),
            phases: vec![phase("manifest", 0.0, 0.1), phase("mount", 0.1, 0.11), phase("ready", 0.11, 1.0)],
            requests: (0..requests).map(asked).collect(),
        }
    }

    #[test]
    fn few_requests_are_named_and_many_are_not() {
        assert!(timeline(3).draw().unwrap().contains("blobs/2 5 MB"));
        assert!(!timeline(NAMED + 1).draw().unwrap().contains("blobs/2"));
    }

    #[test]
    fn names_of_phases_do_not_stand_on_each_other() {
        let picture = timeline(0).draw().unwrap();
        let place = |name: &str| -> (f64, f64) {
            let at = picture.find(&format!(">{name} ")).unwrap();
            let (_, tag) = picture[..at].rsplit_once("<text x='").unwrap();
            let mut parts = tag.split('\'');
            (parts.next().unwrap().parse().unwrap(), parts.nth(1).unwrap().parse().unwrap())
        };
        let (manifest, mount) = (place("manifest"), place("mount"));
        assert!(manifest.1 != mount.1 || mount.0 - manifest.0 > width("manifest 100 ms"), "{picture}");
    }

    #[test]
    fn names_of_phases_at_the_end_are_in_the_picture() {
        let names = ["resolve", "manifest", "pull", "unpack and mount", "first exec", "ready"];
        let ends = [0.01, 0.1, 9.0, 9.8, 9.9, 10.0];
        let mut begin = 0.0;
        let phase = |(name, end)| Phase { name, begin: std::mem::replace(&mut begin, end), end };
        let phases = names.into_iter().zip(ends).map(phase).collect();
        let picture = Timeline { phases, ..timeline(0) }.draw().unwrap();
        let texts = picture.split("<text x='").skip(1).filter(|text| names.iter().any(|name| text.contains(name)));
        let ends: Vec<f64> = texts
            .map(|text| {
                let words = text.split(['>', '<']).nth(1).unwrap();
                text.split('\'').next().unwrap().parse::<f64>().unwrap() + width(words)
            })
            .collect();
        assert_eq!(ends.len(), names.len());
        assert!(ends.iter().all(|end| *end <= WIDTH), "{picture}");
    }

    #[test]
    fn without_phases_there_is_no_picture() {
        assert!(Timeline { phases: Vec::new(), ..timeline(1) }.draw().is_none());
    }
}
