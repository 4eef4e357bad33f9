//! The life of a container: run, list, stop, remove.
//!
//! ```text
//! prepare ─► directory + lock ─► mount (upper of its own) ─► bundle ─► runtime ─► … ─► unmount ─► exited | removed
//!            └────────────── KeptContainer: dropped here, nothing is left ┘
//! ```
//!
//! One process keeps the container from the creation of its directory to its end, and holds its lock as long. That is the process asked to
//! run it, or for a detached container a keeper that inherits the lock. So the kernel shows whether the keeper was killed.

mod attend;
mod changes;
mod container_dir;
mod containers;
mod exec;
mod failure;
mod find;
mod keep;
mod kept;
mod life;
mod log;
mod record;
mod request;
mod signals;
mod start;
mod status;
mod wait;
mod waiters;

pub use self::changes::{Changes, LeftOut};
pub use self::containers::Containers;
pub use self::exec::ExecRequest;
pub use self::failure::RunError;
pub use self::log::{LogLine, LogRequest, LogTime, Output, parse_duration};
pub use self::record::{ContainerRecord, ContainerState};
pub use self::request::{RunOutcome, RunRequest};
pub use self::signals::{Signals, signal_name};
pub use self::status::{ContainerStatus, Lifecycle, may_run_on};
