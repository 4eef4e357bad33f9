//! Core dumps, memory, capabilities and `no_new_privs`.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::error::{SandboxError, failed};

/// The user ID and group ID of a process that has its own: none of the ranges that systemd, shadow and containers take their
/// users from has it, so it owns no file.
pub const OWN_USER: u32 = 2_147_450_880;

/// Capabilities are numbered from 0, and their sets are 64 bits.
const CAPABILITIES: u32 = u64::BITS;

/// No core dump, which would hold credentials, and no access by other processes of the same user to the memory.
pub(crate) fn hide_memory() -> Result<(), SandboxError> {
    limit(Resource::Core, 0).map_err(failed("limiting core dumps"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("refusing core dumps and tracers"))
}

pub(crate) fn limit_memory(bytes: u64) -> Result<(), SandboxError> {
    limit(Resource::Data, bytes).map_err(failed("limiting the memory (RLIMIT_DATA)"))
}

fn limit(resource: Resource, value: u64) -> Result<(), Errno> {
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
}

/// Programs inherit nothing by this set.
pub(crate) fn clear_ambient_set() -> Result<(), SandboxError> {
    match rustix::thread::clear_ambient_capability_set() {
        // Linux before 4.3 has no such set.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(cause) => Err(failed("clearing the ambient capabilities")(cause)),
    }
}

/// Becomes [`OWN_USER`] if this process is root. False in a user namespace that does not have this user, and without root.
pub(crate) fn become_own_user() -> Result<bool, SandboxError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    let (user, group) = (Uid::from_raw(OWN_USER), Gid::from_raw(OWN_USER));
    match rustix::thread::set_thread_res_gid(group, group, group) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::PERM) => return Ok(false),
        Err(cause) => return Err(failed("changing the group")(cause)),
    }
    rustix::thread::set_thread_groups(&[]).map_err(failed("leaving the groups"))?;
    rustix::thread::set_keep_capabilities(true).map_err(failed("keeping the capabilities"))?;
    rustix::thread::set_thread_res_uid(user, user, user).map_err(failed("changing the user"))?;
    rustix::thread::set_keep_capabilities(false).map_err(failed("keeping the capabilities"))?;
    // The change makes the memory visible again on a host with `fs.suid_dumpable`.
    hide_memory()?;
    Ok(true)
}

/// Gives up all capabilities but these, for good.
pub(crate) fn keep_capabilities(kept: CapabilitySet) -> Result<(), SandboxError> {
    const STEP: &str = "giving up capabilities";
    let permitted = match kept.is_empty() {
        true => kept,
        false => rustix::thread::capabilities(None).map_err(failed(STEP))?.permitted & kept,
    };
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed(STEP))
}

/// Removes all capabilities but these from the set that programs of root would get. False if the set stays, because this process may not
/// change it.
pub(crate) fn keep_in_bounding_set(kept: CapabilitySet) -> Result<bool, SandboxError> {
    reduce_bounding_set(kept).map_err(failed("reducing the bounding set of capabilities"))
}

fn reduce_bounding_set(kept: CapabilitySet) -> Result<bool, Errno> {
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(false) => continue,
            Ok(true) if kept.contains(capability) => continue,
            Ok(true) => {}
            // The kernel has no more of them.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::PERM) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

pub(crate) fn refuse_new_privileges() -> Result<(), SandboxError> {
    rustix::thread::set_no_new_privs(true).map_err(failed("setting no_new_privs"))
}
