//! Shows how far an image is: bars on a terminal, a line a second elsewhere, nothing when asked to be quiet.

mod bars;
mod lines;

use std::io::IsTerminal;

use tarpon_engine::{Progress, Silent};

use bars::Bars;
use lines::Lines;

/// What is done to layers, in words.
struct Words {
    /// As in "streaming 3 of 5 layers".
    doing: &'static str,
    /// Behind "layers" ...
    how: &'static str,
    /// ... and behind their size.
    why: &'static str,
    /// Of a layer, when all of it has arrived.
    arrived: &'static str,
    /// As in "layer 3 indexed".
    done: &'static str,
}

const PREPARING: Words = Words {
    doing: "streaming",
    how: " once",
    why: ": they have no table of contents",
    arrived: "indexing",
    done: "indexed",
};
const PULLING: Words = Words { doing: "fetching", how: "", why: "", arrived: "verifying", done: "is here" };
const CONVERTING: Words = Words { doing: "converting", how: "", why: "", arrived: "uploading", done: "is there" };
const PUSHING: Words = Words { doing: "pushing", how: "", why: "", arrived: "finishing", done: "is there" };

/// The progress display for stderr while an image is prepared. It cleans up after itself when it is dropped.
pub(crate) fn progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PREPARING)
}

/// The same while an image is pulled.
pub(crate) fn pull_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PULLING)
}

/// The same while an image is converted.
pub(crate) fn conversion_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &CONVERTING)
}

/// The same while a committed image is pushed.
pub(crate) fn push_progress(quiet: bool) -> Box<dyn Progress> {
    display(quiet, &PUSHING)
}

fn display(quiet: bool, words: &'static Words) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bars::new(words))
    } else {
        Box::new(Lines::new(words))
    }
}
