//! [`Holder`]: the server's side.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::Duration;

use rustix::event::EventfdFlags;

use crate::link::{HeldDescriptor, HolderCommand, Link};
use crate::message::Name;
use crate::service_store::ServiceStore;
use crate::worker::{Command, Worker};

/// Longest wait for the thread. It may be starting a holder, and then dismisses it: each of these has its own limit, and this is their sum.
const THREAD_LIMIT: Duration = Duration::from_secs(25);

/// Time to remove from the service manager what is not served.
const FORGET_LIMIT: Duration = Duration::from_secs(10);

/// The holder of this server's descriptors. Clones are the same holder. When the last one is dropped without [`Holder::dismiss`], the
/// holder takes the server for dead.
#[derive(Clone)]
pub struct Holder(Option<Arc<Thread>>);

/// The thread that speaks with the holder.
struct Thread {
    commands: Sender<Command>,
    /// An eventfd that wakes it.
    wake: Arc<OwnedFd>,
}

impl Holder {
    /// Attaches to the running holder, if there is one, and takes what it has. The waits are bounded, by about 10 seconds together. The
    /// caller must be the only server of the store.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if another server is attached, and [`io::ErrorKind::Unsupported`] if the holder speaks only other
    /// versions of the protocol.
    pub fn attach(command: HolderCommand) -> io::Result<(Self, Vec<HeldDescriptor>)> {
        Self::attach_in_service(command, None)
    }

    /// As [`Holder::attach`], for a service whose manager stores descriptors as well. Takes what the manager passed if no holder runs.
    pub fn attach_in_service(
        command: HolderCommand,
        mut service: Option<ServiceStore>,
    ) -> io::Result<(Self, Vec<HeldDescriptor>)> {
        let taken = take(&command, service.as_mut());
        if let Some(service) = &mut service {
            match &taken {
                // Another server has made changes since, of which only the holder knows.
                Ok((Some(_), _, kept)) => {
                    service.disown_passed();
                    kept.keys().for_each(|name| service.change(name));
                }
                Ok((None, ..)) => {}
                // Nothing of it is served, and no later call removes it.
                Err(_) => service.forget_passed_within(FORGET_LIMIT),
            }
        }
        let (link, held, kept) = taken?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let wake = Arc::new(wake);
        let (commands, receiver) = mpsc::channel();
        let worker = Worker::new(command, receiver, wake.clone(), link, service, kept);
        std::thread::Builder::new().name("holder".to_owned()).spawn(move || worker.run())?;
        Ok((Self(Some(Arc::new(Thread { commands, wake }))), held))
    }

    /// A holder that does nothing, for servers that cannot start a process.
    pub fn none() -> Self {
        Self(None)
    }

    /// Whether it keeps anything: [`Holder::none`] does not.
    pub fn keeps(&self) -> bool {
        self.0.is_some()
    }

    /// Lets the holder keep a duplicate of the descriptor, in place of an earlier one of that name. Returns at once; [`Holder::flush`]
    /// waits. The first call starts the holder.
    pub fn keep(&self, name: &str, descriptor: BorrowedFd<'_>) {
        let Some(thread) = &self.0 else { return };
        let Some(checked) = Name::new(name) else {
            tracing::warn!(name, "a descriptor with a name of no valid length is not held");
            return;
        };
        match descriptor.try_clone_to_owned() {
            Ok(descriptor) => thread.send(Command::Keep(checked, descriptor)),
            Err(error) => tracing::warn!(name, %error, "a descriptor is not held"),
        }
    }

    /// Closes the holder's duplicate.
    pub fn release(&self, name: &str) {
        if let (Some(thread), Some(name)) = (&self.0, Name::new(name)) {
            thread.send(Command::Release(name));
        }
    }

    /// This server answers requests now.
    pub fn serving(&self) {
        if let Some(thread) = &self.0 {
            thread.send(Command::Serving);
        }
    }

    /// Announces that this process ends, and that its successor is running already: the process with this number, if it is known. Returns
    /// when the holder knows.
    /// `false`: it does not answer, so everything ends with this process.
    pub fn hand_over(&self, successor: Option<u32>) -> bool {
        if let Some(thread) = &self.0 {
            thread.send(Command::HandOver(successor.unwrap_or_default()));
        }
        self.flush()
    }

    /// Waits, within a limit, until the holder has everything from before this call. Returns whether it has.
    pub fn flush(&self) -> bool {
        self.flush_within(THREAD_LIMIT)
    }

    /// As [`Holder::flush`], within this limit.
    pub fn flush_within(&self, limit: Duration) -> bool {
        self.0.as_ref().is_none_or(|thread| thread.wait(Command::Flush, limit))
    }

    /// A clean end of this server: ends the holder and waits for that, within a limit. Later calls do nothing.
    pub fn dismiss(&self) {
        if let Some(thread) = &self.0 {
            thread.wait(Command::Dismiss, THREAD_LIMIT);
        }
    }
}

/// What a successor gets.
type Taken = (Option<Link>, Vec<HeldDescriptor>, BTreeMap<String, OwnedFd>);

/// Takes what the running holder has, else what the service manager passed, with duplicates to keep.
fn take(command: &HolderCommand, service: Option<&mut ServiceStore>) -> io::Result<Taken> {
    let (link, held) = match Link::connect(&command.socket)? {
        Some((link, held)) => (Some(link), held),
        None => (None, service.map(ServiceStore::take_passed).unwrap_or_default()),
    };
    let kept = held.iter().map(|held| Ok((held.name.clone(), held.descriptor.try_clone()?)));
    let kept = kept.collect::<io::Result<_>>()?;
    Ok((link, held, kept))
}

impl fmt::Debug for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Holder" } else { "Holder::none()" })
    }
}

impl Thread {
    /// Does nothing after the end of the thread.
    fn send(&self, command: Command) {
        let _is_dismissed = self.commands.send(command);
        // It fails only if the counter is full, and then the thread is about to wake.
        let _will_wake = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Sends a command that is answered. Returns whether it was, within the limit.
    fn wait(&self, command: impl FnOnce(SyncSender<()>) -> Command, limit: Duration) -> bool {
        let (answer, wait) = mpsc::sync_channel(1);
        self.send(command(answer));
        wait.recv_timeout(limit).is_ok()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.send(Command::End);
    }
}
