//! Sockets, and what connects to others.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, netlink, socket_with};

use super::offence::{Act, Offence, offence};
use crate::child::Confined;

/// `AF_ALG`, which rustix does not name.
const CIPHERS: u16 = 38;

pub(super) const OFFENCES: &[Offence] = &[
    Offence {
        confined: Confined::Computing,
        ..offence("connect by TCP without asking for it", |at| {
            let port = at.port;
            Box::new(move || std::net::TcpStream::connect(("127.0.0.1", port)).map(drop))
        })
    },
    Offence {
        confined: Confined::Computing,
        ..offence("open a UDP socket without asking for it", |_| {
            Box::new(|| std::net::UdpSocket::bind("127.0.0.1:0").map(drop))
        })
    },
    Offence {
        confined: Confined::Computing,
        ..offence("open a netlink socket without asking for it", |_| {
            open(AddressFamily::NETLINK, SocketType::RAW, None)
        })
    },
    Offence {
        confined: Confined::Computing,
        ..offence("send datagrams through a socket that it has without asking for it", |at| {
            let (socket, port) = (std::net::UdpSocket::bind("127.0.0.1:0").unwrap(), at.port);
            Box::new(move || socket.send_to(b"text", ("127.0.0.1", port)).map(drop))
        })
    },
    Offence {
        confined: Confined::Computing,
        ..offence("connect a socket that it has without asking for it", |at| {
            let (socket, port) = (tcp_socket(), at.port);
            Box::new(move || Ok(rustix::net::connect(&socket, &local(port))?))
        })
    },
    Offence {
        landlock: 4,
        error: Errno::ACCESS,
        ..offence("bind a TCP socket", |_| Box::new(|| TcpListener::bind("127.0.0.1:0").map(drop)))
    },
    offence("listen", |_| {
        let socket = tcp_socket();
        Box::new(move || Ok(rustix::net::listen(&socket, 1)?))
    }),
    offence("accept a connection of a listener that it has", |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Box::new(move || {
            let accepted = listener.accept().map(drop);
            drop(connection);
            accepted
        })
    }),
    offence("connect to a Unix socket by its path", |at| {
        let path = at.folders.socket();
        Box::new(move || UnixStream::connect(path).map(drop))
    }),
    offence("connect to an abstract Unix socket", |at| {
        let address = at.folders.abstract_socket();
        Box::new(move || UnixStream::connect_addr(&address).map(drop))
    }),
    Offence {
        landlock: 6,
        ..offence("connect a Unix socket that it has to an abstract one", |at| {
            let address =
                rustix::net::SocketAddrUnix::new_abstract_name(at.folders.path().as_os_str().as_encoded_bytes())
                    .unwrap();
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            Box::new(move || Ok(rustix::net::connect(&socket, &address)?))
        })
    },
    Offence {
        landlock: 9,
        error: Errno::ACCESS,
        ..offence("connect a Unix socket that it has by a path", |at| {
            let address = rustix::net::SocketAddrUnix::new(at.folders.socket()).unwrap();
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
            Box::new(move || Ok(rustix::net::connect(&socket, &address)?))
        })
    },
    offence("make a pair of Unix datagram sockets, which could connect", |_| {
        Box::new(|| std::os::unix::net::UnixDatagram::pair().map(drop))
    }),
    offence("open a Unix socket", |_| open(AddressFamily::UNIX, SocketType::STREAM, None)),
    offence("open a socket for all packets", |_| open(AddressFamily::PACKET, SocketType::RAW, None)),
    offence("open a raw IP socket", |_| open(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP))),
    offence("open a raw IPv6 socket", |_| open(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6))),
    offence("open a socket for pings", |_| open(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP))),
    offence("open a socket to virtual machines", |_| open(AddressFamily::VSOCK, SocketType::STREAM, None)),
    offence("open a socket of the kernel's ciphers", |_| {
        open(AddressFamily::from_raw(CIPHERS), SocketType::SEQPACKET, None)
    }),
    offence("open a netlink socket for anything but addresses", |_| {
        open(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::KOBJECT_UEVENT))
    }),
];

fn open(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> Act {
    Box::new(move || Ok(socket_with(family, kind, SocketFlags::CLOEXEC, protocol).map(drop)?))
}

fn tcp_socket() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
