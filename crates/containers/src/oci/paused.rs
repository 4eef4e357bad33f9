//! [`Paused`]: a container whose processes are paused for a while, recoverable if the pausing process is killed.
//!
//! The container's directory has a mark file. The process that pauses the container holds the file's lock, and the file is not empty until
//! the container is resumed. A file that is not empty and not locked means that the pausing process was killed. The next operation on the
//! container resumes it.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use tarpon_store::FileLock;
use tarpon_store::flock;

use super::Handle;
use super::runtime::runtime_error;
use crate::{Error, ErrorKind, Result, ResultExt};

/// Name of the mark file, beside the runtime's state. It is never removed: a lock on a recreated file would be a second lock.
const MARK: &str = "paused";
/// Name of the state in runtimes.
const STATUS: &str = "paused";

/// A paused container. It is resumed on drop.
#[derive(Debug)]
pub struct Paused {
    handle: Handle,
    mark: FileLock,
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Err(error) = self.handle.go_on(&self.mark) {
            tracing::error!(%error, "a container stays paused");
        }
    }
}

impl Handle {
    /// Pauses all of its processes for the life of the value. Takes over a pause that a killed process left.
    ///
    /// # Errors
    /// The runtime's message (most runtimes need cgroups that this host may lack), or another process has paused it.
    pub(crate) fn pause(&self) -> Result<Paused> {
        const STEP: &str = "pause the container";
        let failed = |error: io::Error| Error::new(ErrorKind::Store, STEP, error);
        let mark = flock::open(&self.mark()).map_err(failed)?;
        let Some(mark) = flock::try_lock(mark).map_err(failed)? else {
            return Err(Error::new(
                ErrorKind::Conflict,
                STEP,
                "another process has paused it and has not resumed it yet",
            ));
        };
        // Written first, so that a paused container is never unmarked.
        (&*mark).write_all(STATUS.as_bytes()).map_err(failed)?;
        let (error, has_ended) = match self.ask(STEP, &["pause", self.id()]) {
            Ok(output) if output.status.success() => return Ok(Paused { handle: self.clone(), mark }),
            Ok(output) => (runtime_error(STEP, &output), true),
            Err(error) => (error, false),
        };
        match self.is_paused() {
            Ok(true) => Ok(Paused { handle: self.clone(), mark }),
            // The command was ended at its limit, and may have had its effect. The mark stays, so that the next operation resumes the container.
            Err(_) if !has_ended => Err(error),
            _ => {
                mark.set_len(0).map_err(failed)?;
                Err(error)
            }
        }
    }

    /// Resumes the container if a killed process left it paused. A failure is logged and does not prevent the operation that follows.
    pub(crate) fn resume_if_left(&self) {
        let path = self.mark();
        if !path.metadata().is_ok_and(|mark| mark.len() > 0) {
            return;
        }
        let resumed = || -> Result<()> {
            let step = "look whether the container is paused";
            let mark = flock::open(&path).context(ErrorKind::Store, step)?;
            // If the lock is taken, a live process has paused the container and will resume it.
            flock::try_lock(mark).context(ErrorKind::Store, step)?.map_or(Ok(()), |mark| self.go_on(&mark))
        };
        if let Err(error) = resumed() {
            tracing::warn!(%error, "a container may be paused still");
        }
    }

    /// Resumes the container. The caller must hold the mark's lock.
    fn go_on(&self, mark: &File) -> Result<()> {
        const STEP: &str = "have the container go on";
        let output = self.ask(STEP, &["resume", self.id()])?;
        // A container that has ended meanwhile, or was never paused, need not be resumed.
        if !output.status.success() && self.is_paused()? {
            return Err(runtime_error(STEP, &output));
        }
        mark.set_len(0).context(ErrorKind::Store, STEP)
    }

    fn is_paused(&self) -> Result<bool> {
        Ok(self.status()?.as_deref() == Some(STATUS))
    }

    fn mark(&self) -> PathBuf {
        self.state().with_file_name(MARK)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tarpon_testkit::descriptors::copies_below;

    use super::super::runtime::tests::container;
    use super::*;

    /// A runtime whose container is paused while a certain file exists.
    const RUNTIME: &str = r#"
        shift 2
        is="$(dirname "$0")/is-paused"
        case $1 in
            pause) [ ! -e "$is" ] && touch "$is" ;;
            resume) rm "$is" ;;
            state) if [ -e "$is" ]; then echo '{"status":"paused"}'; else echo '{"status":"running"}'; fi ;;
        esac"#;

    fn is_paused(folder: &Path) -> bool {
        folder.join("is-paused").exists()
    }

    #[test]
    fn a_container_that_a_killed_process_left_paused_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let handle = container(folder.path(), RUNTIME);
        handle.resume_if_left();
        let left = || {
            let paused = handle.pause().unwrap();
            assert!(is_paused(folder.path()));
            assert_eq!(handle.pause().unwrap_err().kind, ErrorKind::Conflict);
            handle.resume_if_left();
            assert!(is_paused(folder.path()), "a live process has paused it");
            // Simulates a killed process: the lock is released without any cleanup.
            let paused = std::mem::ManuallyDrop::new(paused);
            rustix::fs::flock(&paused.mark, rustix::fs::FlockOperation::Unlock).unwrap();
        };
        left();
        handle.resume_if_left();
        assert!(!is_paused(folder.path()));
        assert_eq!(handle.mark().metadata().unwrap().len(), 0);
        left();
        drop(handle.pause().unwrap());
        assert!(!is_paused(folder.path()), "it was taken over");
    }

    #[test]
    fn a_container_can_be_paused_again_while_a_forked_process_has_copies_of_the_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let handle = container(folder.path(), RUNTIME);
        let paused = handle.pause().unwrap();
        let copies = copies_below(folder.path()).unwrap();
        assert!(!copies.is_empty());
        drop(paused);
        let again = handle.pause().map(drop);
        drop(copies);
        again.unwrap();
    }

    #[test]
    fn a_container_that_cannot_be_paused_has_no_mark() {
        let folder = tempfile::tempdir().unwrap();
        let handle = container(folder.path(), "echo no cgroups >&2; exit 1");
        assert_eq!(handle.pause().unwrap_err().cause().to_string(), "no cgroups");
        assert_eq!(handle.mark().metadata().unwrap().len(), 0);
    }
}
