//! [`Passed`]: the descriptors that systemd passed to this process (`sd_listen_fds(3)`).

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use listenfd::ListenFd;
use rustix::io::{FdFlags, fcntl_setfd};

/// Variable with the names of the descriptors.
pub(super) const NAMES: &str = "LISTEN_FDNAMES";

/// The descriptors with their names, in the order of systemd: sockets of units first.
pub(super) struct Passed(pub(super) Vec<(String, OwnedFd)>);

impl Passed {
    /// Takes them, once. Call it before there are other threads: it removes systemd's variables from the environment.
    #[expect(unsafe_code, reason = "systemd passes descriptors as numbers")]
    pub(super) fn take() -> io::Result<Self> {
        let names = std::env::var(NAMES).unwrap_or_default();
        let mut names = names.split(':');
        let mut passed = ListenFd::from_env();
        let mut taken = Vec::with_capacity(passed.len());
        for at in 0..passed.len() {
            let Some(number) = passed.take_raw_fd(at)? else { continue };
            // SAFETY: the variables name this process, so systemd opened the descriptor for it. `take_raw_fd` returns each number once, and
            // the variables are gone after the first call of `from_env`.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
            taken.push((names.next().unwrap_or_default().to_owned(), descriptor));
        }
        Ok(Self(taken))
    }
}
