//! Notifies the service manager of our state: one datagram to the socket in `$NOTIFY_SOCKET`, as in sd_notify(3).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service is ready.
pub const READY: &str = "READY=1";
/// The service is stopping.
pub const STOPPING: &str = "STOPPING=1";

/// How long the manager may take to make room for a message. Its queue is short, and `READY=1` follows one message for each stored descriptor.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// The service replaces itself; [`READY`] follows.
pub fn reloading() -> String {
    // Of CLOCK_MONOTONIC, as `sd_notify(3)` requires.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec * 1_000_000 + now.tv_nsec / 1000)
}

/// Asks the service manager for more time to start, from now on.
pub(crate) fn extend_start(limit: Duration) {
    notify(&format!("EXTEND_TIMEOUT_USEC={}", limit.as_micros()));
}

/// Sends the state, if there is a service manager.
pub fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(socket.as_bytes(), state) {
        tracing::warn!(%error, "the service manager was not notified of {state}");
    }
}

fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::path::Path::new(std::ffi::OsStr::from_bytes(socket)))?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_write_timeout(Some(SEND_LIMIT))?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_notified_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("@tarpon-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let managers = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&abstract_name).unwrap()];
        for (manager, socket) in managers.iter().zip([path.as_os_str().as_bytes(), name.as_bytes()]) {
            send(socket, READY).unwrap();
            let mut message = [0; 64];
            let length = manager.recv(&mut message).unwrap();
            assert_eq!(&message[..length], b"READY=1");
        }
        assert!(send(b"/nowhere/at/all", READY).is_err());
    }
}
