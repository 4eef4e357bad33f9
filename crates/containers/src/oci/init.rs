//! A small init for a container: it forwards signals and reaps orphaned processes.

use std::path::PathBuf;

/// Its path in the container: in `/dev`, which is not part of the container's writable layer.
pub(super) const INSIDE: &str = "/dev/tarpon-init";

/// Statically linked programs for it: Podman's first, then Docker's.
const KNOWN: [&str; 3] =
    ["/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/libexec/docker/docker-init"];
const ON_PATH: [&str; 3] = ["catatonit", "tini-static", "docker-init"];

/// Finds the init of this host.
///
/// # Errors
/// One line: none was found.
pub(super) fn find() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path =
        ON_PATH.into_iter().flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
    let known = KNOWN.into_iter().map(PathBuf::from).chain(on_path);
    known
        .into_iter()
        .find(|program| program.is_file())
        .ok_or_else(|| "--init needs a program for that on this host, and there is none: install catatonit".to_owned())
}

/// The command line that runs `arguments` below the init.
pub(super) fn before(arguments: Vec<String>) -> Vec<String> {
    [INSIDE, "--"].map(str::to_owned).into_iter().chain(arguments).collect()
}
