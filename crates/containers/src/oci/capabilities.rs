//! The capabilities of a container's process.

use std::collections::HashSet;

use oci_spec::runtime::{Capability, LinuxCapabilities, LinuxCapabilitiesBuilder};

/// The capabilities of a process that runs as root: Podman's defaults.
const USUAL: [Capability; 11] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::NetBindService,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// All capabilities, each at the index of its kernel number.
const ALL: [Capability; 41] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setpcap,
    Capability::LinuxImmutable,
    Capability::NetBindService,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::IpcOwner,
    Capability::SysModule,
    Capability::SysRawio,
    Capability::SysChroot,
    Capability::SysPtrace,
    Capability::SysPacct,
    Capability::SysAdmin,
    Capability::SysBoot,
    Capability::SysNice,
    Capability::SysResource,
    Capability::SysTime,
    Capability::SysTtyConfig,
    Capability::Mknod,
    Capability::Lease,
    Capability::AuditWrite,
    Capability::AuditControl,
    Capability::Setfcap,
    Capability::MacOverride,
    Capability::MacAdmin,
    Capability::Syslog,
    Capability::WakeAlarm,
    Capability::BlockSuspend,
    Capability::AuditRead,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
];

/// The name that stands for all of them.
const EVERY: &str = "ALL";

/// Changes to the default capabilities: `NET_ADMIN`, `CAP_NET_ADMIN` or `ALL`, in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapabilityChanges {
    /// Added to the defaults.
    pub add: Vec<String>,
    /// Removed from the defaults. A name that is both added and dropped is an error. Beside `ALL`, the name takes precedence.
    pub drop: Vec<String>,
}

impl CapabilityChanges {
    /// The capabilities of a process of this user.
    ///
    /// # Errors
    /// One line: an unknown name, or one both added and dropped.
    pub(super) fn apply(&self, uid: u32) -> Result<LinuxCapabilities, String> {
        let (granted, added) = self.granted(bounding())?;
        // A process that is not root keeps only ambient capabilities. The defaults require root, requested ones are kept.
        let kept = if uid == 0 { HashSet::new() } else { added };
        sets(granted, kept)
    }

    /// The capabilities of another process of this user in a container whose own process has these.
    pub(super) fn of_another(container: &LinuxCapabilities, uid: u32) -> Result<LinuxCapabilities, String> {
        let granted = container.bounding().clone().unwrap_or_default();
        let kept = |one: &Capability| uid != 0 && !USUAL.contains(one);
        let ambient = container.ambient().iter().flatten().filter(|_| uid != 0).copied();
        let kept: HashSet<Capability> = granted.iter().copied().filter(kept).chain(ambient).collect();
        sets(granted, kept)
    }

    /// All granted capabilities, and those of them that were requested. `ours`: the mask of those that this process can grant.
    fn granted(&self, ours: u64) -> Result<(HashSet<Capability>, HashSet<Capability>), String> {
        let (add_all, add) = read(&self.add)?;
        let (drop_all, drop) = read(&self.drop)?;
        if let Some(both) = add.intersection(&drop).next() {
            return Err(format!("the capability {both} is both added and dropped"));
        }
        let usual = USUAL.into_iter().filter(|_| !drop_all);
        let every = (0..).zip(ALL).filter(|(number, _)| add_all && ours >> number & 1 == 1).map(|(_, one)| one);
        let added: HashSet<Capability> = every.chain(add).filter(|one| !drop.contains(one)).collect();
        let granted = usual.filter(|one| !drop.contains(one)).chain(added.iter().copied()).collect();
        Ok((granted, added))
    }
}

fn sets(granted: HashSet<Capability>, kept: HashSet<Capability>) -> Result<LinuxCapabilities, String> {
    LinuxCapabilitiesBuilder::default()
        .bounding(granted.clone())
        .effective(granted.clone())
        .permitted(granted)
        .inheritable(kept.clone())
        .ambient(kept)
        .build()
        .map_err(|error| error.to_string())
}

/// Whether `ALL` is among the names, and the other names.
fn read(names: &[String]) -> Result<(bool, HashSet<Capability>), String> {
    let (mut all, mut others) = (false, HashSet::new());
    for name in names {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
        match short.parse() {
            Ok(one) => drop(others.insert(one)),
            Err(_) if short == EVERY => all = true,
            Err(_) => return Err(format!("there is no capability {name:?}")),
        }
    }
    Ok((all, others))
}

/// The capabilities that this process can grant, as the kernel's mask; all known ones if the kernel does not report it.
fn bounding() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(add: &[&str], drop: &[&str]) -> Result<Vec<String>, String> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let changes = CapabilityChanges { add: owned(add), drop: owned(drop) };
        let mut names: Vec<String> = changes.granted(0b11)?.0.iter().map(ToString::to_string).collect();
        names.sort();
        Ok(names)
    }

    #[test]
    fn capabilities_are_added_to_the_usual_ones_and_dropped_from_them() {
        assert_eq!(granted(&[], &[]).unwrap().len(), USUAL.len());
        assert!(granted(&["cap_net_admin"], &[]).unwrap().contains(&"NET_ADMIN".to_owned()));
        assert!(!granted(&[], &["Kill"]).unwrap().contains(&"KILL".to_owned()));
        assert_eq!(granted(&["SYS_TIME"], &["ALL"]).unwrap(), ["SYS_TIME"]);
    }

    #[test]
    fn all_are_those_that_there_are_to_give() {
        assert_eq!(granted(&["all"], &["ALL"]).unwrap(), ["CHOWN", "DAC_OVERRIDE"]);
        assert_eq!(granted(&["all"], &["ALL", "CHOWN"]).unwrap(), ["DAC_OVERRIDE"]);
    }

    #[test]
    fn names_that_mean_nothing_or_two_things_are_refused() {
        assert!(granted(&["FLY"], &[]).unwrap_err().contains("FLY"));
        assert!(granted(&["KILL"], &["CAP_KILL"]).unwrap_err().contains("both"));
    }

    #[test]
    fn only_requested_capabilities_remain_without_root() {
        let changes = CapabilityChanges { add: vec!["NET_RAW".into()], drop: vec![] };
        let ambient = |uid| changes.apply(uid).unwrap().ambient().clone().unwrap();
        assert_eq!(ambient(1000), HashSet::from([Capability::NetRaw]));
        assert!(ambient(0).is_empty());
    }
}
