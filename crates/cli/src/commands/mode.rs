//! `--mode` of `mount` and `demo`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tarpon_engine::ModeChoice;

/// A parser for modes, which lists all of them in help and completions.
pub(super) fn parser() -> impl TypedValueParser<Value = ModeChoice> {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    PossibleValuesParser::new([
        value("auto", "native where it works, else fuse"),
        value(
            "native",
            "The kernel serves everything that is local; needs root and Linux 6.12 with EROFS and overlayfs",
        ),
        value("fuse", "FUSE serves everything; works wherever FUSE works, without root too"),
    ])
    .try_map(|name| name.parse())
}
