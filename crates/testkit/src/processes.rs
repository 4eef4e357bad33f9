//! The processes of a store: its server, the holder of the server's connections, and the workers.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Servers of the store that the command line starts in the background.
pub fn servers(store: &Path) -> Vec<Pid> {
    processes(store, false)
}

/// Holders of the store.
pub fn holders(store: &Path) -> Vec<Pid> {
    processes(store, true)
}

/// Workers that this process has started.
pub fn workers_of(user: Pid) -> Vec<Pid> {
    let is_child = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent.and_then(|parent| parent.trim().parse().ok()) == Some(user.as_raw_nonzero().get())
    };
    let is_worker = |pid: &i32| command_line(*pid).iter().any(|argument| argument == "worker");
    all().filter(|pid| is_worker(pid) && is_child(pid)).filter_map(Pid::from_raw).collect()
}

/// Kills the process that serves the store together with its holder, so that no successor is started.
pub fn kill_with_holder(store: &Path, server: Pid) {
    let holders = holders(store);
    let send = |pid: Pid, signal| {
        // It may have ended.
        let _gone = kill_process(pid, signal);
    };
    // A holder that is stopped starts no successor, and its server starts no other holder.
    holders.iter().for_each(|holder| send(*holder, Signal::STOP));
    send(server, Signal::KILL);
    holders.iter().for_each(|holder| send(*holder, Signal::KILL));
}

fn processes(store: &Path, is_holder: bool) -> Vec<Pid> {
    let store = store.to_string_lossy();
    let is_it = |pid: &i32| {
        let line = command_line(*pid);
        let has = |word: &str| line.iter().any(|argument| argument == word);
        has(&store) && has("serve") && has("--hold") == is_holder
    };
    all().filter(is_it).filter_map(Pid::from_raw).collect()
}

fn command_line(pid: i32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

fn all() -> impl Iterator<Item = i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
