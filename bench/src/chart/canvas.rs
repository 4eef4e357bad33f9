//! The picture so far: text, lines, a legend, a caption.

use std::fmt::Write;

use super::colours::colour;

/// Width of a letter of the usual size, a little more than the average: the width of text can only be estimated.
const LETTER: f64 = 6.7;
/// Height of a line of text.
pub(super) const LINE: f64 = 18.0;
/// Size of small text, relative to the usual size.
const SMALL: f64 = 0.875;
const SMALL_LINE: f64 = 15.0;

const STYLE: &str = "<style>\
    .page{fill:#fff}.ink{fill:#1f2328}.faint{fill:#59636e}.halo{paint-order:stroke;stroke:#fff;stroke-width:2px}.rule{stroke:#d1d9e0;stroke-width:1}.mark{stroke:#1f2328;stroke-width:1}\
    @media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.faint{fill:#9198a1}.halo{stroke:#0d1117}.rule{stroke:#3d444d}.mark{stroke:#f0f6fc}}\
    </style>";

/// The estimated width of a text.
pub(super) fn width(text: &str) -> f64 {
    // The length of any text here fits a float.
    text.chars().count() as f64 * LETTER
}

/// A coordinate, rounded to a tenth: more precision is invisible.
pub(super) fn tenths(place: f64) -> String {
    let text = format!("{place:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// Text escaped for XML.
pub(in super::super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&quot;")
}

/// Alignment of a text.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The picture so far.
#[derive(Default)]
pub(super) struct Canvas(String);

impl Canvas {
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor='middle'",
            Anchor::End => " text-anchor='end'",
        };
        let (x, y, text) = (tenths(x), tenths(y), escaped(text));
        self.add(format_args!("<text x='{x}' y='{y}'{anchor} class='{class}'>{text}</text>"));
    }

    /// A figure and its note, legible also on grid lines.
    pub(super) fn figure(&mut self, x: f64, y: f64, figure: &str, note: &str) {
        let (x, y, figure, note) = (tenths(x), tenths(y), escaped(figure), escaped(note));
        let note = if note.is_empty() { note } else { format!("<tspan dx='6' class='faint'>{note}</tspan>") };
        self.add(format_args!("<text x='{x}' y='{y}' class='ink halo'>{figure}{note}</text>"));
    }

    pub(super) fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        let [x, y, width, height] = [x, y, width, height].map(tenths);
        self.add(format_args!("<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='{colour}'/>"));
    }

    /// Many horizontal lines as one path.
    pub(super) fn strokes(&mut self, lines: impl Iterator<Item = (f64, f64, f64)>, thick: f64, colour: &str) {
        let path: String =
            lines.map(|(from, to, y)| format!("M{},{}H{}", tenths(from), tenths(y), tenths(to))).collect();
        self.add(format_args!("<path d='{path}' stroke='{colour}' stroke-width='{}'/>", tenths(thick)));
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(tenths);
        self.add(format_args!("<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' class='{class}'/>"));
    }

    pub(super) fn add(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(what);
    }

    /// Draws the legend from `left` to `right`, in as many lines as it needs; returns its height.
    pub(super) fn legend(&mut self, series: &[(String, String)], left: f64, right: f64, top: f64) -> f64 {
        let (mut x, mut y) = (left, top);
        for (place, (series, name)) in series.iter().enumerate() {
            let room = 18.0 + width(name) + 16.0;
            if x > left && x + room > right {
                (x, y) = (left, y + LINE);
            }
            self.rectangle(x, y + 3.0, 12.0, 12.0, colour(series, place));
            self.text(x + 18.0, y + 13.0, Anchor::Start, "ink", name);
            x += room;
        }
        y + LINE - top
    }

    /// Draws small text at the bottom, in as many lines as it needs; returns its height.
    pub(super) fn caption(&mut self, words: &str, left: f64, right: f64, top: f64) -> f64 {
        let mut lines = vec![String::new()];
        // A list of names without spaces may be longer than the picture is wide.
        for word in words.split_inclusive([' ', ',']) {
            let fits = |line: &String| line.is_empty() || width(&format!("{line}{word}")) * SMALL <= right - left;
            match lines.last_mut().filter(|line| fits(line)) {
                Some(line) => line.push_str(word),
                None => lines.push(word.to_owned()),
            }
        }
        let mut y = top;
        for line in &lines {
            y += SMALL_LINE;
            let text = escaped(line.trim_end());
            self.add(format_args!(
                "<text x='{}' y='{}' class='faint' font-size='10.5'>{text}</text>",
                tenths(left),
                tenths(y)
            ));
        }
        y - top
    }

    /// The complete picture.
    pub(super) fn finish(self, title: &str, width: f64, height: f64) -> String {
        let title = escaped(title);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0}' height='{height:.0}' viewBox='0 0 {width:.0} {height:.0}' \
             font-family='system-ui,sans-serif' font-size='12' role='img' aria-label='{title}'>{STYLE}\
             <rect width='100%' height='100%' class='page'/>\
             <text x='16' y='26' font-size='15' font-weight='bold' class='ink'>{title}</text>{}</svg>\n",
            self.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_goes_on_in_the_next_line() {
        let name = |number| (format!("{number}"), format!("a series of some length {number}"));
        let names: Vec<_> = (0..6).map(name).collect();
        let mut canvas = Canvas::default();
        assert!(canvas.legend(&names, 0.0, 400.0, 0.0) > 2.0 * LINE);
        assert!(Canvas::default().legend(&names[..1], 0.0, 400.0, 0.0) <= LINE);
    }

    #[test]
    fn a_caption_is_broken_between_words_and_names_of_a_list() {
        let mut canvas = Canvas::default();
        assert!(canvas.caption("cargo xtask bench start --link 100mbit,10ms", 0.0, 150.0, 0.0) > 1.5 * SMALL_LINE);
        assert!(canvas.0.contains(">--link 100mbit,10ms<"), "{}", canvas.0);
        let list = "podman,tarpon-index,tarpon-pack,podman-stargz";
        assert!(Canvas::default().caption(list, 0.0, 150.0, 0.0) > 1.5 * SMALL_LINE);
        assert!(Canvas::default().caption("a date", 0.0, 150.0, 0.0) <= SMALL_LINE);
    }

    #[test]
    fn places_are_short() {
        assert_eq!([12.0, 12.34, -0.5].map(tenths), ["12", "12.3", "-0.5"]);
    }

    #[test]
    fn what_xml_would_take_for_its_own_is_escaped() {
        assert_eq!(escaped("a<b & 'c'"), "a&lt;b &amp; &#39;c&#39;");
    }
}
