//! [`Watch`]: an end for cases that never end, and [`panic_text`] for those that panic.

use std::any::Any;
use std::io::{self, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Real time of a case, which takes some milliseconds. Under a clock that stands still a case can wait for ever.
const CASE: Duration = Duration::from_secs(120);

/// Ends the program, with the name of the case, if this is not dropped in time.
pub struct Watch(#[allow(dead_code, reason = "dropping it ends the watch")] Sender<()>);

impl Watch {
    /// Watches a case of this name.
    pub fn over(case: String) -> Self {
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            if ended.recv_timeout(CASE) == Err(RecvTimeoutError::Timeout) {
                let _closed = writeln!(io::stderr(), "{case}: never ends");
                std::process::abort();
            }
        });
        Self(sender)
    }
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}
