//! Core dumps, memory, capabilities and `no_new_privs`.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::error::{SandboxError, failed};

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

/// Clears all sets of capabilities, but for `CAP_DAC_READ_SEARCH` if this process `reads_for_others` and has it. False if the bounding set stays, because this process may not change it.
pub(crate) fn drop_capabilities(reads_for_others: bool) -> Result<bool, SandboxError> {
    match rustix::thread::clear_ambient_capability_set() {
        // Linux before 4.3 has no such set.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(cause) => return Err(failed("clearing the ambient capabilities")(cause)),
    }
    let is_bounding_set_empty = empty_bounding_set().map_err(failed("clearing the bounding set of capabilities"))?;
    let none = CapabilitySet::empty();
    let kept = match (reads_for_others, rustix::thread::capabilities(None)) {
        (true, Ok(sets)) => sets.permitted & CapabilitySet::DAC_READ_SEARCH,
        _ => none,
    };
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
        .map_err(failed("clearing the capabilities"))?;
    Ok(is_bounding_set_empty)
}

fn empty_bounding_set() -> Result<bool, Errno> {
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(false) => continue,
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
