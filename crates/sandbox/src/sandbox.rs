//! What a process asks for, and the order in which it gives up the rest.

use std::path::PathBuf;

use rustix::thread::CapabilitySet;

use crate::confinement::{Confinement, LandlockStatus};
use crate::error::{SandboxError, failed};
use crate::{paths, privileges, seccomp};

/// What the process may still do after [`Sandbox::enter`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Sandbox {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    may_connect: bool,
    memory: Option<u64>,
    reads_for_others: bool,
    has_own_user: bool,
}

impl Sandbox {
    /// A process that computes: no paths, no network.
    pub fn new() -> Self {
        Self::default()
    }

    /// It may read this file, or this folder with all below it. A path that does not exist is skipped.
    pub fn may_read(mut self, path: impl Into<PathBuf>) -> Self {
        self.read.push(path.into());
        self
    }

    /// It may read, create, write, truncate, link, rename and remove below this folder, but may make no device, socket
    /// or pipe, and no file that runs as its owner.
    pub fn may_write(mut self, folder: impl Into<PathBuf>) -> Self {
        self.write.push(folder.into());
        self
    }

    /// Where it may read, it may read files of all users, if it runs as root: it keeps `CAP_DAC_READ_SEARCH` where Landlock
    /// limits the paths.
    pub fn may_read_for_others(mut self) -> Self {
        self.reads_for_others = true;
        self
    }

    /// It becomes [`OWN_USER`](crate::OWN_USER), if it runs as root: then the file permissions limit it as well. A process that also reads for
    /// others stays root, without capabilities, where Landlock does not limit the paths.
    pub fn as_own_user(mut self) -> Self {
        self.has_own_user = true;
        self
    }

    /// It may connect by TCP and exchange UDP datagrams, over IPv4 and IPv6, and may resolve names, for which it reads
    /// the resolver's configuration. It never listens.
    pub fn may_connect(mut self) -> Self {
        self.may_connect = true;
        self
    }

    /// It may allocate this much private memory, with what it has already. An allocation beyond fails.
    pub fn limit_memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Confines the calling process for the rest of its life. To be called before the process starts a thread.
    ///
    /// # Errors
    ///
    /// If the process has several threads, before anything is changed. If a step fails: then the process is confined in
    /// part. A kernel without Landlock is no error: [`Confinement`] shows it.
    pub fn enter(self) -> Result<Confinement, SandboxError> {
        check_that_this_is_the_only_thread()?;
        privileges::hide_memory()?;
        if let Some(bytes) = self.memory {
            privileges::limit_memory(bytes)?;
        }
        privileges::clear_ambient_set()?;
        let is_bounding_set_empty = privileges::keep_in_bounding_set(CapabilitySet::empty())?;
        privileges::refuse_new_privileges()?;
        let landlock = paths::limit(&self.read, &self.write, self.may_connect)?;
        let has_paths = matches!(landlock, LandlockStatus::Enforced { .. });
        let has_own_user = self.has_own_user && (has_paths || !self.reads_for_others) && privileges::become_own_user()?;
        privileges::keep_capabilities(match self.reads_for_others && has_paths {
            true => CapabilitySet::DAC_READ_SEARCH,
            false => CapabilitySet::empty(),
        })?;
        seccomp::allow_only(self.may_connect)?;
        let Self { may_connect, memory, .. } = self;
        Ok(Confinement { landlock, is_bounding_set_empty, has_own_user, may_connect, memory })
    }
}

pub(crate) fn check_that_this_is_the_only_thread() -> Result<(), SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(failed("counting the threads"))?.count();
    if threads == 1 { Ok(()) } else { Err(SandboxError::Threads(threads)) }
}
