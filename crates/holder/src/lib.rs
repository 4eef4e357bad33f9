//! The *holder*: a small process per store that keeps duplicates of its server's descriptors beyond the server's death.
//!
//! While a descriptor of a FUSE connection is open anywhere, the kernel lets readers wait for an answer. So the death of
//! the server alone fails no reader: the holder starts a successor and hands the descriptors over. But a holder without a
//! clock would turn a crash into a hang that ends only with the machine. So it gives up within a limit and closes all
//! descriptors, which makes the kernel fail every reader at once.
//!
//! [`hold`] is the main function of the process. [`Holder`] is the server's side: it starts the process at the first
//! descriptor, sends signs of life, and starts another holder if that one dies.
//!
//! Both sides speak messages of one fixed size over a `SOCK_SEQPACKET` socket. A server's first message is `Attach`.
//! The holder answers `Hello`, then one `Retained` per descriptor, then `End`. From then on the server sends `Keep`,
//! `Release`, `Alive` and `Serving` as they occur, and `Dismiss` at a clean end. `Confirm` asks for `Confirmed`: then the
//! holder has everything that was sent before, and is the holder of the store, which successors find at its socket.
//! Before its first `Confirm`, a holder ends with its server.
//!
//! A service of systemd has a second place for the descriptors, the [`ServiceStore`].

mod hold;
mod holder;
mod link;
mod message;
mod service_store;
mod socket;
#[cfg(test)]
mod tests;
mod worker;

pub use hold::{HoldOptions, control, hold};
pub use holder::Holder;
pub use link::{HeldDescriptor, HolderCommand};
pub use message::MAX_HELD;
pub use service_store::ServiceStore;
