//! [`Confinement`]: what of this host keeps a container within bounds, as far as the host has it.

use super::{ContainerOptions, cgroups::Cgroups};
use crate::Result;

/// What a container is confined by beside its namespaces, capabilities and filter for system calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Confinement {
    /// Processes and threads that it may have; none: as many as the host.
    pub(crate) processes: Option<u32>,
    /// Its AppArmor profile.
    pub(crate) apparmor: Option<String>,
}

impl Confinement {
    /// What confines a container with these options on this host.
    ///
    /// # Errors
    /// Something was asked for by name that this host does not have.
    pub(crate) fn of(options: &ContainerOptions) -> Result<Self> {
        let processes = options.limits.processes(&Cgroups::of_this_host());
        Ok(Self { processes, apparmor: options.apparmor.profile()? })
    }
}
