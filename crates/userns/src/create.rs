//! A new user namespace for this process.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, getgid, getuid};
use rustix::thread::UnshareFlags;

use crate::error::{UsernsError, failed};
use crate::ids::{Ids, arguments};
use crate::join::check_that_this_is_the_only_thread;

/// Puts this process into a new user namespace, in which this user is root, and a new mount namespace. `mapper` is a command
/// that calls [`map_ids`] with the ID of this process, which must be its last argument; it is started if the user has
/// subordinate IDs.
///
/// # Errors
/// The kernel does not allow user namespaces to this user, `newuidmap` fails, or this process has several threads.
pub fn create(ids: &Ids, mapper: Command) -> Result<(), UsernsError> {
    check_that_this_is_the_only_thread()?;
    // Only a process outside of the new namespace can run programs that gain privileges.
    let mapper = if ids.are_enough() { Some(start(mapper)?) } else { None };
    let own = (getuid().as_raw(), getgid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(|error| UsernsError::Refused(error.into()))?;
    match mapper {
        Some(mapper) => finish(mapper),
        None => map_own_id(own),
    }
}

#[allow(unsafe_code, reason = "the library has one call for all flags, and one of them shares descriptors")]
fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: without CLONE_FILES the table of descriptors stays shared by all threads, so that each descriptor that a value
    // owns stays open. There is one thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn start(mut mapper: Command) -> Result<Child, UsernsError> {
    let started = mapper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    started.map_err(failed("start the process that maps IDs"))
}

/// Lets the process map the IDs, and waits for it.
fn finish(mut mapper: Child) -> Result<(), UsernsError> {
    let go = mapper.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(b"\n"));
    let output = mapper.wait_with_output().map_err(failed("wait for the process that maps IDs"))?;
    if go.is_ok() && output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(UsernsError::Map(if text.is_empty() { output.status.to_string() } else { text }))
}

/// One user and one group: files of others show the overflow ID (65534).
fn map_own_id((user, group): (u32, u32)) -> Result<(), UsernsError> {
    let write = |file, text: String| fs::write(format!("/proc/self/{file}"), text).map_err(failed("map the user's ID"));
    // A group can be mapped only by a process that cannot leave groups, which may deny something.
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {user} 1"))?;
    write("gid_map", format!("0 {group} 1"))
}

/// Waits on the standard input for the process to be in its new namespace, and maps the subordinate IDs of this user into
/// it, with `newuidmap` and `newgidmap` of the package uidmap or shadow-utils.
///
/// # Errors
/// The programs are missing or fail, or the process has ended.
pub fn map_ids(process: Pid) -> Result<(), UsernsError> {
    let mut line = [0; 1];
    if std::io::stdin().read(&mut line).map_err(failed("wait for the namespace"))? == 0 {
        return Ok(());
    }
    let ids = Ids::of_this_user();
    run("newuidmap", process, arguments(getuid().as_raw(), &ids.users))?;
    run("newgidmap", process, arguments(getgid().as_raw(), &ids.groups))
}

fn run(program: &str, process: Pid, arguments: Vec<String>) -> Result<(), UsernsError> {
    let output = Command::new(program).arg(process.as_raw_nonzero().to_string()).args(arguments).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(UsernsError::Map(format!("{program}: {text}")))
        }
        Err(error) => Err(UsernsError::Map(format!("{program}: {error}"))),
    }
}
