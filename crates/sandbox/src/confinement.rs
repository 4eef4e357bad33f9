//! What took effect when a process confined itself.

use std::fmt;

/// What took effect. Shown as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Confinement {
    /// Whether the kernel limits paths, and with newer versions connections and signals.
    pub landlock: LandlockStatus,
    /// Whether the bounding set is empty as well. Without `CAP_SETPCAP` a process cannot change it, and without
    /// programs to execute it has no effect.
    pub is_bounding_set_empty: bool,
    /// Whether the process has a user ID of its own.
    pub has_own_user: bool,
    /// Whether the process may make connections.
    pub may_connect: bool,
    /// The limit of private memory in bytes.
    pub memory: Option<u64>,
}

/// What Landlock does for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LandlockStatus {
    /// It is in force, with the features of this version of its interface: 2 limits paths, 4 also TCP, 6 also signals.
    Enforced {
        /// The version.
        abi: u32,
    },
    /// The kernel has it, but has not enabled it at boot (`lsm=`).
    NotEnabled,
    /// The kernel does not have it.
    NotSupported,
    /// The kernel's version (1, Linux 5.13 to 5.18) allows no rename from one folder to another, which a store needs.
    TooOld,
}

impl fmt::Display for Confinement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no capabilities, no new privileges, seccomp, {}", self.landlock)?;
        if self.has_own_user {
            formatter.write_str(", own user")?;
        }
        formatter.write_str(if self.may_connect { ", outgoing connections" } else { ", no network" })?;
        if let Some(bytes) = self.memory {
            write!(formatter, ", {} MiB of memory at most", bytes >> 20)?;
        }
        if !self.is_bounding_set_empty {
            formatter.write_str(", bounding set unchanged")?;
        }
        Ok(())
    }
}

impl fmt::Display for LandlockStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enforced { abi } => write!(formatter, "Landlock (ABI {abi})"),
            Self::NotEnabled => formatter.write_str("no Landlock (not enabled at boot)"),
            Self::NotSupported => formatter.write_str("no Landlock (not in this kernel)"),
            Self::TooOld => formatter.write_str("no Landlock (ABI 1 is too old)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confinement_is_one_line() {
        let all = Confinement {
            landlock: LandlockStatus::Enforced { abi: 7 },
            is_bounding_set_empty: true,
            has_own_user: true,
            may_connect: true,
            memory: Some(512 << 20),
        };
        let line = "no capabilities, no new privileges, seccomp, Landlock (ABI 7), own user, outgoing connections, 512 MiB of memory at most";
        assert_eq!(all.to_string(), line);
        let less = Confinement {
            landlock: LandlockStatus::NotSupported,
            is_bounding_set_empty: false,
            has_own_user: false,
            may_connect: false,
            memory: None,
        };
        let line = "no capabilities, no new privileges, seccomp, no Landlock (not in this kernel), no network, bounding set unchanged";
        assert_eq!(less.to_string(), line);
    }
}
