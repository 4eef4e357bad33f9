//! A section of the report: text, tables and pictures.

/// A part of the report.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// Paragraphs, tables and pictures, in order.
    pub(crate) parts: Vec<Part>,
}

pub(crate) enum Part {
    Heading(String),
    Text(String),
    /// A table as the benchmark prints it.
    Table(String),
    /// A table that few readers need: its name, under which it is folded.
    LongTable(&'static str, String),
    /// Pictures that may stand side by side.
    Pictures(Vec<Picture>),
}

/// A picture of the page.
pub(crate) struct Picture {
    pub(crate) svg: String,
    /// A file for the picture, for use elsewhere.
    pub(crate) file: Option<String>,
}

impl Picture {
    /// A picture without a file.
    pub(crate) fn inside(svg: String) -> Self {
        Self { svg, file: None }
    }
}
