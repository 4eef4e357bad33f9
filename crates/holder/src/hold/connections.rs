//! Ends FUSE connections of which other processes have duplicates.

use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::socket;

/// Where the kernel lists the connections that this user may end, if that file system is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// First part of the name of a connection: `fuse.NUMBER.CAPABILITIES`.
const KIND: &str = "fuse";

/// Ends the connection of this name, if it is that of one. Without the list it ends when its last descriptor is closed.
pub(super) fn abort(name: &str, device: BorrowedFd<'_>) {
    // The number of one that has ended may be another one's by now.
    if let Some(number) = number(name).filter(|_| !socket::has_error(device)) {
        let _is_not_listed = std::fs::write(Path::new(CONNECTIONS).join(number).join("abort"), "1");
    }
}

/// The number of the connection. Digits only: it becomes a part of a path.
fn number(name: &str) -> Option<&str> {
    let mut parts = name.split('.');
    let (kind, number) = (parts.next()?, parts.next()?);
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (kind == KIND && is_number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_have_a_number() {
        assert_eq!(number("fuse.41.1f"), Some("41"));
        for other in ["fuse", "fuse..1", "fuse.../1", "fuse.4x.1", "opens.41", "state.fuse.41"] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
