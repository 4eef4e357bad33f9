//! A terminal that does not show what the user types, and shows it again after any end of this process that can be answered.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{LocalModes, OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetpgrp, tcsetattr};

/// The settings of the terminal at standard input while it shows nothing. The thread that answers signals restores them: the one that
/// waits for the line does not go on then.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Standard input shows nothing for as long as this exists. A signal that ends the process must call [`restored`].
pub(crate) struct Silent;

impl Silent {
    pub(crate) fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        let mut kept = kept();
        // Nothing under this lock waits for the terminal's output, which Ctrl-S may hold: a signal has to get the lock.
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        *kept = Some(before);
        drop(kept);
        let silent = Self;
        // What was typed before the question is no answer to it.
        tcflush(io::stdin(), QueueSelector::IFlush)?;
        Ok(silent)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Lines that were pasted with the password are not for the shell.
        let _discarded = tcflush(io::stdin(), QueueSelector::IFlush);
        restore(&mut kept());
    }
}

/// Restores the terminal before this process ends. Nothing changes it after that: the returned lock is to be kept until the end.
pub(crate) fn restored() -> MutexGuard<'static, Option<Termios>> {
    let mut kept = kept();
    restore(&mut kept);
    kept
}

fn kept() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore(kept: &mut Option<Termios>) {
    let Some(before) = kept.take() else { return };
    // A shell that has the terminal back has its own settings there, and the attempt would stop this process.
    if tcgetpgrp(io::stdin()).is_ok_and(|group| group != rustix::process::getpgrp()) {
        return;
    }
    // The terminal may be gone.
    let _restored = tcsetattr(io::stdin(), OptionalActions::Now, &before);
}
