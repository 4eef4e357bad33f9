//! For tests only: replacements for the outside world, builders of inputs, and naive models to compare with.

pub mod crowd;
pub mod descriptors;
pub mod entries;
pub mod fixture;
pub mod fuzz;
pub mod interleaving;
pub mod kernel;
pub mod layers;
pub mod matrix;
pub mod processes;
pub mod registry;
pub mod seeds;
pub mod server;
pub mod sinks;
pub mod source;
pub mod stacks;
pub mod storage;
pub mod transport;
pub mod tree_model;
pub mod watch;
