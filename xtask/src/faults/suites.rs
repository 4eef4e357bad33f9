//! The suites of faults, as data.

/// What a suite makes its cases from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cases {
    /// A list: one run has them all.
    Listed,
    /// Seeds, as `tarpon_testkit::seeds` takes them: this many in a run without a time.
    Seeds(u64),
    /// The generator of proptest.
    Properties,
}

/// A test program, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suite {
    /// What it tests, for the table.
    pub(super) name: &'static str,
    /// The folder of its package in `crates/`.
    pub(super) package: &'static str,
    /// The test program.
    pub(super) program: &'static str,
    pub(super) cases: Cases,
}

const fn suite(name: &'static str, package: &'static str, program: &'static str, cases: Cases) -> Suite {
    Suite { name, package, program, cases }
}

/// All suites. The matrix is first.
pub(super) const SUITES: &[Suite] = &[
    suite("HTTP matrix", "engine", "http_faults", Cases::Seeds(1)),
    suite("HTTP requests", "registry", "faults", Cases::Listed),
    suite("HTTP readers", "registry", "attacks", Cases::Listed),
    suite("HTTP outages", "registry", "outages", Cases::Listed),
    suite("HTTP scripts", "registry", "fault_scripts", Cases::Properties),
    suite("fetcher simulation", "fetch", "simulation", Cases::Seeds(1_000)),
    suite("fetcher inodes", "fetch", "inodes", Cases::Seeds(400)),
    suite("fetcher outages", "fetch", "outages", Cases::Listed),
    suite("fetcher disk", "fetch", "disk", Cases::Seeds(1)),
    suite("fetcher distrust", "fetch", "distrust", Cases::Listed),
    suite("fetcher hostile indexes", "fetch", "hostile", Cases::Listed),
    suite("fetcher boot packs", "fetch", "packs", Cases::Properties),
    suite("store matrix", "store", "storage_matrix", Cases::Seeds(1)),
    suite("store crashes", "store", "crashes", Cases::Listed),
    suite("store disk errors", "store", "faults", Cases::Listed),
    suite("store eviction", "store", "eviction", Cases::Properties),
];

impl Suite {
    /// PACKAGE FOLDER/TARGET, as in the output of `cargo xtask test`.
    pub(super) fn program_name(&self) -> String {
        format!("crates/{}/{}", self.package, self.program)
    }

    /// The environment of a run from this seed, which lasts this long if the suite has cases without end.
    pub(super) fn environment(&self, seed: u64, seconds: u64) -> Vec<(&'static str, String)> {
        match self.cases {
            Cases::Listed => vec![(FULL, "1".to_owned())],
            Cases::Seeds(count) if seconds == 0 => vec![("SEED", seed.to_string()), ("SEEDS", count.to_string())],
            Cases::Seeds(_) => vec![("SEED", seed.to_string()), ("SECONDS", seconds.to_string())],
            Cases::Properties => vec![("PROPTEST_RNG_SEED", seed.to_string())],
        }
    }
}

/// Makes tests take all of their combinations (`tarpon_testkit::matrix`).
const FULL: &str = "TARPON_TEST_ALL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_suite_is_a_test_program_that_exists_and_is_listed_once() {
        let root = tarpon_harness::paths::root();
        for (number, suite) in SUITES.iter().enumerate() {
            let folder = root.join("crates").join(suite.package).join("tests");
            let (file, main) =
                (folder.join(format!("{}.rs", suite.program)), folder.join(suite.program).join("main.rs"));
            assert!(file.exists() || main.exists(), "{}", suite.program_name());
            assert!(!SUITES[..number].iter().any(|other| other.program_name() == suite.program_name()));
        }
    }

    #[test]
    fn suites_with_seeds_read_them_from_the_environment_and_properties_are_of_proptest() {
        let root = tarpon_harness::paths::root();
        for suite in SUITES {
            let folder = root.join("crates").join(suite.package).join("tests");
            let file = folder.join(format!("{}.rs", suite.program));
            let file = if file.exists() { file } else { folder.join(suite.program).join("main.rs") };
            let text = std::fs::read_to_string(file).unwrap();
            assert_eq!(
                text.contains("Seeds::from_environment"),
                matches!(suite.cases, Cases::Seeds(_)),
                "{}",
                suite.name
            );
            assert_eq!(text.contains("proptest! {"), suite.cases == Cases::Properties, "{}", suite.name);
        }
    }
}
