//! The version of a server in the background, on record in the store: a newer program replaces it.

use std::fs;
use std::io;
use std::path::PathBuf;

use semver::Version;
use tarpon_store::Store;

/// The version of this program.
const THIS: &str = env!("CARGO_PKG_VERSION");

fn path(store: &Store) -> PathBuf {
    store.server_folder().join("server.version")
}

/// Notes that this process is the server, and that another one may replace it.
pub fn note(store: &Store) -> io::Result<()> {
    fs::write(path(store), THIS)
}

/// Notes that this process is the server, and that no other one may replace it without a request of the user.
pub fn withdraw(store: &Store) {
    let _absent = fs::remove_file(path(store));
}

/// Whether the server that runs, if one runs, may be replaced and is older than this program.
pub(crate) fn is_older(store: &Store) -> bool {
    fs::read_to_string(path(store)).is_ok_and(|text| is_before(&text, THIS))
}

fn is_before(server: &str, program: &str) -> bool {
    let parsed = (Version::parse(server.trim()), Version::parse(program));
    matches!(parsed, (Ok(server), Ok(program)) if server < program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_version_is_older() {
        assert!(is_before("0.1.9", "0.1.10") && is_before("0.2.0-rc.1\n", "0.2.0"));
        assert!(!is_before("0.1.0", "0.1.0") && !is_before("0.2.0", "0.1.0"));
        assert!(!is_before("", "0.1.0") && !is_before("of another kind", "0.1.0"));
    }
}
