//! Errors as the user sees them: `tarpon: WHAT: WHY`, perhaps a hint, and an exit code.

use std::fmt;
use std::io;

use tarpon_engine::store::StoreError;

use crate::exit::Exit;
use crate::line::{escape, shorten};

/// A failed command. Its text is one line that names the operation, the image and the cause.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The code the process exits with.
    pub(crate) exit: Exit,
    message: String,
    hint: Option<String>,
}

/// The result of a command.
pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the engine. `doing` as in "cannot mount IMAGE on DIR".
    pub(crate) fn engine(doing: impl fmt::Display, error: tarpon_engine::Error) -> Self {
        let exit = error.kind.into();
        Self { exit, message: format!("{doing}: {error}"), hint: error.hint }
    }

    pub(crate) fn io(doing: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(Exit::Failure, format!("{doing}: {error}"))
    }

    /// What failed, and why.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The line, and the hint's line if there is one. Control characters, which may come from an image or a registry,
    /// are escaped, and a long name that is repeated is shortened.
    pub(crate) fn text(&self) -> String {
        let message = escape(self.message.as_bytes());
        let mut text = format!("tarpon: {}\n", shorten(&message));
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {}\n", escape(hint.as_bytes())));
        }
        text
    }
}

/// For errors that already name the operation.
impl From<tarpon_engine::Error> for Failure {
    fn from(error: tarpon_engine::Error) -> Self {
        Self { exit: error.kind.into(), message: format!("cannot {error}"), hint: error.hint }
    }
}

/// Converts a `Result` of the engine into one of the command.
pub(crate) trait Context<T> {
    /// `doing` as in "cannot mount IMAGE on DIR"; evaluated on failure only.
    fn doing<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T>;
}

impl<T> Context<T> for tarpon_engine::Result<T> {
    fn doing<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Failure::engine(doing(), error))
    }
}

impl<T> Context<T> for std::result::Result<T, StoreError> {
    fn doing<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Failure::new(Exit::Store, format_args!("{}: {error}", doing())))
    }
}

impl<T> Context<T> for io::Result<T> {
    fn doing<D: fmt::Display>(self, doing: impl FnOnce() -> D) -> Result<T> {
        self.map_err(|error| Failure::io(doing(), &error))
    }
}

#[cfg(test)]
mod tests {
    use tarpon_engine::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_engine_error_becomes_one_line_and_its_hint() {
        let error = Error::new(ErrorKind::Denied, "read the manifest", "401 Unauthorized").hint("log in");
        let failure = Failure::engine("cannot mount a/b on /mnt", error);
        assert_eq!(
            failure.text(),
            "tarpon: cannot mount a/b on /mnt: read the manifest: 401 Unauthorized\nhint: log in\n"
        );
        assert_eq!(failure.exit, Exit::Denied);
    }

    #[test]
    fn control_characters_are_escaped() {
        let failure = Failure::new(Exit::Failure, "registry sent \x1b[2J\nhello");
        assert_eq!(failure.text(), "tarpon: registry sent \\x1b[2J\\nhello\n");
    }
}
