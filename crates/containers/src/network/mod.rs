//! Networks of containers: that of the host, none, or one of their own, which programs of the host connect.
//!
//! ```text
//! kind        the networks a user can choose
//! publish     published ports, as Podman writes them
//! connection  connects a container, and removes everything of its network again
//! namespace   a network namespace with a name, so that it can be connected before the container starts
//! pasta       pasta(1) of passt: packets of the namespace become sockets of this user
//! bridge      netavark: a bridge that all containers of root on this host share
//! leases      the subnet of the bridge and the addresses in use
//! subnet      a private subnet that this host does not use
//! sockets     host ports that are reserved, so that a conflict is noticed before anything starts
//! files       /etc/hosts and /etc/resolv.conf
//! ```
//!
//! A network exists from the start of a container until it has ended. The container's record names it before it is made, so that the
//! process that removes the container after a crash finds all of it.

mod bridge;
mod connection;
mod files;
mod kind;
mod leases;
mod namespace;
mod pasta;
mod publish;
mod sockets;
mod subnet;

pub(crate) use connection::Connected;
pub use connection::Connection;
pub use kind::Network;
pub use publish::{Port, Protocol, Publish};
