//! Host ports that are reserved, so that a conflict is noticed before anything starts.

use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;

use super::publish::{Port, Protocol};
use crate::{Error, ErrorKind, Result};

/// Reserves the ports on the host, for the life of the result. A port 0 becomes a free one.
///
/// # Errors
/// [`ErrorKind::Conflict`] if a port is in use.
pub(super) fn reserve(ports: &mut [Port]) -> Result<Vec<OwnedFd>> {
    ports.iter_mut().map(|port| bind(port).map_err(|error| explain(port, &error))).collect()
}

fn bind(port: &mut Port) -> io::Result<OwnedFd> {
    let (socket, address) = match port.protocol {
        Protocol::Tcp => {
            let listener = TcpListener::bind(port.host())?;
            let address = listener.local_addr()?;
            (OwnedFd::from(listener), address)
        }
        Protocol::Udp => {
            let socket = UdpSocket::bind(port.host())?;
            let address = socket.local_addr()?;
            (OwnedFd::from(socket), address)
        }
    };
    port.host_port = address.port();
    Ok(socket)
}

fn explain(port: &Port, error: &io::Error) -> Error {
    let (number, protocol) = (port.host_port, port.protocol.name());
    let step = format!("publish port {number}/{protocol} of this host");
    match error.kind() {
        io::ErrorKind::AddrInUse => Error::new(ErrorKind::Conflict, step, "it is in use")
            .hint("tarpon ps shows the ports of containers, and ss -lntup those of programs"),
        io::ErrorKind::PermissionDenied => Error::new(
            ErrorKind::Denied,
            step,
            "this user may not listen on a port with such a low number",
        )
        .hint(format!(
            "use another one, such as -p {}:{}, or allow it: sysctl net.ipv4.ip_unprivileged_port_start={number}",
            8000 + number % 1000,
            port.container_port
        )),
        io::ErrorKind::AddrNotAvailable => {
            Error::new(ErrorKind::NotFound, step, format!("this host has no address {}", port.host().ip()))
        }
        _ => Error::new(ErrorKind::Other, step, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> Vec<Port> {
        text.parse::<super::super::publish::Publish>().unwrap().ports().to_vec()
    }

    #[test]
    fn a_free_port_is_chosen_and_one_in_use_is_a_conflict() {
        for protocol in ["tcp", "udp"] {
            let mut ports = port(&format!("127.0.0.1::80/{protocol}"));
            let held = reserve(&mut ports).unwrap();
            assert_ne!(ports[0].host_port, 0);
            let error = reserve(&mut ports.clone()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Conflict);
            let expected = format!("publish port {}/{protocol} of this host: it is in use", ports[0].host_port);
            assert_eq!(error.to_string(), expected);
            drop(held);
            reserve(&mut ports).unwrap();
        }
    }

    #[test]
    fn an_address_of_another_host_is_named() {
        let error = reserve(&mut port("203.0.113.7:8080:80")).unwrap_err();
        assert!(error.to_string().ends_with("this host has no address 203.0.113.7"), "{error}");
    }
}
