//! `oci`, `layer` and `tree` do no I/O, so that they can be fuzzed and run anywhere.

use super::super::problem::Problem;
use super::super::repository::Repository;

pub(super) const PURE: &[&str] = &["oci", "layer", "tree"];

/// Paths with access to the outside world. The traits of `std::io` have none.
const OUTSIDE: &[&str] =
    &["std::fs", "std::net", "std::process", "std::env", "std::os", "tokio", "reqwest", "rustix", "libc"];

/// Exceptions: paths below those that only compute.
const INSIDE: &[&str] =
    &["std::env::consts::", "std::net::IpAddr", "std::net::Ipv4Addr", "std::net::Ipv6Addr", "std::net::SocketAddr"];

/// Crates that only do I/O.
const OUTSIDE_CRATES: &[&str] =
    &["tokio", "reqwest", "hyper", "fuser", "rustix", "libc", "nix", "memmap2", "mio", "socket2", "tempfile"];

pub(super) fn no_io(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for name in PURE {
        for source in repository.code_of(name) {
            for (line, path) in source.paths() {
                if leads_outside(&path) {
                    let text = format!("crates/{name} does no I/O: please do without {path}");
                    problems.push(Problem::new(&source.path, line, text));
                }
            }
        }
        for manifest in repository.manifests.iter().filter(|m| m.crate_name() == Some(*name)) {
            for dependency in manifest.dependencies.iter().filter(|d| !d.dev) {
                if OUTSIDE_CRATES.contains(&dependency.name.as_str()) {
                    let text = format!("crates/{name} does no I/O: please do not depend on {}", dependency.name);
                    problems.push(Problem::new(&manifest.path, dependency.line, text));
                }
            }
        }
    }
    problems
}

fn leads_outside(path: &str) -> bool {
    let below = |o: &&str| path == *o || path.starts_with(&format!("{o}::"));
    OUTSIDE.iter().any(below) && !INSIDE.iter().any(|i| path.starts_with(i))
}
