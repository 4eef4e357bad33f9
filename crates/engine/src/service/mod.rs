//! What services of ours have in common: a socket that others connect to, and a service manager that wants to know how far they are.

mod notify;
mod socket;

pub use notify::{READY, STOPPING, notify};
pub use socket::Socket;
