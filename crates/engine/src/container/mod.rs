//! Running what is in an image: from its config to a bundle, and a bundle in the hands of an OCI runtime.

mod bundle;
mod runtime;
mod user;

pub(crate) use bundle::{Bundle, Overrides};
pub(crate) use runtime::{Running, Runtime, Stdio};
