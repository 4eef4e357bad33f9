//! The system call filter of a container: `seccomp.txt`, as an OCI runtime takes it.

use std::collections::HashSet;

use oci_spec::OciSpecError;
use oci_spec::runtime::{
    Arch, Capability, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSeccompArgBuilder, LinuxSeccompBuilder,
    LinuxSeccompOperator, LinuxSyscall, LinuxSyscallBuilder,
};

const POLICY: &str = include_str!("seccomp.txt");

/// Error codes for a call that is not permitted, one with invalid arguments, and an unknown one.
const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENOSYS: u32 = 38;

/// Permitted personalities of a process: Linux with 64 and with 32 bits, each also with `UNAME26`, and the query of the current one.
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// A socket to the kernel's audit system: family and protocol.
const NETLINK: u64 = 16;
const AUDIT: u64 = 9;

/// The filter for a container with these capabilities.
pub(super) fn filter(granted: &HashSet<Capability>) -> Result<LinuxSeccomp, OciSpecError> {
    let mut rules = Vec::new();
    for (section, calls) in sections() {
        let calls: Vec<String> = calls.iter().map(|&call| call.to_owned()).collect();
        rules.push(match section {
            "always" => allow(&calls, &[])?,
            "never" => refuse(&calls, EPERM, &[])?,
            capability if capability.parse().is_ok_and(|capability| granted.contains(&capability)) => {
                allow(&calls, &[])?
            }
            _ => refuse(&calls, EPERM, &[])?,
        });
    }
    let personality = ["personality".to_owned()];
    for kind in PERSONALITIES {
        rules.push(allow(&personality, &[argument(0, LinuxSeccompOperator::ScmpCmpEq, kind)?])?);
    }
    rules.extend(sockets(granted.contains(&Capability::AuditWrite))?);
    LinuxSeccompBuilder::default()
        .default_action(LinuxSeccompAction::ScmpActErrno)
        .default_errno_ret(ENOSYS)
        .architectures(architectures())
        .syscalls(rules)
        .build()
}

/// Permits all sockets except those to the audit system, which require the capability to write there.
fn sockets(audit: bool) -> Result<Vec<LinuxSyscall>, OciSpecError> {
    let socket = ["socket".to_owned()];
    if audit {
        return Ok(vec![allow(&socket, &[])?]);
    }
    let (is, is_not) = (LinuxSeccompOperator::ScmpCmpEq, LinuxSeccompOperator::ScmpCmpNe);
    Ok(vec![
        refuse(&socket, EINVAL, &[argument(0, is, NETLINK)?, argument(2, is, AUDIT)?])?,
        allow(&socket, &[argument(0, is_not, NETLINK)?])?,
        allow(&socket, &[argument(2, is_not, AUDIT)?])?,
    ])
}

/// The section names and the calls in each.
fn sections() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let text = POLICY.split("\n[").skip(1);
    text.filter_map(|section| {
        let (name, calls) = section.split_once(']')?;
        Some((name, calls.split_whitespace().collect()))
    })
}

/// The architecture of this machine, and the others that its kernel runs.
fn architectures() -> Vec<Arch> {
    match std::env::consts::ARCH {
        "x86_64" => vec![Arch::ScmpArchX86_64, Arch::ScmpArchX86, Arch::ScmpArchX32],
        "aarch64" => vec![Arch::ScmpArchAarch64, Arch::ScmpArchArm],
        _ => vec![Arch::ScmpArchNative],
    }
}

fn allow(calls: &[String], arguments: &[LinuxSeccompArg]) -> Result<LinuxSyscall, OciSpecError> {
    let rule = LinuxSyscallBuilder::default().names(calls).action(LinuxSeccompAction::ScmpActAllow);
    if arguments.is_empty() { rule.build() } else { rule.args(arguments).build() }
}

fn refuse(calls: &[String], error: u32, arguments: &[LinuxSeccompArg]) -> Result<LinuxSyscall, OciSpecError> {
    let rule = LinuxSyscallBuilder::default().names(calls).action(LinuxSeccompAction::ScmpActErrno).errno_ret(error);
    if arguments.is_empty() { rule.build() } else { rule.args(arguments).build() }
}

fn argument(index: usize, operator: LinuxSeccompOperator, value: u64) -> Result<LinuxSeccompArg, OciSpecError> {
    LinuxSeccompArgBuilder::default().index(index).op(operator).value(value).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(call: &str, granted: &[Capability]) -> Vec<(LinuxSeccompAction, Option<u32>)> {
        let filter = filter(&granted.iter().copied().collect()).unwrap();
        let rules = filter.syscalls().as_ref().unwrap().iter();
        let of_call = rules.filter(|rule| rule.names().iter().any(|name| name == call));
        of_call.map(|rule| (rule.action(), rule.errno_ret())).collect()
    }

    #[test]
    fn a_call_may_be_made_always_never_or_with_a_capability() {
        let (allowed, refused) =
            ([(LinuxSeccompAction::ScmpActAllow, None)], [(LinuxSeccompAction::ScmpActErrno, Some(EPERM))]);
        assert_eq!(actions("read", &[]), allowed);
        assert_eq!(actions("kexec_load", &[Capability::SysAdmin]), refused);
        assert_eq!(actions("bpf", &[]), refused);
        assert_eq!(actions("bpf", &[Capability::SysAdmin]), allowed);
        assert_eq!(actions("socket", &[Capability::AuditWrite]), allowed);
        assert_eq!(actions("socket", &[]).len(), 3);
        assert!(actions("no_such_call", &[]).is_empty());
    }

    #[test]
    fn the_policy_names_each_call_once_and_no_capability_that_there_is_not() {
        let mut seen = HashSet::new();
        for (section, calls) in sections() {
            let is_known = ["always", "never"].contains(&section) || section.parse::<Capability>().is_ok();
            assert!(is_known && !calls.is_empty(), "{section}");
            for call in calls {
                let is_plain =
                    call.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
                assert!(is_plain && seen.insert(call), "{call}");
            }
        }
        assert!(seen.len() > 400);
    }
}
