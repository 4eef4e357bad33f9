//! Whether a process that recorded itself in the store still runs.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process, identified so that a later one with the same number does not match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id.
    pub pid: u32,
    /// Start time, in clock ticks since the start of the kernel.
    pub started: u64,
    /// Boot id of the kernel.
    pub boot: String,
}

impl ProcessId {
    pub(crate) fn current(boot: &str) -> Self {
        let pid = std::process::id();
        Self { pid, started: start_time(pid).unwrap_or(0), boot: boot.to_owned() }
    }

    pub(crate) fn is_alive(&self, boot: &str) -> bool {
        self.boot == boot && start_time(self.pid) == Some(self.started)
    }
}

/// Start time of process `pid`; `None` if it does not exist or is a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, including parentheses.
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_its_namesake_of_another_time_or_boot_does_not() {
        let me = ProcessId::current("boot");
        assert!(me.is_alive("boot"));
        assert!(!me.is_alive("another boot"));
        assert!(!ProcessId { started: me.started + 1, ..me }.is_alive("boot"));
    }

    #[test]
    fn a_zombie_is_dead() {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // Until it has ended; NOWAIT leaves the zombie for `wait`.
        waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(start_time(child.id()), None);
        child.wait().unwrap();
    }
}
