//! The worker: confines itself, and serves the channels that its user opens, until the user closes the control socket.

mod completion;
mod images;
mod jobs;
mod questions;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::sync::Arc;
use std::thread;

use tarpon_sandbox::{LandlockStatus, Sandbox};
use tarpon_store::Disk;
use tarpon_store::storage::Storage as _;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::blob_service;
use crate::chunk_call;
use crate::layer_call;
use crate::message::{Control, Question, Setup, TierName, VERSION, decode};
use crate::packets;
use crate::process::async_stream;

use self::completion::StepService;
use self::images::Images;
use self::questions::Questions;

#[cfg(feature = "fuzz")]
pub(crate) use self::jobs::request as request_of;

/// Threads that receive. Decoding has threads of its own.
const THREADS: usize = 2;
/// Threads that resolve names, of which each may wait for seconds.
const BLOCKING_THREADS: usize = 16;
/// Stack of a thread that decodes: decoders keep their windows on the heap.
const STACK_BYTES: usize = 512 << 10;

/// Runs a worker on its standard input, which is the control socket.
///
/// # Errors
/// The process cannot be confined, the program that started it is of another version, or its control socket fails.
pub fn serve() -> io::Result<()> {
    run(|| ())
}

/// As [`serve`], for tests: does what a worker must not, once it is confined.
///
/// # Errors
/// As [`serve`].
#[cfg(feature = "misbehave")]
pub fn serve_and(misbehave: impl FnOnce()) -> io::Result<()> {
    run(misbehave)
}

fn run(when_confined: impl FnOnce()) -> io::Result<()> {
    let control = rustix::io::dup(rustix::stdio::stdin())?;
    let failed = |step: &str, error: &dyn std::fmt::Display| io::Error::other(format!("{step}: {error}"));
    let setup: Setup = match packets::receive(&control)? {
        Some((packet, _)) => decode(&packet).map_err(|error| failed("read the setup of a worker", &error))?,
        None => return Ok(()),
    };
    if setup.version != VERSION {
        let cause = format!("this program has version {VERSION}, and the one that started it {}", setup.version);
        return Err(failed("start a worker", &cause));
    }
    if !setup.write.is_empty() {
        // What a store reads outside of its folder: it is remembered.
        Disk.boot_id().map_err(|error| failed("read the boot id", &error))?;
    }
    let confinement = confine(&setup).map_err(|error| failed("confine the worker", &error))?;
    when_confined();
    let limits_paths = matches!(confinement.landlock, LandlockStatus::Enforced { .. });
    let service = Service::new(Question::Confined { how: confinement.to_string(), limits_paths }, setup.tier)?;
    let outcome = service.run(&control);
    // The user is gone: name resolution and work on the disk must not hold the process.
    service.runtime.shutdown_background();
    outcome
}

fn confine(setup: &Setup) -> Result<tarpon_sandbox::Confinement, tarpon_sandbox::SandboxError> {
    let sandbox = Sandbox::new().limit_memory(setup.memory);
    let sandbox = if setup.connects { sandbox.may_connect() } else { sandbox };
    let sandbox = if setup.reads_for_others { sandbox.may_read_for_others() } else { sandbox };
    let sandbox = if setup.as_own_user { sandbox.as_own_user() } else { sandbox };
    let sandbox = setup.read.iter().fold(sandbox, |sandbox, path| sandbox.may_read(path));
    setup.write.iter().fold(sandbox, |sandbox, path| sandbox.may_write(path)).enter()
}

/// A confined worker.
struct Service {
    runtime: Runtime,
    images: Arc<Images>,
    questions: Arc<Questions>,
    completion: Arc<StepService>,
}

impl Service {
    fn new(confined: Question, tier: Option<TierName>) -> io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder
            .enable_all()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("tarpon-worker");
        let questions = Arc::new(Questions::new(confined));
        let runtime = builder.build()?;
        let (images, completion) = (Arc::new(Images::new(questions.clone(), tier)), Arc::default());
        Ok(Self { runtime, images, questions, completion })
    }

    fn run(&self, control: &OwnedFd) -> io::Result<()> {
        self.outlive_signals()?;
        while let Some((packet, channel)) = packets::receive(control.as_fd())? {
            let message: Control = decode(&packet).map_err(io::Error::other)?;
            match (message, channel) {
                (Control::Forget(image), None) => self.images.forget(image),
                (Control::GetReady(image), None) => {
                    drop(self.runtime.spawn(self.images.clone().get_ready(image)));
                }
                (kind, Some(channel)) => self.serve(kind, channel)?,
                (_, None) => return Err(io::Error::other("a channel without a descriptor")),
            }
        }
        Ok(())
    }

    fn serve(&self, kind: Control, channel: OwnedFd) -> io::Result<()> {
        let _context = self.runtime.enter();
        match kind {
            Control::Blobs => {
                let (stream, images) = (async_stream(channel)?, self.images.clone());
                self.runtime.spawn(async move { log(blob_service::serve(stream.into_split(), &*images).await) });
            }
            Control::Job => {
                let (stream, images) = (async_stream(channel)?, self.images.clone());
                self.runtime.spawn(async move { log(jobs::serve(stream, images).await) });
            }
            Control::Step => {
                let (stream, completion) = (async_stream(channel)?, self.completion.clone());
                self.runtime.spawn(async move { log(completion.step(stream).await) });
            }
            Control::Source => {
                self.completion.add_source(async_stream(channel)?);
            }
            Control::Questions => {
                self.runtime.spawn(self.questions.clone().run(async_stream(channel)?));
            }
            Control::Chunks => {
                let channel = BlockingStream::from(channel);
                spawn(move || log(chunk_call::serve(&channel, &mut &channel)))?;
            }
            Control::Layer => {
                let channel = BlockingStream::from(channel);
                spawn(move || log(layer_call::serve(&channel, &mut &channel)))?;
            }
            Control::Forget(_) | Control::GetReady(_) => {
                return Err(io::Error::other("a descriptor without a channel"));
            }
        }
        Ok(())
    }

    /// A stop of the user's whole service is for the user, which still reads until its mounts have ended.
    fn outlive_signals(&self) -> io::Result<()> {
        let _context = self.runtime.enter();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let mut ignored = signal(kind)?;
            self.runtime.spawn(async move { while ignored.recv().await.is_some() {} });
        }
        Ok(())
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("tarpon-decode".into()).stack_size(STACK_BYTES).spawn(work).map(drop)
}

/// A channel that fails is closed, which its user notices.
fn log(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!("a channel of the worker was closed: {error}");
    }
}
