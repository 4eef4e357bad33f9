//! A process confines itself before it parses what strangers wrote.
//!
//! [`Sandbox::enter`] cannot be undone: afterwards the process has no capability, reads and writes the paths that it
//! named, makes connections only if it asked for that, and starts no other program. All of it is enforced by the
//! kernel: resource limits, capabilities, `no_new_privs`, Landlock, seccomp.
//!
//! ```no_run
//! let confinement = tarpon_sandbox::Sandbox::new()
//!     .may_read("/etc/ssl")
//!     .may_write("/var/lib/tarpon/objects")
//!     .may_connect()
//!     .limit_memory(512 << 20)
//!     .enter()?;
//! eprintln!("{confinement}");
//! # Ok::<(), tarpon_sandbox::SandboxError>(())
//! ```
//!
//! What the process needs from outside it opens before it enters; descriptors stay usable. Landlock decides when a path
//! is opened, by the file that had the path when the process entered: where a file is replaced by another one (such as
//! `/etc/resolv.conf` by some network managers), its folder is what [`Sandbox::may_read`] must name.
//!
//! What stays possible: the size, times and owner of every file that the file permissions show (Landlock limits opening,
//! not `stat`); everything with the sockets that the process has, which should be connected stream sockets, because a
//! Unix datagram socket can send to others; UDP to any address with [`Sandbox::may_connect`]. Without Landlock
//! ([`Confinement::landlock`]) the file permissions alone limit the paths: then a process of root reads what root owns,
//! the memory of other processes of root included, so it should have a user of its own ([`Sandbox::as_own_user`]).
//!
//! [`keep_mount_privileges`] is for the process of root that uses such processes.

mod confinement;
mod error;
mod mounter;
mod paths;
mod privileges;
mod sandbox;
mod seccomp;

pub use confinement::{Confinement, LandlockStatus};
pub use error::SandboxError;
pub use mounter::keep_mount_privileges;
pub use privileges::OWN_USER;
pub use sandbox::Sandbox;
