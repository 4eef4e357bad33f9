//! Pictures: SVG with labelled axes, readable on a light and on a dark page.

use std::fmt::Write;

pub(super) mod axis;
pub(super) mod bars;
pub(super) mod lines;
pub(super) mod timeline;

/// Width of a letter of the usual size, on average and a little more: where text ends has to be guessed.
const LETTER: f64 = 6.7;
/// Height of a line of text.
const LINE: f64 = 18.0;

/// Colours of series; told apart also by those who see no red or green, and on light and dark ground.
const COLOURS: [&str; 10] =
    ["#8a8a8a", "#e69f00", "#56b4e9", "#8da0cb", "#1f78c8", "#b279d1", "#00a37a", "#d55e00", "#cc79a7", "#b8860b"];

/// Series that are known have their colour in every picture.
const KNOWN: [&str; 13] = [
    "podman",
    "tarpon-streamed",
    "tarpon-index",
    "tarpon-index-fuse",
    "tarpon-pack",
    "tarpon-pack-fuse",
    "tarpon-warm",
    "podman-tarpon",
    "podman-tarpon-pack",
    "podman-stargz",
    "overlayfs",
    "tarpon-native",
    "tarpon-fuse",
];

const STYLE: &str = "<style>\
    .page{fill:#fff}.ink{fill:#1f2328}.faint{fill:#59636e}.rule{stroke:#d1d9e0;stroke-width:1}.mark{stroke:#1f2328;stroke-width:1}\
    @media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.faint{fill:#9198a1}.rule{stroke:#3d444d}.mark{stroke:#f0f6fc}}\
    </style>";

/// The colour of a series; `place` is where it stands among those that are not known.
fn colour(series: &str, place: usize) -> &'static str {
    let known = KNOWN.iter().position(|known| *known == series);
    // The second ten are forms of one image, which are never beside the first ones.
    let place = match known {
        Some(place @ 10..) => [0, 4, 1][place - 10],
        Some(place) => place,
        None => [4, 0, 1, 6, 7, 5][place % 6],
    };
    COLOURS[place]
}

/// The room that a text takes.
fn width(text: &str) -> f64 {
    // A picture has no text that is longer than a float can count.
    text.chars().count() as f64 * LETTER
}

/// Text as it stands in XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;").replace('"', "&quot;")
}

/// Where a text ends or begins.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// What is drawn so far.
#[derive(Default)]
struct Canvas(String);

impl Canvas {
    fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.add(format_args!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' class='{class}'>{text}</text>"));
    }

    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.add(format_args!("<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}'/>"));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!("<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' class='{class}'/>"));
    }

    fn add(&mut self, what: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(what);
    }

    /// Names of series with their colours, from `left` to `right`, in as many lines as they need; how high they are.
    fn legend(&mut self, series: &[String], left: f64, right: f64, top: f64) -> f64 {
        let (mut x, mut y) = (left, top);
        for (place, name) in series.iter().enumerate() {
            let room = 18.0 + width(name) + 16.0;
            if x > left && x + room > right {
                (x, y) = (left, y + LINE);
            }
            self.rectangle(x, y + 3.0, 12.0, 12.0, colour(name, place));
            self.text(x + 18.0, y + 13.0, Anchor::Start, "ink", name);
            x += room;
        }
        y + LINE - top
    }

    /// The whole picture.
    fn finish(self, title: &str, width: f64, height: f64) -> String {
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
    fn a_known_series_has_its_colour_wherever_it_stands() {
        assert_eq!(colour("tarpon-pack", 0), colour("tarpon-pack", 5));
        let colours: std::collections::BTreeSet<_> = KNOWN[..10].iter().map(|name| colour(name, 0)).collect();
        assert_eq!(colours.len(), 10);
    }

    #[test]
    fn a_legend_goes_on_in_the_next_line() {
        let names: Vec<String> = (0..6).map(|number| format!("a series of some length {number}")).collect();
        let mut canvas = Canvas::default();
        assert!(canvas.legend(&names, 0.0, 400.0, 0.0) > 2.0 * LINE);
        assert!(Canvas::default().legend(&names[..1], 0.0, 400.0, 0.0) <= LINE);
    }

    #[test]
    fn what_xml_would_take_for_its_own_is_escaped() {
        assert_eq!(escaped("a<b & 'c'"), "a&lt;b &amp; &#39;c&#39;");
    }
}
