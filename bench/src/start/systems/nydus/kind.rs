//! The programs of nydus, and the kinds of images that it mounts.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tarpon_harness::process;

/// The program that mounts, and the one that makes images for it.
pub(super) const PROGRAM: &str = "nydusd";
pub(super) const BUILDER: &str = "nydus-image";

/// An image that nydusd mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::start) enum Kind {
    /// The unconverted layers, with an index of them (zran). nydusd fetches what is read.
    Zran,
    /// Converted layers (RAFS v6). nydusd fetches what is read, and meanwhile the files that a recorded start read.
    Rafs,
}

impl Kind {
    pub(in crate::start) const ALL: [Self; 2] = [Self::Zran, Self::Rafs];

    /// The tag of such images.
    pub(in crate::start) fn tag(self) -> &'static str {
        match self {
            Self::Zran => "nydus-zran",
            Self::Rafs => "nydus-rafs",
        }
    }
}

/// Whether it is installed.
pub(in super::super) fn is_installed() -> bool {
    [PROGRAM, BUILDER].into_iter().all(|program| process::find(program).is_some())
}

/// The path of an installed program.
pub(super) fn found(program: &str) -> Result<PathBuf> {
    process::find(program)
        .with_context(|| format!("{program} is not installed: docs/design/measurement.md shows how to get nydus"))
}
