//! Running what is in an image: from its config to a bundle, and a bundle in the hands of an OCI runtime.

mod bundle;
mod capabilities;
mod limits;
mod mounts;
mod options;
mod paused;
mod process;
mod runtime;
mod seccomp;
mod user;

pub(crate) use bundle::Bundle;
pub use capabilities::CapabilityChanges;
pub use limits::Limits;
pub use mounts::{Tmpfs, Volume};
pub(crate) use mounts::{bind, host_files, image_volumes};
pub use options::{ContainerOptions, Network};
pub(crate) use paused::Paused;
pub(crate) use process::AnotherProcess;
pub use runtime::oci_runtime;
pub(crate) use runtime::{Handle, Running, Runtime, Stdio, forget_all};
