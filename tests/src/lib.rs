//! Helpers of the end-to-end tests: dumps of trees, the binary, real registries and other tools.

pub mod containerd;
pub mod containers;
pub mod disks;
pub mod dump;
pub mod expected;
pub mod load;
pub mod manager;
pub mod mapped;
pub mod mirrored;
pub mod ordinary;
pub mod podman;
pub mod private_registry;
pub mod real;
pub mod shared_image;
pub mod tarpon;
pub mod tiered;
pub mod wait;
pub mod wire;
