//! seccomp: the system calls that a process may still make, or may no longer make. All others fail with `EPERM`.

mod condition;
mod host;
mod table;

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};

use crate::error::{SandboxError, failed};

const STEP: &str = "limiting the system calls (seccomp)";

/// Enforces the limits on all threads of this process.
pub(crate) fn allow_only(may_connect: bool) -> Result<(), SandboxError> {
    let (first, second) = programs(may_connect).map_err(failed(STEP))?;
    for program in [first, second] {
        seccompiler::apply_filter_all_threads(&program).map_err(failed(STEP))?;
    }
    Ok(())
}

/// Refuses the calls that trace processes or change the machine, for all threads of this process.
pub(crate) fn refuse_host() -> Result<(), SandboxError> {
    let program = without_host().map_err(failed(STEP))?;
    seccompiler::apply_filter_all_threads(&program).map_err(failed(STEP))
}

fn without_host() -> Result<BpfProgram, seccompiler::BackendError> {
    let refused = host::REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(refused, SeccompAction::Allow, refuse(libc::EPERM), architecture)?.try_into()
}

/// Two filters, as a filter has one answer for what it refuses: `ENOSYS` in the first, `EPERM` in the second. The kernel
/// runs both. The second does not allow the call that installs a filter.
fn programs(may_connect: bool) -> Result<(BpfProgram, BpfProgram), seccompiler::BackendError> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let unknown = table::UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    let unknown = SeccompFilter::new(unknown, SeccompAction::Allow, refuse(libc::ENOSYS), architecture)?;
    let allowed = SeccompFilter::new(allowed(may_connect)?, refuse(libc::EPERM), SeccompAction::Allow, architecture)?;
    Ok((unknown.try_into()?, allowed.try_into()?))
}

fn refuse(error: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(error.unsigned_abs())
}

/// Each allowed system call, with the conditions of which one has to hold; none if it is allowed always.
fn allowed(may_connect: bool) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let mut allowed: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let network = if may_connect { table::CONNECTING } else { &[] };
    for call in table::ALWAYS.iter().chain(network).flat_map(|group| group.calls) {
        allowed.insert(*call, Vec::new());
    }
    // The first filter has answered these.
    for call in table::UNKNOWN {
        allowed.insert(*call, Vec::new());
    }
    for (call, rule) in condition::conditions(may_connect)? {
        allowed.entry(call).or_default().push(rule);
    }
    Ok(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_filters_compile_with_and_without_network() {
        for may_connect in [false, true] {
            let (unknown, allowed) = programs(may_connect).unwrap();
            // The kernel accepts 4096 instructions (BPF_MAXINSNS).
            assert!(unknown.len() < 100 && allowed.len() < 4096, "{} and {}", unknown.len(), allowed.len());
        }
    }

    #[test]
    fn a_call_with_conditions_is_not_also_allowed_without() {
        let allowed: Vec<i64> =
            table::ALWAYS.iter().chain(table::CONNECTING).flat_map(|group| group.calls).copied().collect();
        for (call, _) in condition::conditions(true).unwrap() {
            assert!(!allowed.contains(&call), "system call {call}");
        }
    }
}
