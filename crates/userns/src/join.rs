//! Entering the namespaces of another process.

use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;

use crate::error::{UsernsError, failed};

/// Enters the user and the mount namespace of a process of this user, as root of it. The working directory stays.
///
/// # Errors
/// The process has ended, its namespaces belong to another user, or this process has several threads.
pub fn join(process: Pid) -> Result<(), UsernsError> {
    check_that_this_is_the_only_thread()?;
    let folder = std::env::current_dir();
    let open = |kind| File::open(format!("/proc/{}/ns/{kind}", process.as_raw_nonzero()));
    let step = "open the namespaces of the process to join";
    let (user, mount) = (open("user").map_err(failed(step))?, open("mnt").map_err(failed(step))?);
    let enter = |namespace: &File, kind| rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind));
    enter(&user, LinkNameSpaceType::User).map_err(failed("enter the user namespace"))?;
    enter(&mount, LinkNameSpaceType::Mount).map_err(failed("enter the mount namespace"))?;
    match folder {
        Ok(folder) => std::env::set_current_dir(folder).map_err(failed("return to the working directory")),
        // It was removed before.
        Err(_) => Ok(()),
    }
}

pub(crate) fn check_that_this_is_the_only_thread() -> Result<(), UsernsError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(failed("count the threads"))?.count();
    if threads == 1 { Ok(()) } else { Err(UsernsError::Threads(threads)) }
}
