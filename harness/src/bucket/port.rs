//! A port that no other program gets, also while its server is stopped.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

/// A free port of an address of this machine, which is reserved as long as this exists.
pub(super) struct Port {
    address: SocketAddr,
    /// Bound, and never listens: the kernel gives the port to no one who asks for a free one, refuses connections to it, and
    /// permits a server that asks for this port to listen there, because both have SO_REUSEADDR.
    _reservation: OwnedFd,
}

impl Port {
    pub(super) fn reserve(host: Ipv4Addr) -> Result<Self> {
        reserve(host).with_context(|| format!("cannot reserve a port of {host}"))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn reserve(host: Ipv4Addr) -> Result<Port> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(host, 0))?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok(Port { address, _reservation: socket })
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_reserved_port_refuses_connections_until_its_server_listens_and_afterwards() {
        let port = Port::reserve(Ipv4Addr::LOCALHOST).unwrap();
        let connect = || TcpStream::connect(port.address()).map_err(|error| error.kind());
        assert_eq!(connect().unwrap_err(), ErrorKind::ConnectionRefused);
        for _ in 0..2 {
            let server = TcpListener::bind(port.address()).unwrap();
            let (client, accepted) = (connect().unwrap(), server.accept().unwrap());
            // The server closes first, as one that is killed, so that its port keeps a connection that ended.
            drop((accepted, client, server));
            assert_eq!(connect().unwrap_err(), ErrorKind::ConnectionRefused);
        }
    }

    #[test]
    fn a_reserved_port_is_not_given_to_those_who_ask_for_a_free_one() {
        let port = Port::reserve(Ipv4Addr::LOCALHOST).unwrap();
        // All ports that are free at once.
        let others: Vec<_> = (0..2000).map_while(|_| TcpListener::bind("127.0.0.1:0").ok()).collect();
        assert!(others.len() > 500);
        assert!(others.iter().all(|other| other.local_addr().unwrap() != port.address()));
    }
}
