//! What the tasks (`xtask`), the benchmarks (`bench`) and the end-to-end tests share: the folders of the repository, other programs,
//! the registry of the images, workloads and their readiness, the slow link, machines in network namespaces, nginx and Dragonfly with
//! the configurations that are shipped, a bucket of a real S3 server, the files of measurements, and the gate on instruction counts.

// Its callers are tasks, which print for their user.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub mod bridge;
pub mod bucket;
pub mod dragonfly;
pub mod http;
pub mod instructions;
pub mod link;
pub mod machine;
pub mod namespace;
pub mod nginx;
pub mod ordinary;
pub mod packages;
pub mod paths;
pub mod process;
pub mod program;
pub mod ready;
pub mod registry;
pub mod results;
mod shipped;
pub mod workloads;
