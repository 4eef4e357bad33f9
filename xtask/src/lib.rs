//! What the tasks share with the end-to-end tests: the workloads of the image corpus, and when one of them is ready.

pub mod paths;
pub mod process;
pub mod ready;
pub mod workloads;
