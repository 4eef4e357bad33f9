//! The options of another benchmark, from words.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::Parser;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

/// The options that these words stand for.
pub(super) fn parsed<A: clap::Args>(words: impl IntoIterator<Item = OsString>) -> Result<A> {
    Ok(Line::try_parse_from(words).context("another benchmark does not know an option")?.args)
}
