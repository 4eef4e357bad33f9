//! Holds the descriptors of a server beyond its death, and starts a successor that gets them.
//!
//! ```text
//!   server ── Keep, Release, Alive, Serving ──► holder process        one small process per store
//!      ✕ dies                                     │ starts
//!                 successor ◄── Held, Held, End ──┘ and hands over; it answers Serving
//! ```
//!
//! As long as a descriptor of a FUSE connection is open that no process serves, its readers wait and cannot be killed. So the holder
//! has a clock: if no successor serves in time, it closes everything, and the kernel answers the readers with an error.
//!
//! [`Holder`] is the server's side, [`hold`] the main function of the process. Neither parses anything but messages of a
//! fixed size from a process of the same user.

mod channel;
mod command;
mod dead_mounts;
mod deadline;
mod link;
mod message;
mod process;
mod server;
mod successor;
mod table;

pub use command::{HeldDescriptor, HolderCommand};
pub use process::{HoldOptions, hold};
pub use server::Holder;
