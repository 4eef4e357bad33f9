//! What is done with containers that `tarpon run` made. (`commands/stop.rs` is about this process being stopped.)

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

/// Does something with each of them, whatever becomes of one; the first failure is what the command ends with.
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
