//! The kernel features of the link: TUN devices, and a thread in its own network namespace.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::mpsc::{self, Sender};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, opcode};
use rustix::thread::UnshareFlags;

/// Creates a TUN device in the network namespace of the calling thread. Closing the file removes it.
pub(super) fn device(name: &str) -> Result<File> {
    create(name).with_context(|| format!("cannot make the TUN device {name}"))
}

/// Creates the first unused `tarpon-linkN`, so that several links can be up at once.
pub(super) fn first_free_device() -> Result<(u8, File)> {
    for number in 0..=254 {
        let name = format!("tarpon-link{number}");
        match create(&name) {
            Ok(file) => return Ok((number, file)),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot make the TUN device {name}")),
        }
    }
    bail!("255 links are up already")
}

/// `struct ifreq` in the layout of the TUN driver.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    unused: [u8; 22],
}

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const IFF_TUN: u16 = 1;
const IFF_NO_PI: u16 = 0x1000;

fn create(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, unused: [0; 22] };
    // The last byte stays zero: it terminates the name.
    for (to, from) in request.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: TUNSETIFF reads one `struct ifreq`, and `Request` is laid out as one.
    #[allow(unsafe_code)]
    unsafe {
        ioctl::ioctl(&file, ioctl::Setter::<TUNSETIFF, Request>::new(request))?;
    }
    Ok(file)
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in its own network namespace that runs jobs. Processes that it starts stay there.
pub(super) struct Inside(Sender<Job>);

impl Inside {
    pub(super) fn new() -> Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        thread::spawn(move || {
            ready.send(leave_network()).ok();
            queue.into_iter().for_each(|job| job());
        });
        is_ready.recv().context("no thread")?.context("cannot make a network namespace")?;
        Ok(Self(jobs))
    }

    /// Runs `job` inside and waits for it.
    pub(super) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (answer, answered) = mpsc::channel();
        let job = move || drop(answer.send(job()));
        self.0.send(Box::new(job)).map_err(|_| anyhow!("the thread inside the namespace is gone"))?;
        answered.recv().context("the thread inside the namespace is gone")
    }
}

/// Moves only the calling thread into a new network namespace.
pub(crate) fn leave_network() -> io::Result<()> {
    // SAFETY: only the network namespace is left; file descriptors and memory are shared as before.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNET)?;
    }
    Ok(())
}
