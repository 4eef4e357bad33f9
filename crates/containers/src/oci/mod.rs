//! Runs containers: makes a bundle from an image config and runs it with an OCI runtime.

mod apparmor;
mod bundle;
mod capabilities;
mod cgroups;
mod confinement;
mod init;
mod limits;
mod mount_option;
mod mounts;
mod options;
mod paused;
mod process;
mod runtime;
mod runtime_report;
mod seccomp;
mod ulimit;
mod user;
mod volume;

pub use apparmor::AppArmor;
pub(crate) use bundle::Bundle;
pub use capabilities::CapabilityChanges;
pub(crate) use confinement::Confinement;
pub use limits::{Limits, ProcessLimit};
pub use mount_option::MountOption;
pub(crate) use mounts::{bind, host_files, image_volumes};
pub use options::{ContainerOptions, HostEntry};
pub use paused::Paused;
pub(crate) use process::AnotherProcess;
pub use runtime::oci_runtime;
pub(crate) use runtime::{Handle, Running, Runtime, Stdio, forget_all};
pub(crate) use runtime_report::has_seccomp;
pub use ulimit::Ulimit;
pub use volume::{Tmpfs, Volume};
