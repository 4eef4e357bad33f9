//! What the processes of a store hold at a moment.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The name of the program begins with this.
const PROGRAM: &[u8] = b"tarpon";

/// Numbers at one moment.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) seconds: f64,
    /// Process IDs of server and holder; a new server is another life of both, because the holder is its child.
    pub(super) server: u32,
    /// Proportional share of memory of both, in MiB.
    pub(super) memory: f64,
    pub(super) resident: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    /// Mounts below the folder of the run.
    pub(super) mounts: f64,
    /// The store on the disk, in MiB, without the changes of containers.
    pub(super) disk: f64,
    /// Images with a record in the store.
    pub(super) images: usize,
}

/// Reads everything; `None` while there is no server.
pub(super) fn read(folder: &Path, store: &Path, seconds: f64) -> Option<Reading> {
    let server = server(store)?;
    let both = processes(store);
    let sum = |of: &dyn Fn(u32) -> Option<u32>| both.iter().filter_map(|pid| of(*pid)).map(f64::from).sum::<f64>();
    Some(Reading {
        seconds,
        server,
        memory: sum(&|pid| field(pid, "smaps_rollup", "Pss:")) / 1024.0,
        resident: sum(&|pid| field(pid, "status", "VmRSS:")) / 1024.0,
        descriptors: sum(&|pid| u32::try_from(fs::read_dir(process(pid).join("fd")).ok()?.count()).ok()),
        threads: sum(&|pid| field(pid, "status", "Threads:")),
        mounts: f64::from(u32::try_from(mounts(folder).len()).unwrap_or(u32::MAX)),
        disk: ["objects", "partial", "images", "layers"].iter().map(|part| blocks(&store.join(part))).sum(),
        images: fs::read_dir(store.join("images")).map_or(0, Iterator::count),
    })
}

/// The server of the store.
pub(super) fn server(store: &Path) -> Option<u32> {
    processes(store).into_iter().find(|pid| !arguments(*pid).iter().any(|argument| argument == "--hold"))
}

/// The servers and holders of the store.
pub(super) fn processes(store: &Path) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_ours = |pid: &u32| {
        // The arguments of a process that waits for a page of its program cannot be read before the page arrives: a
        // container of an image must not stop the samples.
        if !is_tarpon(*pid) {
            return false;
        }
        let arguments = arguments(*pid);
        arguments.iter().any(|argument| argument == "serve")
            && arguments.iter().any(|argument| Path::new(argument) == store)
    };
    pids.filter(is_ours).collect()
}

fn is_tarpon(pid: u32) -> bool {
    fs::read(process(pid).join("comm")).is_ok_and(|name| name.starts_with(PROGRAM))
}

/// Mount points below a folder.
pub(super) fn mounts(folder: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| Path::new(point).starts_with(folder)).map(str::to_owned).collect()
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(process(pid).join("cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}

/// The number behind a name in a file of `/proc/PID`.
fn field(pid: u32, file: &str, name: &str) -> Option<u32> {
    let text = fs::read_to_string(process(pid).join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// The size of a folder on the disk in MiB. Files that vanish meanwhile are not counted.
fn blocks(folder: &Path) -> f64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => blocks(&entry.path()),
        // A number of blocks of 512 bytes.
        Ok(metadata) => f64::from(u32::try_from(metadata.blocks()).unwrap_or(u32::MAX)) / 2048.0,
        Err(_) => 0.0,
    });
    sizes.sum()
}
