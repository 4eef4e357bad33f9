//! The progress of an image: one line on a terminal, a line per second elsewhere, nothing if quiet.

mod bars;
mod lines;
mod meter;
mod words;

use std::ffi::OsStr;
use std::io::IsTerminal;

use tarpon_engine::{Progress, Silent};

use bars::Bars;
use lines::Lines;
use words::{CONVERTING, PREFETCHING, PREPARING, PULLING, PUSHING, VERIFYING, Words};

/// The progress display on stderr while an image is prepared. It is erased when it is dropped.
pub(crate) fn progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PREPARING)
}

/// The same while an image is pulled.
pub(crate) fn pull_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PULLING)
}

/// The same while an image is prefetched.
pub(crate) fn prefetch_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PREFETCHING)
}

/// The same while an image is converted.
pub(crate) fn conversion_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &CONVERTING)
}

/// The same while a committed image is pushed.
pub(crate) fn push_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PUSHING)
}

/// The same while a tier is verified.
pub(crate) fn verification_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &VERIFYING)
}

fn display(quiet: bool, words: &'static Words) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else if std::io::stderr().is_terminal() && can_redraw(std::env::var_os("TERM").as_deref()) {
        Box::new(Bars::new(words))
    } else {
        Box::new(Lines::new(words))
    }
}

/// Whether a terminal of this type can redraw a line. `dumb` is that of editors and logs.
fn can_redraw(kind: Option<&OsStr>) -> bool {
    kind.is_some_and(|kind| !kind.is_empty() && kind != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_that_cannot_redraw_gets_plain_lines() {
        for (kind, can) in [(Some("xterm-256color"), true), (Some("dumb"), false), (Some(""), false), (None, false)] {
            assert_eq!(can_redraw(kind.map(OsStr::new)), can, "{kind:?}");
        }
    }
}
