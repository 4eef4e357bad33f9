//! All terminal output: text, tables, JSON, errors and progress.
//!
//! Results go to stdout, messages about the work to stderr. Names from images or registries are escaped before they are
//! passed here ([`escape`]).

pub(crate) mod figures;
pub(crate) mod listing;
mod print;
mod progress;
mod table;

pub(crate) use crate::line::escape;
pub(crate) use print::{bytes, error, json, note, short_digest, text};
pub(crate) use progress::{
    conversion_progress, prefetch_progress, progress, pull_progress, push_progress, verification_progress,
};
pub(crate) use table::Table;
