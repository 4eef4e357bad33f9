//! Children that an earlier program of this process left: the holder, and processes that keep containers.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};

/// Reaps them when they end, in a thread that ends with the last one. Call it before this program has children of its own.
pub(crate) fn reap() {
    let children: Vec<_> =
        left().into_iter().filter_map(|child| Some((child, pidfd_open(child, PidfdFlags::empty()).ok()?))).collect();
    if children.is_empty() {
        return;
    }
    let started = std::thread::Builder::new().name("tarpon-reap".into()).spawn(|| wait_for(children));
    if let Err(error) = started {
        tracing::warn!(%error, "children of the earlier program are not reaped");
    }
}

/// The children of this process. After `execve` they all belong to its one thread.
fn left() -> Vec<Pid> {
    let pid = std::process::id();
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
}

fn wait_for(mut children: Vec<(Pid, OwnedFd)>) {
    while !children.is_empty() {
        let mut ends: Vec<_> = children.iter().map(|(_, process)| PollFd::new(process, PollFlags::IN)).collect();
        match poll(&mut ends, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return tracing::warn!(%error, "children of the earlier program are not reaped"),
        }
        // `None`: it runs.
        children.retain(|(child, _)| matches!(waitpid(Some(*child), WaitOptions::NOHANG), Ok(None)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "the function under test reaps it")]
    fn children_are_reaped_when_they_end() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let waiting = std::thread::spawn(move || wait_for(vec![(pid, process)]));
        drop(child.stdin.take());
        waiting.join().unwrap();
        assert_eq!(waitpid(Some(pid), WaitOptions::NOHANG).unwrap_err(), Errno::CHILD);
    }
}
