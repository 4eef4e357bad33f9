//! What the end-to-end tests share: looking at trees, running the binary, real registries and real rivals.

pub mod containerd;
pub mod dump;
pub mod expected;
pub mod podman;
pub mod real;
pub mod tarpon;
pub mod wire;
