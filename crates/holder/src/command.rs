//! How a holder is started, and what a successor gets from it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// How a holder is started and reached.
#[derive(Debug, Clone)]
pub struct HolderCommand {
    /// The command line of a holder process.
    pub program: Vec<OsString>,
    /// Path of its socket.
    pub socket: PathBuf,
}

/// A descriptor of an earlier server.
#[derive(Debug)]
pub struct HeldDescriptor {
    /// Its name.
    pub name: String,
    /// The descriptor.
    pub descriptor: OwnedFd,
}
