//! The registry of the images.

use std::env;

/// The registry of `cargo xtask images`, if `$REGISTRY` is not set.
pub const DEFAULT: &str = "127.0.0.1:5000";

/// HOST:PORT of the registry of the images.
pub fn address() -> String {
    env::var("REGISTRY").unwrap_or_else(|_| DEFAULT.to_owned())
}
