//! The targets of a release: static programs, for any Linux distribution.

use std::env::consts::ARCH;

use clap::ValueEnum;

/// A kind of processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// 64-bit processors of Intel and AMD
    #[value(name = "x86_64")]
    X86_64,
    /// 64-bit processors of Arm: no test runs this program
    #[value(name = "aarch64")]
    Aarch64,
}

impl Target {
    /// What a release has if no target is named: those whose programs are tested.
    pub(super) const TESTED: &'static [Self] = &[Self::X86_64];

    /// The target's name for Rust.
    pub(super) fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-musl",
            Self::Aarch64 => "aarch64-unknown-linux-musl",
        }
    }

    /// The target's name for zig.
    pub(super) fn zig(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-musl",
            Self::Aarch64 => "aarch64-linux-musl",
        }
    }

    /// The name of the processors for Debian.
    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Whether programs for the target run on this machine.
    pub(super) fn is_native(self) -> bool {
        self.triple().starts_with(ARCH)
    }
}
