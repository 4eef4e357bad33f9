//! What `/proc/PID/status` shows.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsFd as _;

use libtest_mimic::Trial;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use tarpon_sandbox::{Sandbox, SandboxError};

use crate::child::{self, Confined, Surroundings, User, say, say_confined, users};
use crate::syscall::syscall;
use crate::world::World;

const WAIT: &str = "waits";
const MOUNTER: &str = "keeps-mount-privileges";
const TWO_THREADS: &str = "has-two-threads";

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![Trial::test("a process with two threads is not confined", || {
        let reported = child::run_to_its_end(&World::new(), User::Same, Confined::Not, TWO_THREADS);
        assert_eq!(reported.result, "2");
        Ok(())
    })];
    if rustix::process::geteuid().is_root() {
        trials.push(Trial::test("a server of root mounts, and changes neither the kernel nor other processes", || {
            let reported = child::run_to_its_end(&World::new(), User::Same, Confined::Not, MOUNTER);
            assert_eq!(reported.result, "refused", "{:?}", reported.output);
            Ok(())
        }));
    }
    for (user, name) in users() {
        trials.push(Trial::test(format!("a confined process has no rights left, {name}"), move || {
            has_no_rights(user);
            Ok(())
        }));
    }
    trials
}

fn has_no_rights(user: User) {
    let world = World::new();
    let mut child = child::start(&world, user, Confined::Connecting, WAIT);
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let path = format!("/proc/{}/status", child.id());
    let status = std::fs::read_to_string(path).unwrap();
    let status: HashMap<&str, &str> =
        status.lines().filter_map(|line| line.split_once(':')).map(|(key, value)| (key, value.trim())).collect();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    // Only a process with CAP_SETPCAP can change the bounding set, which without programs to execute has no effect.
    if user == User::Same && rustix::process::geteuid().is_root() {
        assert_eq!(status["CapBnd"], "0000000000000000");
    }
    assert_eq!((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"));
}

fn mount_and_be_refused(at: &Surroundings) {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    rustix::mount::fsconfig_create(context.as_fd()).unwrap();
    let flags = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
    rustix::mount::fsmount(context.as_fd(), flags.0, flags.1).unwrap();
    // With arguments that the kernel refuses with another error where nothing else does.
    let parent = usize::try_from(at.parent).unwrap();
    let calls = [
        (libc::SYS_ptrace, [usize::MAX, parent, 0, 0, 0, 0]),
        (libc::SYS_process_vm_writev, [parent, 0, 0, 0, 0, 0]),
        (libc::SYS_finit_module, [usize::MAX, 0, 0, 0, 0, 0]),
        (libc::SYS_bpf, [usize::MAX, 0, 0, 0, 0, 0]),
        (libc::SYS_kexec_load, [0, 0, 0, usize::MAX, 0, 0]),
        (libc::SYS_io_uring_setup, [0; 6]),
    ];
    for (call, arguments) in calls {
        assert_eq!(syscall(call, arguments).unwrap_err().raw_os_error(), Some(libc::EPERM), "system call {call}");
    }
}

pub(crate) fn role(role: &str, confined: Confined, surroundings: &Surroundings) -> bool {
    match role {
        WAIT => {
            say_confined(confined.enter(surroundings, None));
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        }
        MOUNTER => {
            tarpon_sandbox::keep_mount_privileges().unwrap();
            say_confined(0);
            mount_and_be_refused(surroundings);
            say("refused");
        }
        TWO_THREADS => {
            let (_hold, held) = std::sync::mpsc::channel::<()>();
            std::thread::spawn(move || held.recv());
            say_confined(0);
            match Sandbox::new().enter() {
                Err(SandboxError::Threads(threads)) => say(threads),
                other => panic!("{other:?}"),
            }
        }
        _ => return false,
    }
    true
}
