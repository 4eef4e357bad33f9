//! Shows how far an image is: bars on a terminal, a line a second elsewhere, nothing when asked to be quiet.

mod bars;
mod lines;

use std::io::IsTerminal;

use tarpon_engine::{Progress, Silent};

use bars::Bars;
use lines::Lines;

/// The progress display for stderr. It cleans up after itself when it is dropped.
pub(crate) fn progress(quiet: bool) -> Box<dyn Progress> {
    if quiet {
        Box::new(Silent)
    } else if std::io::stderr().is_terminal() {
        Box::new(Bars::default())
    } else {
        Box::new(Lines::default())
    }
}
