//! Whether a process that left its name in the store still runs.

use std::fs;

use serde::{Deserialize, Serialize};

/// A process, named so that a later one with the same number is not taken for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks since the start of the kernel.
    pub started: u64,
    /// The run of the kernel.
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

/// When process `pid` was started; `None` if there is none, or only its remains.
fn start_time(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, parentheses too.
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
        // Until it has ended; NOWAIT leaves the remains for `wait`.
        waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(start_time(child.id()), None);
        child.wait().unwrap();
    }
}
