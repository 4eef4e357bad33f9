//! What the user says otherwise than the image.

use super::{CapabilityChanges, Limits, Tmpfs, Volume};

/// What a container is to be otherwise than its image says. The default is what the image says, on the network
/// of the host, with all system calls.
#[derive(Debug, Clone, Default)]
pub struct ContainerOptions {
    /// Instead of the image's entrypoint; the image's command goes with that.
    pub entrypoint: Option<Vec<String>>,
    /// Instead of the image's command.
    pub command: Vec<String>,
    /// `NAME=VALUE`, beside or instead of the image's.
    pub env: Vec<String>,
    /// `USER[:GROUP]` instead of the image's.
    pub user: Option<String>,
    /// Where it starts, instead of the image's.
    pub directory: Option<String>,
    /// Its name for itself.
    pub hostname: Option<String>,
    /// What it is connected to.
    pub network: Network,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Whether its root file system cannot be written.
    pub read_only: bool,
    /// Whether setuid programs and file capabilities give it nothing.
    pub no_new_privileges: bool,
    /// Whether its system calls are filtered, which its runtime must be able to do.
    pub filtered: bool,
    /// Capabilities, otherwise than usual.
    pub capabilities: CapabilityChanges,
    /// Directories and files of the host.
    pub volumes: Vec<Volume>,
    /// Directories in memory.
    pub tmpfs: Vec<Tmpfs>,
    /// How much it may use.
    pub limits: Limits,
}

/// What a container is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The network of this host, as it is.
    #[default]
    Host,
    /// Nothing but itself.
    None,
}
