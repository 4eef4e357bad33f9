//! Workers that break the protocol, as processes of the test program.

mod hostile;
mod roles;
