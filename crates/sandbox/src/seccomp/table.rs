//! The system calls that are allowed whatever their arguments are. `condition.rs` has those that are allowed in part.
//!
//! Enough for std, a runtime of tokio, TLS, name resolution of glibc and musl, zstd and a store of files, on x86-64 and
//! aarch64.

#[cfg(target_arch = "x86_64")]
mod older;

/// System calls that are allowed for one reason.
pub(super) struct Group {
    /// Why.
    #[allow(dead_code, reason = "read by people")]
    pub(super) reason: &'static str,
    pub(super) calls: &'static [i64],
}

/// These fail with `ENOSYS`, as on an older kernel, so that the C library does the same with another call.
///
/// `clone3` passes its flags in memory, where no filter sees them; `clone` follows. `openat2` passes the mode of a new file likewise.
pub(super) const UNKNOWN: &[i64] = &[libc::SYS_clone3, libc::SYS_openat2];

/// What every confined process may do.
pub(super) const ALWAYS: &[Group] = &[
    Group {
        reason: "open descriptors, whose permission was decided when they were opened",
        calls: &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_preadv2,
            libc::SYS_pwritev2,
            libc::SYS_lseek,
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_fstat,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_syncfs,
            libc::SYS_flock,
            libc::SYS_fadvise64,
            libc::SYS_readahead,
            libc::SYS_copy_file_range,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_tee,
            libc::SYS_getdents64,
            libc::SYS_fstatfs,
            libc::SYS_fgetxattr,
            libc::SYS_flistxattr,
        ],
    },
    Group {
        reason: "paths, which Landlock and the file permissions limit; attributes of files are visible everywhere",
        calls: &[
            libc::SYS_statx,
            libc::SYS_newfstatat,
            libc::SYS_statfs,
            libc::SYS_readlinkat,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_getcwd,
            libc::SYS_getxattr,
            libc::SYS_lgetxattr,
            libc::SYS_listxattr,
            libc::SYS_llistxattr,
            libc::SYS_mkdirat,
            libc::SYS_unlinkat,
            libc::SYS_linkat,
            libc::SYS_symlinkat,
            libc::SYS_renameat2,
            libc::SYS_utimensat,
            libc::SYS_umask,
        ],
    },
    Group {
        reason: "memory, which RLIMIT_DATA limits; what becomes executable is in condition.rs",
        calls: &[
            libc::SYS_brk,
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_msync,
            libc::SYS_mincore,
        ],
    },
    Group {
        reason: "threads of this process",
        calls: &[
            libc::SYS_futex,
            libc::SYS_set_robust_list,
            libc::SYS_set_tid_address,
            libc::SYS_rseq,
            libc::SYS_membarrier,
            libc::SYS_sched_yield,
            libc::SYS_sched_getaffinity,
            libc::SYS_getcpu,
            libc::SYS_gettid,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_restart_syscall,
        ],
    },
    Group {
        reason: "signals that this process receives",
        calls: &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigpending,
            libc::SYS_rt_sigsuspend,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_sigaltstack,
        ],
    },
    Group {
        reason: "time and waiting",
        calls: &[
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_gettimeofday,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_settime,
            libc::SYS_timerfd_gettime,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_eventfd2,
            libc::SYS_pipe2,
        ],
    },
    Group {
        reason: "facts about this process and the machine",
        calls: &[
            libc::SYS_getpid,
            libc::SYS_getppid,
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getgroups,
            libc::SYS_getresuid,
            libc::SYS_getresgid,
            libc::SYS_getrusage,
            libc::SYS_getrandom,
            libc::SYS_sysinfo,
            libc::SYS_uname,
        ],
    },
    Group {
        reason: "sockets that this process has, such as the one to the process that started it, with descriptors in messages",
        calls: &[
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
            libc::SYS_sendmsg,
            libc::SYS_shutdown,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_getsockopt,
            libc::SYS_setsockopt,
        ],
    },
    #[cfg(target_arch = "x86_64")]
    Group { reason: "older forms of calls that are allowed", calls: older::CALLS },
    #[cfg(target_arch = "aarch64")]
    Group { reason: "renameat and sync_file_range, which libc does not name for aarch64 with glibc", calls: &[38, 84] },
];

/// What a process that may connect may do as well.
pub(super) const CONNECTING: &[Group] = &[Group {
    reason: "connections, and datagrams of the resolver; musl's binds its UDP socket, glibc's its netlink socket. Landlock \
             refuses to bind TCP, and nothing allows to listen",
    calls: &[libc::SYS_connect, libc::SYS_bind, libc::SYS_sendto, libc::SYS_sendmmsg],
}];
