//! The scripts of the virtual machine and of the host.

use std::fs;
use std::path::Path;

use anyhow::Result;
use tarpon_harness::workloads::Workload;

pub(super) const INIT: &str = include_str!("init.sh");
pub(super) const LIST: &str = include_str!("list.sh");
pub(super) const WRITE: &str = include_str!("write.sh");
pub(super) const HOST: &str = include_str!("host.sh");
const START: &str = include_str!("start.sh");

/// Writes what starts a workload into a folder.
pub(super) fn write_start(folder: &Path, workload: &Workload) -> Result<()> {
    fs::write(folder.join("start.sh"), START)?;
    fs::write(folder.join("command"), format!("{}\n", workload.command))?;
    Ok(())
}
