//! The user namespace of an ordinary user.
//!
//! A user without rights may mount and run containers in a user namespace, where this user is root. [`create`] makes one
//! for this process, with the subordinate IDs of `/etc/subuid` and `/etc/subgid` where the user has some, and with the
//! user's own ID alone where not. [`join`] enters the one of another process: of a server of the store, so that its mounts
//! are visible, or of Podman ([`podman_process`]), so that Podman sees them.
//!
//! ```text
//! ids     ranges of a user in /etc/subuid and /etc/subgid
//! create  unshare(2), and the maps: by newuidmap and newgidmap in a process that stayed outside
//! join    setns(2)
//! podman  Podman's process that keeps its namespaces
//! ```
//!
//! Namespaces are those of a thread: all of this is done before the process starts a second one.

mod create;
mod error;
mod ids;
mod join;
mod podman;

pub use create::{create, map_ids};
pub use error::UsernsError;
pub use ids::{IdRange, Ids};
pub use join::join;
pub use podman::podman_process;
