//! Remembers whether a runtime filters system calls: to ask it takes the start of a process, for each container.

use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tarpon_store::private;

use super::Runtime;
use crate::Result;

/// Longest file that is read.
const BYTES: u64 = 64 << 10;

/// Device, inode, size, and the times of the last change of content and of metadata.
type Identity = (u64, u64, u64, [(i64, i64); 2]);

/// What a program reported, as long as it is the same file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Report {
    program: PathBuf,
    identity: Identity,
    filters: bool,
}

/// [`Runtime::has_seccomp`], from the file at `cache` if it has the answer of the same program.
///
/// # Errors
/// As [`Runtime::has_seccomp`].
pub(crate) fn has_seccomp(runtime: &Runtime, cache: &Path) -> Result<bool> {
    let program = runtime.program();
    let Ok(identity) = identity(program) else { return runtime.has_seccomp() };
    if let Some(report) = read(cache)
        && (&*report.program, report.identity) == (program, identity)
    {
        return Ok(report.filters);
    }
    let filters = runtime.has_seccomp()?;
    let report = Report { program: program.to_owned(), identity, filters };
    let written =
        serde_json::to_vec(&report).map_err(Into::into).and_then(|text| private::write_volatile(cache, &text));
    if let Err(error) = written {
        tracing::debug!("{}: {error}", cache.display());
    }
    Ok(filters)
}

fn identity(program: &Path) -> io::Result<Identity> {
    let found = std::fs::metadata(program)?;
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    Ok((found.dev(), found.ino(), found.size(), times))
}

fn read(cache: &Path) -> Option<Report> {
    let mut text = Vec::new();
    std::fs::File::open(cache).ok()?.take(BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_runtime_is_asked_again_only_after_it_was_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (program, cache) = (folder.path().join("runc"), folder.path().join("cache"));
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
        assert!(has_seccomp(&runtime, &cache).unwrap() && has_seccomp(&runtime, &cache).unwrap());
        assert_eq!(asked(), 1);
        install("-SECCOMP");
        assert!(!has_seccomp(&runtime, &cache).unwrap() && !has_seccomp(&runtime, &cache).unwrap());
        assert_eq!(asked(), 2);
        std::fs::write(&cache, "{").unwrap();
        assert!(!has_seccomp(&runtime, &cache).unwrap());
        assert_eq!(asked(), 3, "a damaged file is no answer");
    }

    #[test]
    fn without_a_place_for_the_answer_a_runtime_is_asked_each_time() {
        let runtime = Runtime::of("/bin/true".into());
        assert!(!has_seccomp(&runtime, Path::new("/nonexistent/cache")).unwrap());
    }
}
