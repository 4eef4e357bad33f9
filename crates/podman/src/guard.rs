//! [`Guard`]: a process that outlives the server and unmounts what the server leaves on the folder of Podman's store.
//!
//! A FUSE mount whose server is dead makes every command of Podman fail. The guard holds one end of a pipe and reads it to the end, which
//! marks the end of the server, however it ended. It then removes the mount if it is dead. Below it is an empty store.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Poll interval for a mount that the kernel has not yet marked as dead.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of polls: the kernel releases everything of a process within milliseconds of its end.
const POLLS: u32 = 100;

/// A running guard. It ends by itself when this is dropped or this process dies.
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts a guard of `folder`; `None` where the program cannot be started as a server.
    pub(crate) fn start(server_command: &[OsString], folder: &Path) -> io::Result<Option<Self>> {
        let Some((program, arguments)) = server_command.split_first() else { return Ok(None) };
        let mut command = Command::new(program);
        command.args(arguments).arg("--guard").arg(folder).current_dir("/");
        // Its standard input is the pipe. Only this process has the other end.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Some(Self { child: command.spawn()? }))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It waits for nothing but the mount, which is gone or alive.
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, "the guard of Podman's store");
        }
    }
}

/// The main function of a guard: waits until `input` ends, then removes a dead mount from `folder`.
pub fn guard(mut input: impl Read, folder: &Path) -> io::Result<()> {
    // A signal to the server's terminal must not end the guard.
    let _is_leader_already = rustix::process::setsid();
    let mut ignored = [0; 64];
    while input.read(&mut ignored)? > 0 {}
    for _ in 0..POLLS {
        let is_ours = tarpon_mount::mount_at(folder)?.is_some_and(|mount| mount.is_ours());
        if !is_ours {
            return Ok(());
        }
        match tarpon_mount::clear_dead(folder) {
            Ok(true) => return Ok(()),
            // The mount is alive: it is that of the next server, or the kernel is still releasing the dead one.
            Ok(false) => std::thread::sleep(POLL_INTERVAL),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(())
}
