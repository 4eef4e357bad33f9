//! Remembers whether a runtime filters system calls: to ask it takes the start of a process, for each container.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tarpon_store::private;

use super::Runtime;
use crate::Result;

/// Longest file that is read.
const BYTES: u64 = 64 << 10;

/// What a program reported, as long as it is the same file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    program: String,
    /// Device, inode, size, and the times of the last change of content and of metadata.
    identity: (u64, u64, u64, [(i64, i64); 2]),
    filters: bool,
}

/// [`Runtime::has_seccomp`], from the file at `memory` if it has the answer of the same program.
///
/// # Errors
/// As [`Runtime::has_seccomp`].
pub(crate) fn has_seccomp(runtime: &Runtime, memory: &Path) -> Result<bool> {
    let Some(now) = identity(runtime) else { return runtime.has_seccomp() };
    let known = read(memory);
    if let Some(Known { filters, .. }) = known.filter(|known| (&known.program, known.identity) == (&now.0, now.1)) {
        return Ok(filters);
    }
    let filters = runtime.has_seccomp()?;
    let known = Known { program: now.0, identity: now.1, filters };
    let written =
        serde_json::to_vec(&known).map_err(Into::into).and_then(|text| private::write_volatile(memory, &text));
    if let Err(error) = written {
        tracing::debug!("{}: {error}", memory.display());
    }
    Ok(filters)
}

type Identity = (String, (u64, u64, u64, [(i64, i64); 2]));

fn identity(runtime: &Runtime) -> Option<Identity> {
    let found = std::fs::metadata(runtime.program()).ok()?;
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    Some((runtime.program().to_str()?.to_owned(), (found.dev(), found.ino(), found.size(), times)))
}

fn read(memory: &Path) -> Option<Known> {
    let mut text = Vec::new();
    std::fs::File::open(memory).ok()?.take(BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_runtime_is_asked_again_only_after_it_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (program, memory) = (folder.path().join("runc"), folder.path().join("memory"));
        let asked = || std::fs::read_to_string(folder.path().join("asked")).unwrap_or_default().lines().count();
        let install = |answer: &str| {
            let script = format!("#!/bin/sh\necho >> {}/asked\necho {answer}\n", folder.path().display());
            let new = folder.path().join("new");
            std::fs::write(&new, script).unwrap();
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).unwrap();
            std::fs::rename(new, &program).unwrap();
        };
        let runtime = Runtime::of(program.clone());
        install("libseccomp: 2.5.4");
        assert!(has_seccomp(&runtime, &memory).unwrap() && has_seccomp(&runtime, &memory).unwrap());
        assert_eq!(asked(), 1);
        install("-SECCOMP");
        assert!(!has_seccomp(&runtime, &memory).unwrap() && !has_seccomp(&runtime, &memory).unwrap());
        assert_eq!(asked(), 2);
        std::fs::write(&memory, "{").unwrap();
        assert!(!has_seccomp(&runtime, &memory).unwrap());
        assert_eq!(asked(), 3, "a damaged file is no answer");
    }

    #[test]
    fn without_a_place_for_the_answer_a_runtime_is_asked_each_time() {
        let runtime = Runtime::of("/bin/true".into());
        assert!(!has_seccomp(&runtime, Path::new("/nonexistent/memory")).unwrap());
    }
}
