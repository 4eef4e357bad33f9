//! The processes of a store: its server, and the holder of the server's connections.

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
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let has = |word: &str| line.iter().any(|argument| argument == word);
        has(&store) && has("serve") && has("--hold") == is_holder
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_it).filter_map(Pid::from_raw).collect()
}
