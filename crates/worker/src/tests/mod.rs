//! The other side breaks the protocol.

mod bytes;
mod fuzz_seeds;
mod hostile;
mod roles;
