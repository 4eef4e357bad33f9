//! Commands that run containers and manage them.

pub(crate) mod exec;
mod filter;
pub(crate) mod lifecycle;
pub(crate) mod logs;
pub(crate) mod ps;
pub(crate) mod run;
mod security;
