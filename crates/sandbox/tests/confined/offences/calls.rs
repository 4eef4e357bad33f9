//! System calls that a confined process may not make. Most are made with arguments that the kernel refuses otherwise,
//! with another error, so that they change nothing where the sandbox does not refuse them.

use std::os::unix::process::CommandExt as _;

use rustix::io::Errno;

use super::offence::{Act, Offence, offence};
use crate::syscall::syscall;

/// An address at which no memory is.
const NOWHERE: usize = 1;
/// A descriptor that is not open.
const CLOSED: usize = usize::MAX;

pub(super) const OFFENCES: &[Offence] = &[
    // Programs and processes.
    Offence {
        // It would replace the process that prints the result.
        is_harmless: false,
        ..offence("execute a program", |_| Box::new(|| Err(std::process::Command::new("/bin/true").exec())))
    },
    offence("execute a program from a descriptor", |_| call(libc::SYS_execveat, [CLOSED, 0, 0, 0, 0, 0])),
    offence("start a process", |_| Box::new(|| fork(libc::SYS_clone, [SIGCHLD, 0, 0, 0, 0, 0]))),
    Offence {
        error: Errno::NOSYS,
        ..offence("start a process with flags that no filter sees", |_| {
            call(libc::SYS_clone3, [NOWHERE, 64, 0, 0, 0, 0])
        })
    },
    #[cfg(target_arch = "x86_64")]
    offence("start a process with the oldest call", |_| Box::new(|| fork(libc::SYS_fork, [0; 6]))),
    // The parent and other processes.
    Offence {
        is_harmless: false,
        ..offence("trace its parent", |at| {
            let parent = at.parent as usize;
            call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, parent, 0, 0, 0, 0])
        })
    },
    offence("read the memory of its parent", |at| {
        call(libc::SYS_process_vm_readv, [at.parent as usize, 0, 0, 0, 0, 0])
    }),
    offence("write the memory of its parent", |at| {
        call(libc::SYS_process_vm_writev, [at.parent as usize, 0, 0, 0, 0, 0])
    }),
    offence("send a signal to its parent", |at| call(libc::SYS_kill, [at.parent as usize, 0, 0, 0, 0, 0])),
    offence("send a signal to a thread of its parent", |at| {
        call(libc::SYS_tgkill, [at.parent as usize, at.parent as usize, 0, 0, 0, 0])
    }),
    offence("send a signal to a thread by its number", |at| call(libc::SYS_tkill, [at.parent as usize, 0, 0, 0, 0, 0])),
    offence("send a signal to all of its processes", |_| call(libc::SYS_kill, [CLOSED, 0, 0, 0, 0, 0])),
    offence("let a descriptor send signals to its parent", |at| {
        let (read, _write) = std::io::pipe().unwrap();
        let parent = at.parent as usize;
        Box::new(move || {
            syscall(libc::SYS_fcntl, [descriptor(&read), libc::F_SETOWN as usize, parent, 0, 0, 0]).map(drop)
        })
    }),
    offence("open its parent as a descriptor", |at| call(libc::SYS_pidfd_open, [at.parent as usize, 0, 0, 0, 0, 0])),
    offence("take a descriptor of another process", |_| call(libc::SYS_pidfd_getfd, [CLOSED, 0, 0, 0, 0, 0])),
    offence("compare itself with its parent", |at| {
        call(libc::SYS_kcmp, [at.parent as usize, at.parent as usize, 0, 0, 0, 0])
    }),
    offence("limit its parent", |at| call(libc::SYS_prlimit64, [at.parent as usize, 7, 0, 0, 0, 0])),
    offence("raise its own limits", |_| call(libc::SYS_prlimit64, [0, 7, NOWHERE, 0, 0, 0])),
    // Users and namespaces.
    offence("become root", |_| call(libc::SYS_setuid, [0; 6])),
    offence("become root in all ways", |_| call(libc::SYS_setresuid, [0; 6])),
    offence("change its groups", |_| call(libc::SYS_setgroups, [0; 6])),
    offence("set capabilities", |_| call(libc::SYS_capset, [NOWHERE, 0, 0, 0, 0, 0])),
    offence("make a user namespace", |_| call(libc::SYS_unshare, [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0])),
    offence("enter a namespace", |_| {
        let namespace = std::fs::File::open("/proc/self/ns/uts").unwrap();
        Box::new(move || syscall(libc::SYS_setns, [descriptor(&namespace), 0, 0, 0, 0, 0]).map(drop))
    }),
    offence("change its root", |_| call(libc::SYS_chroot, [0; 6])),
    offence("exchange its root", |_| call(libc::SYS_pivot_root, [0; 6])),
    // Mounts.
    offence("mount", |_| call(libc::SYS_mount, [0; 6])),
    offence("unmount", |_| call(libc::SYS_umount2, [0; 6])),
    offence("open a file system", |_| call(libc::SYS_fsopen, [0; 6])),
    offence("open a mount tree", |_| call(libc::SYS_open_tree, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("move a mount", |_| call(libc::SYS_move_mount, [CLOSED, NOWHERE, CLOSED, NOWHERE, 0, 0])),
    offence("change the attributes of a mount", |_| call(libc::SYS_mount_setattr, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    // Files by other ways than paths.
    offence("open a file by its handle", |_| call(libc::SYS_open_by_handle_at, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("ask for the handle of a file", |_| call(libc::SYS_name_to_handle_at, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("make a file in memory", |_| call(libc::SYS_memfd_create, [NOWHERE, 0, 0, 0, 0, 0])),
    Offence {
        error: Errno::NOSYS,
        ..offence("open a file with a mode that no filter sees", |_| {
            call(libc::SYS_openat2, [CLOSED, NOWHERE, NOWHERE, 24, 0, 0])
        })
    },
    offence("set an extended attribute", |_| call(libc::SYS_fsetxattr, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("change the owner of a file", |_| call(libc::SYS_fchownat, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("send input to its terminal", |_| call(libc::SYS_ioctl, [CLOSED, 0x5412, NOWHERE, 0, 0, 0])),
    offence("watch files of others", |_| call(libc::SYS_fanotify_init, [usize::MAX, 0, 0, 0, 0, 0])),
    // Code.
    offence("make memory executable", |_| {
        call(libc::SYS_mprotect, [NOWHERE, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, 0, 0, 0])
    }),
    offence("map executable memory", |_| {
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        call(libc::SYS_mmap, [0, 4096, (libc::PROT_READ | libc::PROT_EXEC) as usize, flags, CLOSED, 0])
    }),
    offence("make addresses predictable and memory executable", |_| {
        call(libc::SYS_personality, [usize::MAX, 0, 0, 0, 0, 0])
    }),
    // Its own confinement.
    offence("allow core dumps and tracers", |_| call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 1, 0, 0, 0, 0])),
    offence("answer for its own system calls", |_| call(libc::SYS_seccomp, [usize::MAX, 0, 0, 0, 0, 0])),
    // The kernel.
    offence("load a program into the kernel", |_| call(libc::SYS_bpf, [0, NOWHERE, 48, 0, 0, 0])),
    offence("make an io_uring", |_| call(libc::SYS_io_uring_setup, [1, NOWHERE, 0, 0, 0, 0])),
    offence("count events", |_| call(libc::SYS_perf_event_open, [NOWHERE, 0, 0, CLOSED, 0, 0])),
    offence("handle page faults", |_| call(libc::SYS_userfaultfd, [usize::MAX, 0, 0, 0, 0, 0])),
    offence("use the kernel's keys", |_| call(libc::SYS_keyctl, [usize::MAX, 0, 0, 0, 0, 0])),
    offence("add a key", |_| call(libc::SYS_add_key, [NOWHERE, 0, 0, 0, 0, 0])),
    offence("load a module", |_| call(libc::SYS_finit_module, [CLOSED, NOWHERE, 0, 0, 0, 0])),
    offence("remove a module", |_| call(libc::SYS_delete_module, [NOWHERE, 0, 0, 0, 0, 0])),
    offence("load another kernel", |_| call(libc::SYS_kexec_load, [0, 0, 0, usize::MAX, 0, 0])),
    offence("restart the machine", |_| call(libc::SYS_reboot, [0; 6])),
    offence("swap to a file", |_| call(libc::SYS_swapon, [NOWHERE, 0, 0, 0, 0, 0])),
    offence("record the processes", |_| call(libc::SYS_acct, [NOWHERE, 0, 0, 0, 0, 0])),
    offence("set quotas", |_| call(libc::SYS_quotactl, [usize::MAX, 0, 0, 0, 0, 0])),
    offence("set the time", |_| call(libc::SYS_clock_settime, [0, NOWHERE, 0, 0, 0, 0])),
    offence("read the kernel's messages", |_| call(libc::SYS_syslog, [usize::MAX, 0, 0, 0, 0, 0])),
];

const SIGCHLD: usize = libc::SIGCHLD as usize;

fn call(number: i64, arguments: [usize; 6]) -> Act {
    Box::new(move || syscall(number, arguments).map(drop))
}

fn descriptor(of: &impl std::os::fd::AsRawFd) -> usize {
    usize::try_from(of.as_raw_fd()).unwrap()
}

/// The new process, which shares no memory with this one, ends at once.
fn fork(number: i64, arguments: [usize; 6]) -> std::io::Result<()> {
    if syscall(number, arguments)? == 0 {
        syscall(libc::SYS_exit_group, [0; 6])?;
    }
    Ok(())
}
