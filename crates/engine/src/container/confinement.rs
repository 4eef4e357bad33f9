//! [`Confinement`]: what of this host keeps a container within bounds, as far as the host has it.

use std::path::Path;

use super::{ContainerOptions, cgroups::Cgroups};
use crate::Result;

/// Exists on a host where SELinux is on, whether it enforces its policy or only logs.
const SELINUX: &str = "/sys/fs/selinux/enforce";

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
        if lacks_label(options, Path::new(SELINUX)) {
            tracing::warn!("SELinux does not confine the container: tarpon sets no labels");
        }
        Ok(Self { processes, apparmor: options.apparmor.profile()? })
    }
}

/// Whether the host would confine the container by a label that it does not get.
fn lacks_label(options: &ContainerOptions, selinux: &Path) -> bool {
    !options.unlabelled && selinux.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_label_is_reported_where_selinux_is_on_unless_none_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let selinux = folder.path().join("enforce");
        let usual = ContainerOptions::default();
        assert!(!lacks_label(&usual, &selinux), "the host has no SELinux");
        std::fs::write(&selinux, "1").unwrap();
        assert!(lacks_label(&usual, &selinux));
        assert!(!lacks_label(&ContainerOptions { unlabelled: true, ..usual }, &selinux));
    }
}
