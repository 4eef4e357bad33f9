//! Common parts of our services: a listening socket, and status notifications for a service manager.

mod notify;
mod passed;
mod socket;

pub(crate) use notify::extend_start;
pub use notify::{READY, STOPPING, notify, reloading};
pub use socket::Socket;
