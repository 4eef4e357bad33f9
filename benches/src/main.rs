//! Runs one case once, in a function of its own for Callgrind to watch: `tarpon-count NAME`, or `tarpon-count --list`.

// It communicates with its parent process.
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
    // Excludes tables that are built once, and the allocator's first pages.
    let warm = runs()();
    let counted = tarpon_counted(runs());
    println!("{}", warm.wrapping_add(counted));
    ExitCode::SUCCESS
}

/// The counted part: `cargo xtask bench instructions` uses this name.
#[inline(never)]
fn tarpon_counted(run: Run) -> u64 {
    std::hint::black_box(run())
}
