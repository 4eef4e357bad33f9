//! Decides whether an image may be mounted on the inodes that all native mounts of the server share.

use tarpon_mount::{Mode, ModeChoice};
use tarpon_oci::Digest;

use crate::{Error, ErrorKind, Result};

/// Returns why the mount needs inodes of its own, if it does. `contested` is an object of which the kernel may hold pages that this
/// image's chunk list does not confirm. Query it after the image was registered.
///
/// # Errors
/// [`ErrorKind::CannotMount`] if the user permits only mode `native`.
pub(super) fn own_inodes(asked: ModeChoice, contested: Option<Digest>) -> Result<Option<String>> {
    let Some(object) = contested else { return Ok(None) };
    let reason = format!("another image disagrees about object {object}, and the kernel may have pages of it");
    match asked {
        ModeChoice::Only(Mode::Fuse) => Ok(None),
        ModeChoice::Auto => Ok(Some(format!("mode fuse, not native: {reason}"))),
        ModeChoice::Only(Mode::Native) => Err(Error::new(ErrorKind::CannotMount, "mount in mode native", reason)
            .hint("--mode fuse works; native does again when that file of the other image is not in use")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_contradicted_is_not_mounted_on_shared_inodes() {
        let object = Some(Digest::of(b"object"));
        assert!(own_inodes(ModeChoice::Auto, object).unwrap().unwrap().contains("mode fuse, not native"));
        assert!(own_inodes(ModeChoice::Only(Mode::Native), object).is_err());
        for (asked, contested) in [(ModeChoice::Auto, None), (ModeChoice::Only(Mode::Fuse), object)] {
            assert!(own_inodes(asked, contested).unwrap().is_none());
        }
    }
}
