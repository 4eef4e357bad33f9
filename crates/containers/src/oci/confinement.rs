//! [`Confinement`]: the means of this host to confine a container.

use std::path::{Path, PathBuf};

use super::{ContainerOptions, cgroups::Cgroups};
use crate::Result;

/// Exists on a host with SELinux on, enforcing or permissive.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// Confinement of a container beyond namespaces, capabilities and the system call filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Confinement {
    /// Maximum number of processes and threads; `None`: the host's limit.
    pub(crate) processes: Option<u32>,
    /// Its AppArmor profile.
    pub(crate) apparmor: Option<String>,
    /// Name of the network namespace that it enters; `None`: that of its network without a name.
    pub(crate) network: Option<PathBuf>,
}

impl Confinement {
    /// The confinement of a container with these options on this host.
    ///
    /// # Errors
    /// An option names something that this host does not have.
    pub(crate) fn of(options: &ContainerOptions) -> Result<Self> {
        let processes = options.limits.processes(&Cgroups::of_this_host());
        if lacks_label(options, Path::new(SELINUX)) {
            tracing::warn!("SELinux does not confine the container: tarpon sets no labels");
        }
        Ok(Self { processes, apparmor: options.apparmor.profile()?, network: None })
    }
}

/// Whether the host uses SELinux labels and the container gets none.
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
