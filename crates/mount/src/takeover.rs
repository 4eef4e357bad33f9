//! Taking over a FUSE connection whose server has died.
//!
//! The library serves only connections that it has initialised. So the session is initialised on a socket, from which it
//! reads an INIT request of ours; then the socket's descriptor becomes that of the connection. The kernel sends again
//! what the dead server has read and not answered (`FUSE_NOTIFY_RESEND`, Linux 6.9). Older kernels have failed those
//! requests already ([`device::for_server`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use fuser::{Config, InitFlags, Session, SessionACL};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::adapter::Adapter;
use crate::device;
use crate::kernel::{StepError, io_step};

/// Opcode of INIT in `<linux/fuse.h>`.
const INIT: u32 = 26;
/// Size of `fuse_in_header` and `fuse_init_in` there.
const INIT_BYTES: u8 = 40 + 64;
/// The protocol that the library speaks. An older kernel has offered fewer capabilities, which is all that counts here.
const VERSION: (u32, u32) = (7, 40);
/// Read-ahead that the kernel offers; its own value was settled by the true INIT.
const READ_AHEAD: u32 = 128 << 10;
/// Code of the notification in `<linux/fuse.h>`.
const NOTIFY_RESEND: i32 = 7;

/// A session on a connection that another process has initialised with these capabilities of the kernel.
pub(crate) fn session(
    adapter: Adapter,
    device: BorrowedFd<'_>,
    offered: InitFlags,
    config: Config,
) -> Result<Session<Adapter>, StepError> {
    let (session, _socket) = on_socket(adapter, offered, config)?;
    device::replace(session.as_fd(), device).map_err(|error| io_step("take the FUSE connection over", &error))?;
    Ok(session)
}

/// An initialised session on a socket, and the other end of that, where its response to INIT is to be read.
pub(crate) fn on_socket(
    adapter: Adapter,
    offered: InitFlags,
    config: Config,
) -> Result<(Session<Adapter>, OwnedFd), StepError> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, kernel) = pair.map_err(|errno| StepError::new("create a pair of sockets", errno))?;
    rustix::io::write(&kernel, &init(offered)).map_err(|errno| StepError::new("send INIT", errno))?;
    let session = Session::from_fd(adapter, ours, SessionACL::All, config)
        .map_err(|error| io_step("start serving FUSE", &error))?;
    Ok((session, kernel))
}

/// Makes the kernel send all requests again that were read and not answered. It must have offered to
/// ([`device::repeats`]).
pub(crate) fn resend(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&NOTIFY_RESEND.to_ne_bytes());
    rustix::io::write(device, &message)?;
    Ok(())
}

/// The request INIT, as a kernel with these capabilities sends it.
fn init(offered: InitFlags) -> [u8; INIT_BYTES as usize] {
    let flags = (offered | InitFlags::FUSE_INIT_EXT).bits();
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default().to_ne_bytes();
    let mut request = [0; INIT_BYTES as usize];
    let mut put = |at: usize, value: [u8; 4]| request[at..at + 4].copy_from_slice(&value);
    put(0, u32::from(INIT_BYTES).to_ne_bytes());
    put(4, INIT.to_ne_bytes());
    // `unique`, of eight bytes, which must not be 0.
    put(8, 1_u32.to_ne_bytes());
    put(40, VERSION.0.to_ne_bytes());
    put(44, VERSION.1.to_ne_bytes());
    put(48, READ_AHEAD.to_ne_bytes());
    put(52, half(flags));
    put(56, half(flags >> 32));
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_connection_is_not_asked_to_send_again() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(resend(writer.as_fd()).is_err());
    }
}
