//! Index repositories: indexes and boot packs of images of a registry that accepts no pushes, in another registry or in a layout.
#![allow(clippy::unwrap_used, reason = "tests")]

mod find;
mod fixture;
mod learned;
mod manage;
mod packs;
mod predicted;
mod signed;
#[path = "../support/mod.rs"]
mod support;
