//! Something that a confined process may not do.

use std::io;

use rustix::io::Errno;

use crate::child::{Confined, Surroundings};

/// What is tried after the process entered.
pub(super) type Act = Box<dyn FnOnce() -> io::Result<()>>;

/// Something that a confined process may not do.
pub(crate) struct Offence {
    /// In words, after "a confined process cannot".
    pub(crate) what: &'static str,
    /// What is done before the process enters; the rest is done after.
    pub(crate) prepare: fn(&Surroundings) -> Act,
    pub(crate) error: Errno,
    /// The sandbox that leaves the most chances to it.
    pub(crate) confined: Confined,
    /// The version of Landlock that refuses it, 0 if something else does.
    pub(crate) landlock: u32,
    /// Whether it may be tried without the sandbox.
    pub(crate) is_harmless: bool,
}

/// An offence that seccomp refuses, in each sandbox.
pub(crate) const fn offence(what: &'static str, prepare: fn(&Surroundings) -> Act) -> Offence {
    Offence { what, prepare, error: Errno::PERM, confined: Confined::Connecting, landlock: 0, is_harmless: true }
}
