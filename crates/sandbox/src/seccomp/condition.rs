//! The system calls that are allowed with some arguments only, and for which ones.

use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// A condition on one argument: its position, how it is compared, with what.
type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// A system call, and the conditions on its arguments that have to hold together.
type Rule = (i64, Vec<Condition>);

/// The kinds of `clone` that make something other than a thread.
const NAMESPACES: u64 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

/// The type of a socket, without `SOCK_CLOEXEC` and `SOCK_NONBLOCK`.
const SOCKET_TYPE: u64 = 0xf;

/// The bits of a mode that let a program run as the owner of its file, who may be root.
const SET_ID: u64 = 0o6000;

const EXECUTABLE: u64 = bits(libc::PROT_EXEC);
const ANONYMOUS: u64 = bits(libc::MAP_ANONYMOUS);

/// Terminal attributes (`isatty`), modes of descriptors, the number of readable bytes, and copies that share blocks.
const IOCTLS: &[u64] = &[
    0x5401,      // TCGETS
    0x802c_542a, // TCGETS2
    0x5413,      // TIOCGWINSZ
    0x541b,      // FIONREAD
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x4004_9409, // FICLONE
    0x4020_940d, // FICLONERANGE
];

/// Not among them are the owner and the signal of a descriptor, with which a process sends any signal to others of its
/// user.
const FCNTLS: &[i32] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_GETLK,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
    libc::F_GETPIPE_SZ,
    libc::F_SETPIPE_SZ,
];

/// Names of threads, and facts.
const PRCTLS: &[i32] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_DUMPABLE,
    libc::PR_GET_SECCOMP,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_CAPBSET_READ,
];

/// All rules. Those of one system call are alternatives.
pub(super) fn conditions(may_connect: bool) -> Result<Vec<(i64, SeccompRule)>, BackendError> {
    let mut rules = threads_and_signals();
    rules.extend(memory());
    rules.extend(files());
    rules.extend(sockets(may_connect));
    rules.into_iter().map(|(call, conditions)| Ok((call, rule(conditions)?))).collect()
}

fn rule(conditions: Vec<Condition>) -> Result<SeccompRule, BackendError> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, length, operator, value)| SeccompCondition::new(argument, length, operator, value));
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

fn threads_and_signals() -> Vec<Rule> {
    let this_process = u64::from(std::process::id());
    let thread = bits(libc::CLONE_THREAD);
    let mut rules = vec![
        (libc::SYS_clone, vec![masked(0, thread | NAMESPACES, thread)]),
        (libc::SYS_kill, vec![equal(0, this_process)]),
        // `abort` of glibc; that of musl calls `tkill`, which names a thread alone: the first one has this number.
        (libc::SYS_tgkill, vec![equal(0, this_process)]),
        (libc::SYS_tkill, vec![equal(0, this_process)]),
        // To read own limits (the size of a thread's stack), not to set them, nor those of others.
        (libc::SYS_prlimit64, vec![equal(0, 0), no_pointer(2)]),
    ];
    rules.extend(PRCTLS.iter().map(|option| (libc::SYS_prctl, vec![equal(0, bits(*option))])));
    rules
}

/// Memory of this process never becomes code. Files may be mapped as code, as glibc loads modules to resolve names: so
/// what is in a file that it may read can be executed in its own process, with what this process may do.
fn memory() -> Vec<Rule> {
    vec![
        (libc::SYS_mmap, vec![masked(2, EXECUTABLE, 0)]),
        (libc::SYS_mmap, vec![masked(3, ANONYMOUS, 0)]),
        (libc::SYS_mprotect, vec![masked(2, EXECUTABLE, 0)]),
    ]
}

fn files() -> Vec<Rule> {
    let mut rules = vec![
        // The C libraries pass a mode of 0 where no file is created.
        (libc::SYS_openat, vec![masked(3, SET_ID, 0)]),
        (libc::SYS_fchmod, vec![masked(1, SET_ID, 0)]),
        (libc::SYS_fchmodat, vec![masked(2, SET_ID, 0)]),
    ];
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        (libc::SYS_open, vec![masked(2, SET_ID, 0)]),
        (libc::SYS_creat, vec![masked(1, SET_ID, 0)]),
        (libc::SYS_chmod, vec![masked(1, SET_ID, 0)]),
    ]);
    rules.extend(IOCTLS.iter().map(|request| (libc::SYS_ioctl, vec![equal(1, *request)])));
    rules.extend(FCNTLS.iter().map(|command| (libc::SYS_fcntl, vec![equal(1, bits(*command))])));
    rules
}

fn sockets(may_connect: bool) -> Vec<Rule> {
    // Not datagrams: a pair of these can connect to other Unix sockets, as a stream cannot.
    let pairs = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let mut rules: Vec<Rule> = pairs
        .into_iter()
        .map(|kind| (libc::SYS_socketpair, vec![equal(0, bits(libc::AF_UNIX)), masked(1, SOCKET_TYPE, bits(kind))]))
        .collect();
    if !may_connect {
        // `send`, which is `sendto` without an address.
        rules.push((libc::SYS_sendto, vec![no_pointer(4)]));
        return rules;
    }
    let transports = [(libc::SOCK_STREAM, libc::IPPROTO_TCP), (libc::SOCK_DGRAM, libc::IPPROTO_UDP)];
    for family in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in transports {
            for protocol in [0, protocol] {
                rules.push(socket(family, kind, protocol));
            }
        }
    }
    // `getaddrinfo` of glibc asks which kinds of addresses this machine has.
    rules.push(socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE));
    rules
}

fn socket(family: i32, kind: i32, protocol: i32) -> Rule {
    let conditions = vec![equal(0, bits(family)), masked(1, SOCKET_TYPE, bits(kind)), equal(2, bits(protocol))];
    (libc::SYS_socket, conditions)
}

/// An argument of which the kernel reads 32 bits has this value.
fn equal(argument: u8, value: u64) -> Condition {
    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Of these bits of an argument exactly those of the value are set.
fn masked(argument: u8, mask: u64, value: u64) -> Condition {
    (argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

/// A pointer is null: all 64 bits.
fn no_pointer(argument: u8) -> Condition {
    (argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// A constant of the C library, as the kernel's filter sees it.
const fn bits(constant: i32) -> u64 {
    constant.cast_unsigned() as u64
}
