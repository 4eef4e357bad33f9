//! The kernel's control of FUSE connections (`fusectl`): ends one although other processes have its devices open.

use std::fs::{File, OpenOptions};
use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use crate::kernel::Context;

/// Ends the connection with this number: every waiting request fails at once.
///
/// # Errors
/// There is no such connection, or this user may not end it.
pub(crate) fn abort(number: u32) -> io::Result<()> {
    rustix::io::write(control(number)?, b"1")?;
    Ok(())
}

/// Whether [`abort`] can end the connection with this number.
pub(crate) fn can_abort(number: u32) -> bool {
    control(number).is_ok()
}

/// The file that ends the connection when something is written to it.
fn control(number: u32) -> io::Result<File> {
    let name = format!("{number}/abort");
    match Context::open("fusectl").and_then(|control| control.mount(MountAttrFlags::empty())) {
        Ok(control) => {
            let file = rustix::fs::openat(control, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            Ok(File::from(file))
        }
        Err(_) => OpenOptions::new().write(true).open(format!("/sys/fs/fuse/connections/{name}")),
    }
}
