//! A file system that is served to a socket in place of the kernel, for the fuzz target `fuse_requests`.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Config, InitFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tarpon_fs::{Objects, Operations, Reads};
use tokio::runtime::{Builder, Runtime};

use crate::adapter::{Adapter, Counters, OpenPolicy, Opens};
use crate::kernel::StepError;
use crate::takeover;

/// Longest answer: the contents of tests and the listings of their directories are smaller.
const ANSWER_BYTES: usize = 256 << 10;
/// An answer that takes longer is missing. All bytes are in memory.
const ANSWER: Duration = Duration::from_secs(30);

/// The kernel's side of a served file system.
pub struct Served {
    kernel: OwnedFd,
    session: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    buffer: Vec<u8>,
    /// For answers that are given later.
    _runtime: Runtime,
}

impl Served {
    /// Serves `files` on a thread of its own. `sees_opens`: opens are sent, as where the kernel passes them through.
    ///
    /// # Errors
    /// A thread or a socket cannot be made.
    pub fn new(files: Arc<dyn Operations>, objects: Arc<dyn Objects>, sees_opens: bool) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_time().build()?;
        let policy = if sees_opens { OpenPolicy::PassThrough(Opens::default()) } else { OpenPolicy::NoOpen };
        let adapter = Adapter::new(files, Reads::new(objects), runtime.handle().clone(), policy);
        let counters = adapter.counters();
        let session = takeover::on_socket(adapter, InitFlags::all(), Config::default());
        let (session, kernel) = session.map_err(|error: StepError| io::Error::other(error.to_string()))?;
        let serve = move || {
            // It ends with DESTROY, or with an error when the socket is closed.
            let _ended = session.run();
        };
        let session = std::thread::Builder::new().name("fuse-session".to_owned()).spawn(serve)?;
        let buffer = vec![0; ANSWER_BYTES];
        let mut served = Self { kernel, session: Some(session), counters, buffer, _runtime: runtime };
        served.receive()?;
        Ok(served)
    }

    /// Sends a request, as the kernel does: whole.
    ///
    /// # Errors
    /// The session has ended.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.kernel, request)?;
        Ok(())
    }

    /// The next answer.
    ///
    /// # Errors
    /// The session has ended, or there is no answer in time.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        let time = Timespec::try_from(ANSWER).map_err(io::Error::other)?;
        loop {
            match poll(&mut [PollFd::from_borrowed_fd(self.kernel.as_fd(), PollFlags::IN)], Some(&time)) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        match rustix::io::read(&self.kernel, &mut self.buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => Ok(&self.buffer[..length]),
        }
    }

    /// How many operations panicked.
    pub fn panics(&self) -> u64 {
        self.counters.panics.load(Ordering::Relaxed)
    }

    /// Waits until the session has ended, after DESTROY.
    ///
    /// # Errors
    /// The session panicked.
    pub fn join(mut self) -> io::Result<()> {
        let ended = self.session.take().map(JoinHandle::join).transpose();
        ended.map(drop).map_err(|_panic| io::Error::other("the session panicked"))
    }
}
