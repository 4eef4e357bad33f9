//! Runs one case once, in a function of its own for Callgrind to watch: `tarpon-count NAME`, or `tarpon-count --list`.

// It talks to who started it.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use tarpon_benches::{CASES, Run};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    if wanted == "--list" {
        CASES.iter().filter(|case| case.is_counted).for_each(|case| println!("{}", case.name));
        return ExitCode::SUCCESS;
    }
    let Some(case) = CASES.iter().find(|case| case.name == wanted) else {
        eprintln!("no case {wanted}");
        return ExitCode::FAILURE;
    };
    let runs = (case.make)();
    // Tables that are made once, and the allocator's first pages, are no part of it.
    let warm = runs()();
    let counted = tarpon_counted(runs());
    println!("{}", warm.wrapping_add(counted));
    ExitCode::SUCCESS
}

/// What is counted: `cargo xtask bench instructions` knows this name.
#[inline(never)]
fn tarpon_counted(run: Run) -> u64 {
    std::hint::black_box(run())
}
