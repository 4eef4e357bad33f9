//! Code shared with the end-to-end tests: the workloads of the image corpus, and the detection of their readiness.

pub mod paths;
pub mod process;
pub mod ready;
pub mod workloads;
