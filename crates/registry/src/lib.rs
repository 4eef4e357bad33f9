//! See Cargo.toml's description.
