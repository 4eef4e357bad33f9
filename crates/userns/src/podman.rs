//! Podman's process that keeps the user and the mount namespace of its user.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, RawPid};

/// Its file in `$XDG_RUNTIME_DIR`, with its process ID, since Podman 1.8.
const FILE: &str = "libpod/tmp/pause.pid";

/// The process, if one of this user runs. It is the first process of Podman after a login, and ends with
/// `podman system migrate`.
pub fn podman_process() -> Option<Pid> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| format!("/run/user/{user}").into(), PathBuf::from);
    in_folder(&folder)
}

fn in_folder(folder: &Path) -> Option<Pid> {
    let process = std::fs::read_to_string(folder.join(FILE)).ok()?.trim().parse::<RawPid>().ok()?;
    // `from_raw` panics for a negative ID.
    let process = (process > 0).then(|| Pid::from_raw(process)).flatten()?;
    // The ID may have been given to another process since.
    let maps = std::fs::read_to_string(format!("/proc/{}/uid_map", process.as_raw_nonzero())).ok()?;
    let user = rustix::process::getuid().as_raw().to_string();
    let mut root = maps.lines().next()?.split_whitespace();
    (root.next() == Some("0") && root.next() == Some(user.as_str())).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_names_no_process_of_a_user_namespace_counts_as_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(in_folder(folder.path()), None);
        std::fs::create_dir_all(folder.path().join("libpod/tmp")).unwrap();
        for text in ["", "x", "0", "-1", "999999999"] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(in_folder(folder.path()), None, "{text}");
        }
    }
}
