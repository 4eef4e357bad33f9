//! What makes a process a good holder: a session of its own, many descriptors, and no death by a lack of memory.

use std::io;

use rustix::process::{Resource, Rlimit};

/// The kernel never kills a process with this value for memory.
const NEVER_KILLED: &str = "-1000";

/// The program of this process, also if its file was replaced or deleted.
pub(super) const THIS_PROGRAM: Option<&str> = Some("/proc/self/exe");

/// What successors get of this process.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Value of `oom_score_adj` of successors.
    pub(super) oom_score: Option<String>,
    /// The program of successors if the one on disk does not work.
    pub(super) program: Option<&'static str>,
}

impl Process {
    /// Prepares this process.
    pub(super) fn prepare() -> Self {
        // A signal to the server's terminal must not end the holder.
        let _is_leader_already = rustix::process::setsid();
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let _has_less = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        let before = std::fs::read_to_string("/proc/self/oom_score_adj").ok();
        // Needs a capability. Without it the holder has the server's value, and is much smaller than the server.
        let is_set = std::fs::write("/proc/self/oom_score_adj", NEVER_KILLED).is_ok();
        Self { oom_score: before.filter(|_| is_set), program: THIS_PROGRAM }
    }
}

/// Gives a child a value of its own.
pub(super) fn set_oom_score(child: u32, value: Option<&str>) {
    if let Some(value) = value {
        let _has_ended = std::fs::write(format!("/proc/{child}/oom_score_adj"), value);
    }
}

/// Writes one line to standard error, which is the server's.
pub(super) fn report(line: &str) {
    let line = format!("tarpon holder {}: {line}\n", std::process::id());
    let _is_closed = io::Write::write_all(&mut io::stderr(), line.as_bytes());
}
