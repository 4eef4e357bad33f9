//! [`Svg`]: writes the elements of a plot.

use std::fmt::Write;

/// An SVG document under construction. Text is escaped.
pub(super) struct Svg(String);

impl Svg {
    /// An empty document with a background.
    pub(super) fn new(width: u64, height: u64, style: &str) -> Self {
        let mut svg = Self(String::new());
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\">\n<style>\n{style}</style>\n"
        ));
        svg.rect("paper", [0, 0], [width, height]);
        svg
    }

    /// The document.
    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    /// A rectangle from its upper left corner.
    pub(super) fn rect(&mut self, class: &str, [x, y]: [u64; 2], [width, height]: [u64; 2]) {
        self.put(format_args!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"));
    }

    /// A straight line.
    pub(super) fn line(&mut self, class: &str, [x1, y1]: [u64; 2], [x2, y2]: [u64; 2]) {
        self.put(format_args!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>\n"));
    }

    /// A path.
    pub(super) fn path(&mut self, class: &str, path: &str) {
        self.put(format_args!("<path class=\"{class}\" d=\"{path}\"/>\n"));
    }

    /// Text that starts, ends or is centred at a point, depending on its class.
    pub(super) fn text(&mut self, class: &str, [x, y]: [u64; 2], text: &str) {
        self.put(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", escaped(text)));
    }

    /// A group of elements with a tooltip.
    pub(super) fn group(&mut self, class: &str, title: &str, inside: impl FnOnce(&mut Self)) {
        self.put(format_args!("<g class=\"{class}\"><title>{}</title>\n", escaped(title)));
        inside(self);
        self.0.push_str("</g>\n");
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a String takes it");
    }
}

/// Escapes text for XML. Characters that XML does not allow, or that change the direction of text, become �.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            c if c.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_element() {
        assert_eq!(
            escaped("</title><script>a && \"b\"</script>\x00\x1b\u{202e}"),
            "&lt;/title&gt;&lt;script&gt;a &amp;&amp; &quot;b&quot;&lt;/script&gt;\u{fffd}\u{fffd}\u{fffd}"
        );
    }
}
