//! [`Environment`]: the variables of a container.

/// Bytes of a variable: Linux starts no program with a longer one (`MAX_ARG_STRLEN`).
const VARIABLE_BYTES: usize = 128 << 10;

/// Variables as `NAME=VALUE`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a>(pub(crate) &'a [String]);

impl<'a> Environment<'a> {
    /// The names and values, without variables that are too long.
    pub(crate) fn variables(self) -> impl DoubleEndedIterator<Item = (&'a str, &'a str)> {
        self.0.iter().filter(|line| line.len() <= VARIABLE_BYTES).filter_map(|line| line.split_once('='))
    }

    /// The value of a variable, of which the last one counts. None: there is no such variable.
    pub(crate) fn get(self, name: &str) -> Option<&'a str> {
        self.variables().rev().find_map(|(found, value)| (found == name).then_some(value))
    }

    /// As [`Environment::get`]; empty if there is no such variable.
    pub(crate) fn bytes(self, name: &str) -> &'a [u8] {
        self.get(name).unwrap_or_default().as_bytes()
    }
}
