//! One operation on several things.

use crate::failure::Result;
use crate::output;

/// Applies `act` to all of them, even if one fails. Returns the first failure and prints the others.
pub(super) fn each<T>(all: impl IntoIterator<Item = T>, mut act: impl FnMut(T) -> Result) -> Result {
    let mut first = Ok(());
    for one in all {
        match act(one) {
            Err(failure) if first.is_ok() => first = Err(failure),
            Err(failure) => output::error(&failure),
            Ok(()) => {}
        }
    }
    first
}
