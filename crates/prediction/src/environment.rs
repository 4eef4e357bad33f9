//! [`Environment`]: the variables of a container.

/// Variables as `NAME=VALUE`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a>(pub(crate) &'a [String]);

impl<'a> Environment<'a> {
    /// The value of a variable, of which the last one counts. None: there is no such variable.
    pub(crate) fn get(self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    /// As [`Environment::get`]; empty if there is no such variable.
    pub(crate) fn bytes(self, name: &str) -> &'a [u8] {
        self.get(name).unwrap_or_default().as_bytes()
    }
}
