//! The `tarpon` command.
fn main() {}
