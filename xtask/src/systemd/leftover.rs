//! What remains of tarpon in a guest after everything was stopped.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::guest::Guest;

/// A server that was left alone ends itself within seconds: a holder waits ten seconds for a successor.
const ENDING: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const STORE: &str = "/var/lib/tarpon/";

/// Stops the units; `daemon` is whether those of `tarpon daemon` are installed. Returns descriptions of the processes and mounts that do
/// not end.
pub(super) fn find(guest: &Guest, daemon: bool) -> Result<Vec<String>> {
    // The last one would start the daemon again.
    let units = ["tarpon-snapshotter.service", "containerd.service", "tarpon.socket", "tarpon.service"];
    let installed = if daemon { &units[..] } else { &units[..2] };
    guest.client(&[&["systemctl", "stop"], installed].concat())?;
    let end = Instant::now() + ENDING;
    loop {
        let left = [processes(guest.init())?, mounts(guest.init())?].concat();
        if left.is_empty() || Instant::now() > end {
            return Ok(left);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn processes(init: u32) -> Result<Vec<String>> {
    let namespace = fs::read_link(format!("/proc/{init}/ns/pid"))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let path = entry.path();
        let is_inside = fs::read_link(path.join("ns/pid")).is_ok_and(|other| other == namespace);
        if is_inside && is_tarpon(&path) {
            let line = fs::read(path.join("cmdline")).unwrap_or_default();
            found.push(format!("process {}", String::from_utf8_lossy(&line).replace('\0', " ").trim()));
        }
    }
    Ok(found)
}

/// Whether the process of this folder of `/proc` executes tarpon, also one that an update has replaced.
fn is_tarpon(process: &Path) -> bool {
    let program = fs::read_link(process.join("exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tarpon"))
}

fn mounts(init: u32) -> Result<Vec<String>> {
    let table = fs::read_to_string(format!("/proc/{init}/mountinfo"))?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.filter(|point| point.starts_with(STORE)).map(|point| format!("mount {point}")).collect())
}
