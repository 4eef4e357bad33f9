//! The functions that take most of the time of a mount and its reads, each with a fixed input.
//!
//! `cargo bench -p tarpon-benches` times them with Criterion; `cargo xtask bench instructions` counts the instructions of most of them and
//! compares with `instructions.json`.

// A benchmark that cannot make its own input can only stop.
#![allow(clippy::unwrap_used, reason = "inputs are made here")]

mod inputs;
mod layers;
mod reads;
mod trees;

/// A benchmark case.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Makes the input that all runs share.
    pub make: fn() -> Runs,
    /// Whether it takes the same instructions each time. Reads through a fetcher do not: they depend on which thread runs first.
    pub is_counted: bool,
}

/// Prepares one run.
pub type Runs = Box<dyn Fn() -> Run>;

/// The measured work. It returns a number that depends on the work, so that none of it is optimised away.
pub type Run = Box<dyn FnOnce() -> u64>;

/// All cases.
pub const CASES: &[Case] = &[
    Case { name: "toc-estargz", make: layers::estargz_toc, is_counted: true },
    Case { name: "toc-zstd-chunked", make: layers::zstd_chunked_toc, is_counted: true },
    Case { name: "tar-import", make: layers::tar_import, is_counted: true },
    Case { name: "span-decode", make: layers::span_decode, is_counted: true },
    Case { name: "merge", make: trees::merge, is_counted: true },
    Case { name: "erofs-write", make: trees::erofs_write, is_counted: true },
    Case { name: "erofs-lookup", make: trees::erofs_lookup, is_counted: true },
    Case { name: "store-hit", make: reads::store_hit, is_counted: true },
    Case { name: "read-hit", make: reads::read_hit, is_counted: false },
    Case { name: "read-plan", make: reads::read_plan, is_counted: false },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_runs_twice_and_does_the_same() {
        for case in CASES {
            let runs = (case.make)();
            let (first, second) = (runs()(), runs()());
            assert_eq!(first, second, "{}", case.name);
            assert!(first > 0, "{} does nothing", case.name);
        }
    }

    #[test]
    fn names_are_different() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
    }
}
