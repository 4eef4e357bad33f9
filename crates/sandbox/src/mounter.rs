//! What a server of root keeps: it mounts, and writes with overlayfs as its users would.

use rustix::thread::CapabilitySet;

use crate::error::SandboxError;
use crate::sandbox::check_that_this_is_the_only_thread;
use crate::{privileges, seccomp};

/// The capabilities of a process that mounts.
///
/// overlayfs writes into upper directories with the capabilities of the process that mounted it, so those on files are kept:
/// without one of them a container could not `chown`, `mknod`, or set file capabilities or attributes.
const MOUNTER: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(FILES)
    // Identity mappings of any user, and namespaces of other processes.
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE)
    // Workers have another user, and give up their bounding set.
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETPCAP)
    // Limits of open files, of the size of pipes, and `oom_score_adj` of the holder.
    .union(CapabilitySet::SYS_RESOURCE);

const FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MAC_ADMIN);

/// Reduces a server of root to what mounts need: it gives up the capabilities for modules, raw devices, the network, the clock
/// and the rest of the machine, gains no privileges by programs that it executes, and makes no system call of those that
/// serve to trace processes or change the kernel. Programs that it starts inherit all of it. To be called before the
/// process starts a thread.
///
/// Does nothing without root: such a process has no capabilities, and mounts with `fusermount3`, which gains privileges.
///
/// # Errors
/// The process has several threads; or a step fails, and the process is reduced in part.
pub fn keep_mount_privileges() -> Result<(), SandboxError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    check_that_this_is_the_only_thread()?;
    privileges::clear_ambient_set()?;
    let _may_change_it = privileges::keep_in_bounding_set(MOUNTER)?;
    privileges::keep_capabilities(MOUNTER)?;
    privileges::refuse_new_privileges()?;
    seccomp::refuse_host()
}
