//! A process confines itself, and tries what it may not do, and what it still may.
//!
//! This program starts itself: with the argument `role` it is the process that confines itself, which it has to do
//! before it starts a thread. The usual harness runs tests in threads.
#![allow(clippy::unwrap_used, reason = "tests")]

mod child;
mod ends;
mod offences;
mod permitted;
mod status;
mod syscall;
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(child::ROLE) {
        return child::run(arguments);
    }
    let trials: Vec<Trial> =
        [offences::trials(), permitted::trials(), ends::trials(), status::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
