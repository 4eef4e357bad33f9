//! [`Register`] on a connection of fuser, by the reply to an open.

use std::fs::File;
use std::io;

use fuser::{BackingId, ReplyOpen};

use super::opens::Register;

impl Register for ReplyOpen {
    fn register(&self, file: &File) -> io::Result<(BackingId, u32)> {
        let number = self.open_backing(file)?.into_raw();
        Ok((self.inherited(number), number))
    }

    #[expect(unsafe_code, reason = "the library shows the number of an id only in exchange for the id")]
    fn inherited(&self, number: u32) -> BackingId {
        // SAFETY: the kernel issued the number on this connection, to this process or to the one that served the
        // connection before it and has recorded the number. It is open: there is one value for each number,
        // made once, and the record of open files is changed before the value is dropped.
        unsafe { self.wrap_backing(number) }
    }
}
