//! Containers of a store: each has a directory, a lock and a mount of its own, and an OCI runtime runs it.
//!
//! ```text
//! run     the life of a container: run, list, stop, remove; the handle Containers
//! oci     the bundle of a container, and the runtime that runs it
//! network networks of containers, and published ports
//! program runs programs of the host that end soon
//! record  runs an image to record what its start reads
//! ```
//!
//! [`Containers`] is the entry point. The root file system of a container is a mount of the store's server; nothing is served
//! here. A process that keeps the container, its *keeper*, holds its lock from the creation of its directory to its end.

mod network;
mod oci;
mod program;
mod record;
mod run;

pub use network::{Connection, Network, Port, Protocol, Publish};
pub use oci::{
    AppArmor, CapabilityChanges, ContainerOptions, HostEntry, Limits, MountOption, Paused, ProcessLimit, Tmpfs, Ulimit,
    Volume, oci_runtime,
};
pub use program::output as program_output;
pub use record::{HttpProbe, RecordRequest, Recorded, Until};
pub use run::{
    Changes, ContainerRecord, ContainerState, ContainerStatus, Containers, ExecRequest, LeftOut, Lifecycle, LogLine,
    LogRequest, LogTime, Output, RunError, RunOutcome, RunRequest, Signals, may_run_on, parse_duration, signal_name,
};
use tarpon_images::{Cause, Error, ErrorKind, Result, ResultExt};
