//! The other side breaks the protocol.

mod bytes;
mod hostile;
mod roles;
