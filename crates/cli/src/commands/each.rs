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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::failure::Failure;

    #[test]
    fn a_failure_does_not_stop_the_others_and_the_first_one_is_that_of_the_command() {
        let mut tried = Vec::new();
        let done = each([1, 2, 3, 4], |one| {
            tried.push(one);
            match one {
                2 => Err(Failure::new(Exit::CannotMount, "it is in use")),
                3 => Err(Failure::new(Exit::NotFound, "there is no such image")),
                _ => Ok(()),
            }
        });
        assert_eq!(tried, [1, 2, 3, 4]);
        assert_eq!(done.unwrap_err().exit, Exit::CannotMount);
    }
}
