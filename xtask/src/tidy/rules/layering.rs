//! Allowed dependencies between crates.

use super::super::problem::Problem;
use super::super::repository::Repository;

/// Each crate and its allowed dependencies, outside of tests. ARCHITECTURE.md draws this table.
const MAY_USE: &[(&str, &[&str])] = &[
    ("oci", &[]),
    ("inflate", &[]),
    ("layer", &["oci", "inflate"]),
    ("tree", &["oci", "layer"]),
    ("prediction", &["oci", "layer", "tree"]),
    ("blob", &["oci"]),
    ("fetch", &["oci", "layer", "blob"]),
    ("trace", &["oci"]),
    ("registry", &["oci", "blob"]),
    ("store", &["oci", "blob"]),
    ("policy", &["oci"]),
    ("tier", &["oci", "blob"]),
    ("sandbox", &[]),
    ("holder", &[]),
    ("userns", &[]),
    ("fs", &["oci", "layer", "tree", "blob", "fetch"]),
    ("mount", &["oci", "layer", "tree", "fs"]),
    ("images", &["oci", "layer", "tree", "blob", "registry", "store", "fetch", "trace", "policy", "tier"]),
    ("worker", &["oci", "layer", "blob", "registry", "store", "images", "policy", "sandbox", "tier"]),
    ("client", &["oci", "store", "fetch", "trace", "mount", "images"]),
    (
        "server",
        &[
            "oci", "layer", "tree", "blob", "registry", "store", "fetch", "trace", "fs", "mount", "holder", "images",
            "client", "sandbox",
        ],
    ),
    ("podman", &["oci", "blob", "layer", "tree", "store", "fs", "mount", "images", "client", "server"]),
    ("containers", &["oci", "store", "trace", "mount", "images", "client"]),
    (
        "publish",
        &[
            "oci",
            "layer",
            "prediction",
            "blob",
            "registry",
            "store",
            "fetch",
            "trace",
            "mount",
            "images",
            "policy",
            "client",
            "containers",
        ],
    ),
    (
        "engine",
        &[
            "oci",
            "layer",
            "blob",
            "registry",
            "store",
            "fetch",
            "trace",
            "mount",
            "images",
            "policy",
            "tier",
            "worker",
            "client",
            "server",
            "podman",
            "containers",
            "publish",
        ],
    ),
    ("daemon", &["engine"]),
    ("snapshotter", &["oci", "engine"]),
    ("cli", &["oci", "userns", "engine", "daemon", "snapshotter"]),
    (
        "testkit",
        &[
            "oci",
            "layer",
            "tree",
            "prediction",
            "blob",
            "policy",
            "registry",
            "store",
            "fetch",
            "trace",
            "fs",
            "mount",
            "worker",
        ],
    ),
];

/// External crates that only these crates may use.
const HOMES: &[(&str, &[&str])] = &[("fuser", &["mount"]), ("reqwest", &["registry", "tier"])];

pub(super) fn directions(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for manifest in &repository.manifests {
        let allowed = match manifest.crate_name() {
            None => None,
            Some(name) => match MAY_USE.iter().find(|(n, _)| *n == name) {
                Some((_, allowed)) => Some(*allowed),
                None => {
                    let text = format!("please say in {} what crates/{name} may use", file!());
                    problems.push(Problem::new(&manifest.path, 1, text));
                    continue;
                }
            },
        };
        for dependency in &manifest.dependencies {
            let used = match dependency.name.as_str() {
                "tarpon" => "cli",
                other => other.strip_prefix("tarpon-").unwrap_or_default(),
            };
            let refused = match (used, allowed) {
                ("", _) => false,
                ("cli", _) => true,
                // Packages outside of crates/ are tests and tools, and tests may use anything.
                (_, None) => false,
                _ if dependency.dev => false,
                (used, Some(allowed)) => !allowed.contains(&used),
            };
            if refused {
                let text = format!("please do not depend on {}: it is not below this crate", dependency.name);
                problems.push(Problem::new(&manifest.path, dependency.line, text));
            }
        }
    }
    problems
}

pub(super) fn homes(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (guest, homes) in HOMES {
        let text = format!("please use {guest} in crates/{} only", homes.join(" and crates/"));
        let is_home = |name: Option<&str>| name.is_some_and(|name| homes.contains(&name));
        for manifest in repository.manifests.iter().filter(|m| !is_home(m.crate_name())) {
            for dependency in manifest.dependencies.iter().filter(|d| d.name == *guest) {
                problems.push(Problem::new(&manifest.path, dependency.line, &*text));
            }
        }
        let inside = |path: &str| homes.iter().any(|home| path.starts_with(&format!("crates/{home}/")));
        for source in repository.sources.iter().filter(|s| !inside(&s.path)) {
            for (line, _) in source.paths().iter().filter(|(_, path)| path.split("::").next() == Some(*guest)) {
                problems.push(Problem::new(&source.path, *line, &*text));
            }
        }
    }
    problems
}
