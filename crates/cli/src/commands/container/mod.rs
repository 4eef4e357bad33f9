//! Commands on containers that `tarpon run` created. (`commands/stop.rs` handles signals to this process.)

pub(crate) mod exec;
mod filter;
pub(crate) mod keep;
pub(crate) mod kill;
pub(crate) mod logs;
pub(crate) mod ps;
pub(crate) mod rm;
pub(crate) mod security;
pub(crate) mod stop;
pub(crate) mod wait;

use tarpon_engine::ContainerName;

use crate::failure::{Context, Result};
use crate::output;

/// Applies an operation to all of them, even if one fails, and returns the first failure.
fn each(
    names: &[ContainerName],
    doing: &str,
    mut act: impl FnMut(&ContainerName) -> tarpon_engine::Result<()>,
) -> Result {
    let mut first = Ok(());
    for name in names {
        match act(name).doing(|| format!("cannot {doing} {name}")) {
            Err(failure) if first.is_ok() => first = Err(failure),
            Err(failure) => output::error(&failure),
            Ok(()) => {}
        }
    }
    first
}
