//! [`Command`]: a command that a start runs or names.

/// A command on the way of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) words: Vec<Vec<u8>>,
    /// It runs. Otherwise a script names it.
    pub(crate) runs: bool,
}

impl Command {
    pub(crate) fn run(words: &[Vec<u8>]) -> Self {
        Self { words: words.to_vec(), runs: true }
    }

    pub(crate) fn named(word: Vec<u8>) -> Self {
        Self { words: vec![word], runs: false }
    }
}
