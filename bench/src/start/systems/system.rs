//! A compared system, and the processes that serve its files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tarpon_harness::paths;
use tarpon_harness::workloads::Workload;

/// The name of the measured container.
pub(super) const CONTAINER: &str = "tarpon-bench";

/// A way to run an image.
pub(in crate::start) trait System {
    fn name(&self) -> &'static str;

    /// The programs that are started, which are read into the page cache.
    fn programs(&self) -> Vec<&Path>;

    /// The tag of the image that it starts, where `asked` is the requested one.
    fn tag(&self, asked: &str) -> String {
        asked.to_owned()
    }

    /// The system whose preceding run left the state from which this one starts.
    fn begins_with(&self) -> Option<&'static str> {
        None
    }

    /// Removes everything that an earlier run left, unless this system starts from it.
    fn wipe(&self) -> Result<()>;

    /// Does what is done before the clock starts, as starting a daemon.
    fn prepare(&self, _workload: &Workload, _registry: &str, _image: &str) -> Result<()> {
        Ok(())
    }

    /// The command that fetches `image` and runs `script` in it.
    fn command(&self, workload: &Workload, image: &str, script: &str) -> Result<Command>;

    /// Whether the container's root file system is mounted there.
    fn is_root(&self, mountpoint: &Path) -> bool;

    /// The server of the container's files while it runs.
    fn server(&self) -> Option<Server> {
        None
    }

    /// An error if the system could not mount layers and silently downloaded and unpacked them.
    fn check_mounts(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a run is valid only if no layer was streamed whole for want of an index.
    fn needs_index(&self) -> bool {
        false
    }

    /// Whether a run is valid only if a boot pack was used.
    fn needs_pack(&self) -> bool {
        false
    }

    /// Whether the image must have the pack of its predicted start.
    fn needs_prediction(&self) -> bool {
        false
    }

    /// Whether a run is valid only if a learned start was followed.
    fn needs_learned(&self) -> bool {
        false
    }

    /// Ends the container and the server of a run.
    fn end(&self) -> Result<()>;
}

/// A process that serves files, and its counters, if it has any.
pub(in crate::start) struct Server {
    pub(in crate::start) pid: u32,
    /// Another process that the file system depends on: a snapshotter that is not the server itself.
    pub(in crate::start) beside: Option<u32>,
    pub(in crate::start) counters: Option<Counters>,
    /// Layers that were downloaded whole before the mount for want of an index.
    pub(in crate::start) streamed: usize,
}

impl Server {
    /// All processes that serve files.
    pub(in crate::start) fn processes(&self) -> impl Iterator<Item = u32> {
        [self.pid].into_iter().chain(self.beside)
    }
}

/// Counters of tarpon's server for the image.
#[derive(serde::Deserialize)]
pub(in crate::start) struct Counters {
    /// Bytes fetched from a boot pack, or because a learned start read them.
    pub(in crate::start) bytes_trace: u64,
    /// Number and total time of reads that waited for a source.
    pub(in crate::start) stalls: u64,
    pub(in crate::start) stall_millis: u64,
}

/// The folder of a system.
pub(super) fn store(name: &str) -> PathBuf {
    paths::benchmarks().join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshotter_beside_the_server_is_counted_too() {
        let server = |beside| Server { pid: 1, beside, counters: None, streamed: 0 };
        assert_eq!(server(Some(2)).processes().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(server(None).processes().collect::<Vec<_>>(), [1]);
    }
}
